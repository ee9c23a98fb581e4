"""What users import: PPO, Collector, evaluate_policy, check_env. An SB3 user should feel at home.

    hr.PPO(policy, env, ...) --learn--> trained --save / load / predict / evaluate_policy
    hr.Collector(env, policy) yields completed rollouts to a learner of your own

Thin: turns keyword arguments into a RunConfig and calls `train` and `session`.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from headrace.checkpoints.run_directory import open_run_dir
from headrace.checkpoints.snapshot import Snapshot, find_latest, save
from headrace.envs.actions import sender
from headrace.envs.seeds import Purpose
from headrace.envs.serial import SerialEnvs
from headrace.envs.spec import EnvSource, EnvSpec
from headrace.envs.vector_env import VectorEnv
from headrace.errors import HeadraceError, SchemaError, UsageError
from headrace.evaluation.evaluate import Evaluated, evaluate
from headrace.inference.local import LocalInference
from headrace.inference.threads import torch_threads
from headrace.launch.schedule import Schedule
from headrace.launch.shard import ShardPlan, build_envs, build_noise
from headrace.launch.topology import Topology, TopologyConfig
from headrace.learning.batch import Batch, assemble, write_back
from headrace.learning.completion import complete
from headrace.learning.config import PpoConfig
from headrace.learning.config import Schedule as Coefficient
from headrace.loading import Fit, admit, require_fit
from headrace.memory.ring import Taken
from headrace.memory.spaces import shape_of
from headrace.policies.config import PolicyConfig
from headrace.policies.networks import as_policy
from headrace.policies.policy import Module
from headrace.run_config import RunConfig, SessionConfig, decode, encode
from headrace.session import Result, Session, with_more_steps
from headrace.telemetry.sinks import Record
from headrace.train import Run
from headrace.views.terminal import TerminalView

Array = npt.NDArray[Any]
_EVALUATION_ENVS = 16


class PPO:
    """Proximal policy optimisation over environments that headrace builds, seeds and steps."""

    result: Result | None = None  # how the last learn ended
    _verbose = 0
    _predictions = 0
    _is_new = True  # has no run directory yet and was not restored: it may not go on in another run's
    _is_torn = False  # collecting was broken off: the environments are beyond the last commit
    _is_closed = False

    def __init__(
        self,
        policy: str | Module,
        env: EnvSource | EnvSpec,
        learning_rate: Coefficient = 3e-4,
        n_steps: int = 2048,
        batch_size: int = 64,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip_range: Coefficient = 0.2,
        clip_range_vf: float | None = None,
        normalize_advantage: bool = True,
        ent_coef: Coefficient = 0.0,
        vf_coef: float = 0.5,
        max_grad_norm: float = 0.5,
        target_kl: float | None = None,
        *,
        n_envs: int = 8,
        env_kwargs: Mapping[str, Any] | None = None,
        wrappers: Sequence[EnvSource] = (),
        action_repeat: int = 1,
        policy_kwargs: Mapping[str, Any] | None = None,
        gradients: str = "auto",
        learner_threads: int = 1,
        late: str = "weight",
        late_clip: float = 1.0,
        topology: str = "auto",
        workers: int | str = "auto",
        inference: str = "auto",
        max_lag: int = 0,
        shards: int = 0,
        start_method: str = "forkserver",
        pick_up_rows: int = -1,
        publish_every: int | str = 1,
        batch: str = "every_shard",
        seed: int | None = None,
        verbose: int = 0,
    ) -> None:
        options: dict[str, Any] = {
            "learning_rate": learning_rate,
            "n_steps": n_steps,
            "batch_size": batch_size,
            "n_epochs": n_epochs,
            "gamma": gamma,
            "gae_lambda": gae_lambda,
            "clip_range": clip_range,
            "clip_range_vf": clip_range_vf,
            "normalize_advantage": normalize_advantage,
            "ent_coef": ent_coef,
            "vf_coef": vf_coef,
            "max_grad_norm": max_grad_norm,
            "target_kl": target_kl,
            "gradients": gradients,
            "learner_threads": learner_threads,
            "late": late,
            "late_clip": late_clip,
        }
        config = RunConfig(
            env=_env_spec(env, env_kwargs, wrappers, action_repeat),
            seed=_seed(seed),
            policy=_policy_config(policy, policy_kwargs),
            ppo=PpoConfig(**options),
            topology=TopologyConfig(
                n_envs,
                topology,
                str(workers),
                inference,
                max_lag,
                shards,
                start_method,
                pick_up_rows,
                str(publish_every),
                batch,
            ),
        )
        self._run = Run(config, None if isinstance(policy, str) else copy.deepcopy(policy))
        self._verbose = verbose

    @classmethod
    def from_config(
        cls, config: RunConfig, module: Module | None = None, schedule: str | os.PathLike[str] | None = None
    ) -> Self:
        """A model from a whole configuration, as the command line and checkpoints have it.

        With the schedule.jsonl of an asynchronous run it replays that run inline, to the same bits.
        """
        model = cls.__new__(cls)
        recorded = None if schedule is None else Schedule.read(Path(schedule), config.ppo.n_steps)
        model._run = Run(config, None if module is None else copy.deepcopy(module), recorded)
        return model

    def plan(self) -> str:
        """What will run, and why."""
        return plan_text(self._run)

    def learn(
        self,
        total_timesteps: int,
        callback: Callable[[Record], bool | None] | None = None,
        progress_bar: bool = False,
        run_dir: str | os.PathLike[str] | None = None,
        **session: Any,
    ) -> Self:
        """Train for that many more steps. With a run_dir, metrics, checkpoints, result and report are kept there.

        `callback` gets every update's record and stops training by returning False. Further keywords are those of
        SessionConfig: eval_every, n_eval_episodes, stop_reward, checkpoint_every, keep_checkpoints, tags.
        With progress_bar, or verbose=1, the terminal shows the run. Ctrl-C ends it at the last update and comes out as
        KeyboardInterrupt; the model is then as after that update, and can be saved or learn on.
        """
        try:
            config = SessionConfig(int(total_timesteps), **session)
        except TypeError as error:
            known = ", ".join(name for name in SessionConfig.__dataclass_fields__ if name != "total_timesteps")
            raise UsageError(f"learn: {error}; expected some of {known}") from error
        show = progress_bar or self._verbose > 0
        directory = None if run_dir is None else Path(run_dir)
        result = self.train(with_more_steps(config, self._run), directory, show, callback)
        if result.exit_reason == "SIGINT":
            raise KeyboardInterrupt
        if result.exit_reason == "SIGTERM":
            raise SystemExit(result.exit_code)
        return self

    def train(
        self,
        config: SessionConfig,
        run_dir: Path | None,
        show: bool,
        callback: Callable[[Record], bool | None] | None = None,
    ) -> Result:
        """Train up to config.total_timesteps steps in all, counted from the run's start."""
        if self._is_closed:
            raise UsageError("this model was closed; make or load another one")
        if self._is_torn:
            self._rewind()
        if run_dir is not None:
            open_run_dir(run_dir, encode(self._run.config) | {"session": asdict(config)}, self._is_new)
            self._is_new = False
        view = TerminalView(self._run.config.env.name, config.total_timesteps, facts(self._run)) if show else None
        session = Session(self._run, config, evaluate_run, run_dir, view, callback)
        self._is_torn = True  # until the session comes to an orderly end
        self.result = session.train()
        self._is_torn = self.result.exit_code in (130, 143)
        return self.result

    def predict(
        self, observation: Any, state: None = None, episode_start: None = None, deterministic: bool = False
    ) -> tuple[Array, None]:
        """Actions for one observation or a batch, as the environment wants them; `state` is for SB3's signature."""
        run = self._run
        space = run.observation_space
        obs = np.asarray(observation)
        is_single = obs.shape == shape_of(space)
        if not is_single and obs.shape[1:] != shape_of(space):
            raise SchemaError(f"predict: expected observations of shape {shape_of(space)} or [n, ...], got {obs.shape}")
        if not np.can_cast(obs.dtype, space.dtype, "same_kind"):
            raise SchemaError(f"predict: expected dtype {space.dtype}, got {obs.dtype}")
        rows = np.ascontiguousarray(obs[None] if is_single else obs, space.dtype)
        noise = None
        if not deterministic:
            plan = ShardPlan(run.config.env, range(len(rows)), run.config.seed)
            noise = build_noise(plan, as_policy(run.module).noise, Purpose.EVALUATION_NOISE).draw(
                np.full(len(rows), self._predictions), 1
            )[0]
            self._predictions += 1
        actions = np.empty((len(rows), *shape_of(run.action_space)), run.action_space.dtype)
        with torch_threads(1):
            LocalInference(run.module, space, run.action_space, run.tile).act(rows, noise, actions)
        actions = sender(run.action_space)(actions)
        return (actions[0] if is_single else actions), None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything needed to go on, or to predict, into a directory."""
        save(self._snapshot(), Path(path))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        env: EnvSource | EnvSpec | None = None,
        policy: Module | None = None,
        weights_only: bool = False,
        topology: str | None = None,
        workers: int | str | None = None,
        trust: bool = False,
        **schedules: Any,
    ) -> Self:
        """A model from `save`, a checkpoint or a run directory, ready to go on learning bit for bit.

        With `weights_only` it is for predicting and evaluating: live episodes are not replayed, learning starts anew.
        `topology` and `workers` place its actors elsewhere than the saved run's, which changes no bit of a synchronous
        run. Functions can't be saved: pass the environment, the policy's module or a schedule again if it was one.
        A checkpoint that you did not make may name a registered environment and no more: for module:attribute, kwargs
        or wrappers pass `env` yourself, or look at it and say `trust`.
        """
        _, snapshot, damaged = find_latest(Path(path))
        for line in damaged:
            warnings.warn(line, stacklevel=2)
        admit(snapshot, env, trust)
        place = None
        if topology is not None or workers is not None:
            saved = TopologyConfig(**snapshot.state["config"]["topology"])
            asked = str(workers) if workers is not None else "auto"
            place = replace(saved, topology=topology or saved.topology, workers=asked, shards=0)
        return cls.from_snapshot(snapshot, env, policy, weights_only, place, trust, **schedules)

    @classmethod
    def from_snapshot(
        cls,
        snapshot: Snapshot,
        env: EnvSource | EnvSpec | None = None,
        policy: Module | None = None,
        weights_only: bool = False,
        topology: TopologyConfig | None = None,
        trust: bool = False,
        **schedules: Any,
    ) -> Self:
        """The same, from a snapshot that is already in memory; `topology` may place the actors elsewhere."""
        admit(snapshot, env, trust)
        spec = env if isinstance(env, EnvSpec) or env is None else _with_env(snapshot.state["config"]["env"], env)
        config = decode(snapshot.state["config"], spec, **schedules)
        config = config if topology is None else replace(config, topology=topology)
        if policy is None and config.policy.policy not in ("MlpPolicy", "CnnPolicy", "auto"):
            raise UsageError(
                f"the run's policy was a module of its own ({config.policy.policy}); pass policy=... again"
            )
        model = cls.from_config(config, policy)
        try:
            require_fit(snapshot, _fit(model._run), weights_only)
            if weights_only:
                model._run.load_weights(snapshot)
            else:
                model._run.restore(snapshot)
                model._is_new = False
        except BaseException:
            model.close()
            raise
        return model

    def close(self) -> None:
        """Close the environments."""
        self._is_closed = True
        self._run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _snapshot(self) -> Snapshot:
        if not self._run.is_between_updates:
            raise HeadraceError("the last update was broken off in the middle; load the last checkpoint instead")
        return self._run.snapshot()

    def _rewind(self) -> None:
        """Back to the last commit, by replay, with fresh environments and the same module."""
        run, snapshot = self._run, self._snapshot()
        run.close()
        fresh = Run(run.config, run.module, run.schedule)
        try:
            fresh.restore(snapshot)
        except BaseException:
            fresh.close()
            raise
        self._run = fresh

    @property
    def policy(self) -> Module:
        """The torch module that is trained."""
        return self._run.module

    @property
    def num_timesteps(self) -> int:
        """Real environment steps so far."""
        return self._run.steps

    @property
    def run(self) -> Run:
        """The parts of the run, for those who want to look."""
        return self._run


class Collector:
    """Rollouts for a learner of your own: iterate, train on the batch, publish.

    Each batch is completed (log-probabilities, values, bootstrap values) and is the slab's own memory: valid until the
    next iteration. Leaving the block closes the environments.
    """

    def __init__(
        self,
        env: EnvSource | EnvSpec,
        policy: Module | str,
        n_envs: int = 8,
        n_steps: int = 128,
        seed: int | None = None,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        wrappers: Sequence[EnvSource] = (),
        action_repeat: int = 1,
        topology: str = "auto",
        workers: int | str = "auto",
        inference: str = "auto",
        max_lag: int = 0,
        shards: int = 0,
        start_method: str = "forkserver",
        pick_up_rows: int = -1,
    ) -> None:
        config = RunConfig(
            env=_env_spec(env, env_kwargs, wrappers, action_repeat),
            seed=_seed(seed),
            policy=_policy_config(policy, None),
            ppo=PpoConfig(n_steps=n_steps),
            topology=TopologyConfig(
                n_envs, topology, str(workers), inference, max_lag, shards, start_method, pick_up_rows
            ),
        )
        self._run = Run(config, None if isinstance(policy, str) else copy.deepcopy(policy), is_learning=False)
        self._is_torn = False  # a rollout was broken off: the environments are ahead of the books
        self._is_published = True
        self._is_closed = False
        self._taken: list[Taken] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        run = self._run
        if self._is_closed:
            raise UsageError("this collector was closed; make another one")
        self._give_back()
        if not self._is_published:  # nothing new: the same weights are the next version
            run.publish()
        if self._is_torn:
            raise UsageError("the last rollout was broken off in the middle; make another collector")
        self._is_torn = True
        with torch_threads(1):
            self._taken = run.collect()
            self._is_published = self._is_torn = False
            slabs = [one.slab for one in self._taken]
            batch = assemble(slabs)
            complete(batch, run.policy_of)
            write_back(batch, slabs)
        return batch

    def publish(self, module: Module) -> int:
        """Act with these weights from the next rollout on; returns their version."""
        run = self._run
        try:
            run.module.load_state_dict(module.state_dict())
        except RuntimeError as error:
            raise SchemaError(f"publish: expected the parameters of the policy that acts: {error}") from error
        self._is_published = True
        return run.publish()

    def close(self) -> None:
        """Close the environments; the last batch counts as consumed."""
        self._give_back()
        self._is_closed = True
        self._run.close()

    @property
    def policy(self) -> Module:
        """The policy as it was last published; train a copy of it and publish that."""
        return self._run.module

    @property
    def ledger(self) -> dict[str, Any]:
        """Where every step went; the batch in hand is produced, and not yet consumed."""
        return self._run.books.ledger.encode()

    def _give_back(self) -> None:
        self._run.books.ledger.consume(sum(int(one.slab.valid.sum()) for one in self._taken))
        self._run.release(self._taken)
        self._taken = []


def evaluate_policy(
    model: PPO,
    env: EnvSource | EnvSpec | gym.Env[Any, Any] | None = None,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    render: bool = False,
    callback: Callable[[dict[str, Any], dict[str, Any]], None] | None = None,
    reward_threshold: float | None = None,
    return_episode_rewards: bool = False,
    warn: bool = True,
) -> tuple[float, float] | tuple[list[float], list[int]]:
    """SB3's evaluate_policy: mean and standard deviation of the returns of whole episodes, or the lists themselves.

    Without `env`, the model's own environment, with seeds from the evaluation branch of its seed tree.
    `callback` is called after each episode with what there is so far; `warn` is for SB3's signature.
    """
    if n_eval_episodes < 1:
        raise UsageError(f"n_eval_episodes: expected at least 1, got {n_eval_episodes}")
    spec: EnvSpec | gym.Env[Any, Any] = model.run.config.env
    if isinstance(env, gym.Env):
        spec = env
    elif env is not None:
        spec = _env_spec(env, None, (), 1)
    if render and isinstance(spec, EnvSpec):
        spec = replace(spec, kwargs={**spec.kwargs, "render_mode": "human"})
    result = evaluate_run(model.run, n_eval_episodes, deterministic, spec, callback, one_env=render)
    if reward_threshold is not None and not result.mean_reward > reward_threshold:
        raise AssertionError(f"mean reward below threshold: {result.mean_reward:.2f} < {reward_threshold:.2f}")
    if return_episode_rewards:
        return result.returns, result.lengths
    return result.mean_reward, result.std_reward


def evaluate_run(
    run: Run,
    n_episodes: int,
    deterministic: bool = True,
    env: EnvSpec | gym.Env[Any, Any] | None = None,
    callback: Callable[[dict[str, Any], dict[str, Any]], None] | None = None,
    one_env: bool = False,
) -> Evaluated:
    """Evaluate a run's present weights on environments of their own; the run itself is not touched."""
    spec = env if env is not None else run.config.env
    n_envs = 1 if one_env or isinstance(spec, gym.Env) else min(n_episodes, _EVALUATION_ENVS)
    plan = ShardPlan(spec if isinstance(spec, EnvSpec) else run.config.env, range(n_envs), run.config.seed)
    envs = _borrowed(spec, plan) if isinstance(spec, gym.Env) else build_envs(plan, Purpose.EVALUATION)
    try:
        for role in ("observation_space", "action_space"):
            if getattr(envs, role) != getattr(run, role):
                raise SchemaError(f"evaluation: expected {role} {getattr(run, role)}, got {getattr(envs, role)}")
        inference = LocalInference(run.module, run.observation_space, run.action_space, run.tile)
        noise = build_noise(plan, as_policy(run.module).noise, Purpose.EVALUATION_NOISE)

        def act(obs: Array, row: int, out: Array) -> None:
            drawn = None if deterministic else noise.draw(np.full(n_envs, row), 1)[0]
            inference.act(obs, drawn, out)

        progress = None if callback is None else lambda done: callback({"episodes": done}, {})
        run.module.eval()
        with torch_threads(1):
            return evaluate(envs, act, sender(run.action_space), n_episodes, progress)
    finally:
        if not isinstance(spec, gym.Env):
            envs.close()


