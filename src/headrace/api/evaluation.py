"""hr.evaluate_policy: SB3's, over environments and seeds of their own.

model's present weights + environments of the evaluation branch of its seed tree --> returns of whole episodes
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from headrace.api.arguments import env_spec, is_single
from headrace.api.other_names import OF_CALLS
from headrace.api.whereabouts import whereabouts
from headrace.build import Parts
from headrace.collecting.plan import build_noise
from headrace.envs.building import build_envs
from headrace.envs.instances import Instance
from headrace.envs.masks import ActionMasks, masked
from headrace.envs.mended import mended
from headrace.envs.seeds import Purpose, leaf
from headrace.envs.serial import SerialEnvs
from headrace.envs.spec import EnvSource, EnvSpec
from headrace.envs.successes import Successes, success
from headrace.envs.vector_env import VectorEnv
from headrace.errors import SchemaError, UsageError, whole
from headrace.evaluation.evaluate import Evaluated, evaluate
from headrace.inference.recurrent import inference_of
from headrace.keywords import in_words
from headrace.memory.schema import state_leaf
from headrace.memory.spaces import Leaves, in_short
from headrace.policies.networks import as_policy
from headrace.policies.policy import state_size_of
from headrace.policies.threads import torch_threads

if TYPE_CHECKING:
    from headrace.api.collector import Collector
    from headrace.api.model import Model
    from headrace.api.vec_env import VecEnv

Array = npt.NDArray[Any]
_ENVS = 16


@in_words(OF_CALLS)
def evaluate_policy(
    model: Model | Collector,
    env: EnvSource | EnvSpec | Instance | VecEnv | None = None,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    render: bool = False,
    callback: Callable[[dict[str, Any], dict[str, Any]], None] | None = None,
    reward_threshold: float | None = None,
    return_episode_rewards: bool = False,
    warn: bool = True,
) -> tuple[float, float] | tuple[list[float], list[int]]:
    """SB3's evaluate_policy: mean and standard deviation of the returns of whole episodes, or the lists themselves.

    Without `env`, the model's own environment, with seeds from the evaluation branch of its seed tree. An `env` may
    also be what get_env returns, or another object with SB3's four-value step. Of a collector, the weights that were
    published last are evaluated.
    `callback` is called after each episode with what there is so far; `warn` is for SB3's signature.
    """
    result = played(model, env, n_eval_episodes, deterministic, render, callback)
    if reward_threshold is not None and not result.mean_reward > reward_threshold:
        raise AssertionError(f"mean reward below threshold: {result.mean_reward:.2f} < {reward_threshold:.2f}")
    if return_episode_rewards:
        return result.returns, result.lengths
    return result.mean_reward, result.std_reward


@whereabouts.kept()
def played(
    model: Model | Collector,
    env: Any,
    n_eval_episodes: int,
    deterministic: bool,
    render: bool,
    callback: Callable[[dict[str, Any], dict[str, Any]], None] | None = None,
) -> Evaluated:
    """The episodes of an evaluate_policy."""
    if not hasattr(model, "parts"):
        hint = "; load it first: hr.PPO.load(path)" if isinstance(model, str | os.PathLike) else ""
        raise UsageError(f"evaluate_policy: expected a model or a collector, got {type(model).__name__}{hint}")
    n_eval_episodes = whole("n_eval_episodes", n_eval_episodes, 1)
    if hasattr(env, "num_envs") and hasattr(env, "step") and not isinstance(env, gym.vector.VectorEnv):
        return _evaluate_steps(model, env, n_eval_episodes, deterministic, render, callback)
    spec: EnvSpec | gym.Env[Any, Any] = model.parts.config.env
    if is_single(env):
        spec = env
    elif env is not None:
        spec = env_spec(env)
    if render and isinstance(spec, EnvSpec):
        spec = replace(spec, kwargs={**spec.kwargs, "render_mode": "human"})
    return evaluate_parts(
        model.parts, n_eval_episodes, deterministic, spec, callback, one_env=render, successes=Successes()
    )


def _evaluate_steps(
    model: Any, env: Any, n_episodes: int, deterministic: bool, render: bool, callback: Any
) -> Evaluated:
    """Whole episodes in environments that reset themselves, about as many of each, as SB3 counts them."""
    wanted = [(n_episodes + index) // env.num_envs for index in range(env.num_envs)]
    totals, steps = np.zeros(env.num_envs), np.zeros(env.num_envs, int)
    returns: list[float] = []
    lengths: list[int] = []
    successes: list[bool] = []
    obs = env.reset()
    state, dones = None, np.ones(env.num_envs, bool)
    while len(returns) < n_episodes:
        actions, state = model.predict(obs, state=state, episode_start=dones, deterministic=deterministic)
        obs, rewards, dones, infos = env.step(actions)
        totals, steps = totals + rewards, steps + 1
        for index in np.flatnonzero(dones):
            if wanted[index] > 0:
                wanted[index] -= 1
                returns.append(float(totals[index]))
                lengths.append(int(steps[index]))
                said = success(infos[index])
                successes.extend([] if said is None else [said])
                if callback is not None:
                    callback({"episodes": len(returns)}, {})
            totals[index], steps[index] = 0.0, 0
        if render:
            env.render()
    return Evaluated(returns, lengths, successes)


def evaluate_parts(
    parts: Parts,
    n_episodes: int,
    deterministic: bool = True,
    env: EnvSpec | gym.Env[Any, Any] | None = None,
    callback: Callable[[dict[str, Any], dict[str, Any]], None] | None = None,
    one_env: bool = False,
    successes: Successes | None = None,
) -> Evaluated:
    """Evaluate a run's present weights on environments of their own; the run itself is not touched."""
    spec, seed = env if env is not None else parts.config.env, parts.config.seed
    if parts.config.policy.action_masks:
        spec = masked(spec) if isinstance(spec, EnvSpec) else ActionMasks(spec)
    n_envs = 1 if one_env or isinstance(spec, gym.Env) else min(n_episodes, _ENVS)
    envs = _built(spec, n_envs, seed, parts.config.topology.nan_policy, successes)
    try:
        for role, ours, theirs in (
            ("observation_space", parts.observation, envs.observation_space),
            ("action_space", parts.action, envs.action_space),
        ):
            if ours != theirs:
                bounds = ", with other bounds" if in_short(ours) == in_short(theirs) else ""
                raise SchemaError(f"evaluation: expected {role} {in_short(ours)}, got {in_short(theirs)}{bounds}")
        acting = parts.acting
        inference = inference_of(acting, parts.observation, parts.action, parts.tile)
        noise = build_noise(as_policy(acting).noise, range(n_envs), seed, Purpose.EVALUATION_NOISE)

        memory = state_leaf(state_size_of(parts.module), n_envs)

        def act(obs: Leaves, row: int, out: Array, starts: Array) -> None:
            drawn = None if deterministic else noise.draw(np.full(n_envs, row), 1)[0]
            for state in memory.values():
                state[starts] = 0.0
            inference.act(obs | memory, drawn, out)

        progress = None if callback is None else lambda done: callback({"episodes": done}, {})
        acting.eval()
        with torch_threads(1):
            return evaluate(envs, act, n_episodes, progress, successes)
    finally:
        if not isinstance(spec, gym.Env):
            envs.close()


def _built(
    spec: EnvSpec | gym.Env[Any, Any], n_envs: int, seed: int, nan_policy: str, successes: Successes | None
) -> VectorEnv:
    """Environments of the evaluation branch; a user's own instance is borrowed."""
    if isinstance(spec, gym.Env):
        seed_of = partial(leaf, seed, Purpose.EVALUATION)
        env = spec if successes is None else successes.watch(spec)
        return mended(SerialEnvs(lambda: env, range(n_envs), seed_of), nan_policy)
    return build_envs(spec, range(n_envs), seed, Purpose.EVALUATION, nan_policy, successes=successes)