def plan_text(run: Run) -> str:
    """What will run, and why, a line each."""
    lines = [f"{name:<12} {value}" for name, value in facts(run).items()]
    return "\n".join([*lines, *(f"why          {reason}" for reason in run.topology.reasons)])


def facts(run: Run) -> dict[str, str]:
    """The plan in a few words each."""
    config, topology = run.config, run.topology
    rollout = config.ppo.n_steps * config.topology.n_envs
    return {
        "environment": f"{config.env.name} x {config.topology.n_envs}, {type(run.observation_space).__name__} -> "
        f"{type(run.action_space).__name__}",
        "topology": f"{topology.topology}{_workers(topology)}, "
        f"{len(topology.shards)} shard{'s'[: len(topology.shards) > 1]}, "
        f"max_lag {topology.max_lag}, inference {topology.inference}",
        "policy": f"{type(run.module).__name__}, {run.flat.vector.numel():,} parameters, tiles of {run.tile}",
        "rollout": f"{config.ppo.n_steps} x {config.topology.n_envs} = {rollout:,} steps, "
        f"{config.ppo.n_epochs} epochs of {-(-rollout // config.ppo.batch_size)} minibatches",
        "gradients": run.learner.gradients_name,
        "seed": str(config.seed),
    }


def _workers(topology: Topology) -> str:
    return "" if topology.topology == "inline" else f" with {topology.workers} worker{'s'[: topology.workers > 1]}"


def _borrowed(env: gym.Env[Any, Any], plan: ShardPlan) -> VectorEnv:
    """A user's own environment instance, seeded by the evaluation branch."""
    from headrace.envs.seeds import leaf

    return SerialEnvs(
        lambda: env, plan.env_indices, lambda index, episode: leaf(plan.seed, Purpose.EVALUATION, index, episode)
    )


def _env_spec(
    env: EnvSource | EnvSpec, kwargs: Mapping[str, Any] | None, wrappers: Sequence[EnvSource], action_repeat: int
) -> EnvSpec:
    if not isinstance(env, EnvSpec):
        return EnvSpec(env, dict(kwargs or {}), tuple(wrappers), action_repeat)
    if kwargs or wrappers or action_repeat != 1:
        raise UsageError("env: an EnvSpec has its own kwargs, wrappers and action_repeat; give them there")
    return env


def _fit(run: Run) -> Fit:
    shapes = {name: tuple(tensor.shape) for name, tensor in run.module.state_dict().items()}
    return Fit(shapes, run.flat.vector.numel(), run.flat.size, run.observation_space, run.action_space)


def _with_env(saved: dict[str, Any], env: EnvSource) -> EnvSpec:
    """Another environment, dressed as the saved one was."""
    lost = [wrapper["callable"] for wrapper in saved["wrappers"] if not isinstance(wrapper, str)]
    if lost:
        raise UsageError(
            f"the run's environment had wrappers ({', '.join(lost)}), which a file can't hold; "
            f"pass env=EnvSpec(..., wrappers=...)"
        )
    return EnvSpec(env, saved["kwargs"], tuple(saved["wrappers"]), saved["action_repeat"])


def _policy_config(policy: str | Module, kwargs: Mapping[str, Any] | None) -> PolicyConfig:
    options = dict(kwargs or {})
    if "net_arch" in options:
        sizes = options["net_arch"]
        if not isinstance(sizes, Sequence) or not all(isinstance(size, int) and size > 0 for size in sizes):
            raise UsageError(f"net_arch: expected the sizes of the hidden layers, as in [64, 64], got {sizes!r}")
        options["net_arch"] = tuple(sizes)
    try:
        return PolicyConfig(policy if isinstance(policy, str) else type(policy).__name__, **options)
    except TypeError as error:
        known = ", ".join(name for name in PolicyConfig.__dataclass_fields__ if name != "policy")
        raise UsageError(f"policy_kwargs: {error}; expected some of {known}") from error


def _seed(seed: int | None) -> int:
    """A seed that was not given is drawn, and recorded with the configuration."""
    return int.from_bytes(os.urandom(4), "little") if seed is None else seed
