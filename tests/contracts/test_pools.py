"""Vector environments that reset themselves, EnvPool's and Gymnasium's, against the same ones stepped by hand.

What they show must be the pool's own transitions, bit for bit, without the steps that only reset; and nothing of those
steps may reach the learner.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import envpool
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import headrace as hr
from headrace.envs.adapters import envpool as adapter
from headrace.envs.adapters.gymnasium_vector import GymnasiumVector
from headrace.envs.building import build_envs
from headrace.envs.seeds import Purpose
from headrace.envs.spec import MAKE_VEC, EnvSpec
from headrace.envs.vector_env import FinalObs, VectorEnv
from headrace.errors import ConsentError, EnvError, ReplayError, UsageError
from headrace.memory.layout import Row
from support.chains import Tampered, Transition, streams_of, swap_flags
from support.slabs import action_of, filled_slabs
from support.worker_envs import seeded_pool, unseeded_pool

ENVS, SEED, N_STEPS, SLABS = range(3, 7), 11, 40, 3
POOLS: dict[str, EnvSpec] = {
    # Of 14 steps at most, so that episodes end in both ways, several in a slab.
    "CartPole": EnvSpec("envpool:CartPole-v1", {"max_episode_steps": 14}),
    "MountainCar": EnvSpec("envpool:MountainCar-v0", {"max_episode_steps": 9, "num_threads": 2}),
    "a factory": EnvSpec(seeded_pool, {"max_episode_steps": 14}),
}
SMALL: dict[str, Any] = {"n_envs": 6, "n_steps": 32, "batch_size": 48, "n_epochs": 2, "seed": 1}
of_envpool_itself = pytest.mark.filterwarnings("ignore:.*Box (low|high)'s precision lowered")
every_pool = pytest.mark.parametrize("pool", POOLS)


def built(spec: EnvSpec, env_indices: range = ENVS) -> VectorEnv:
    return build_envs(spec, env_indices, SEED)


def streams(envs: VectorEnv, env_indices: range = ENVS) -> list[list[Transition]]:
    """The valid transitions of each environment, as slabs hold them."""
    slabs = filled_slabs(envs, env_indices, N_STEPS, SLABS)
    envs.close()
    return streams_of(slabs)


# ------------------------------------------------------------------------------------------------ EnvPool, step by step


def by_hand(spec: EnvSpec, env_index: int, length: int) -> list[Transition]:
    """One environment in a pool of its own; the step after an end is its reset, and is left out."""
    task = "CartPole-v1" if callable(spec.env) else spec.env.removeprefix("envpool:")
    seed = spec.seed_of(SEED, Purpose.ENV)(env_index, 0)
    assert 0 <= seed < 2**31, "EnvPool takes int32 seeds"
    pool = envpool.make(task, env_type="gymnasium", num_envs=1, seed=[seed], **spec.kwargs)
    obs, _ = pool.reset()
    stream: list[Transition] = []
    while len(stream) < length:
        action = action_of(env_index, len(stream)) % (3 if "Mountain" in task else 2)
        after, reward, terminated, truncated, _ = pool.step(np.array([action]))
        final = tuple(after[0].tolist()) if truncated[0] else None
        ended = bool(terminated[0]), bool(truncated[0])
        stream.append(Transition(tuple(obs[0].tolist()), action, float(reward[0]), *ended, final))
        obs = after
        if any(ended):
            obs, *_ = pool.step(np.array([0]))
    return stream


class Fewer:
    """Takes the four choices of the tests' noise modulo its own, and writes down what it took."""

    def __init__(self, envs: VectorEnv) -> None:
        self._envs = envs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._envs, name)

    def step(self, row: Row, final: FinalObs) -> None:
        np.mod(row.action, self._envs.action_space.n, out=row.action)  # type: ignore[union-attr]
        self._envs.step(row, final)


def require_as_by_hand(spec: EnvSpec, envs: VectorEnv) -> None:
    for env_index, stream in zip(ENVS, streams(envs), strict=True):
        assert len(stream) > N_STEPS, "more than a slab's rows"
        assert stream == by_hand(spec, env_index, len(stream))


@of_envpool_itself
@every_pool
def test_slabs_hold_what_the_pool_shows_by_hand(pool: str) -> None:
    spec = POOLS[pool]
    require_as_by_hand(spec, Fewer(built(spec)))  # type: ignore[arg-type]
    ends = [one for stream in streams(Fewer(built(spec))) for one in stream if one.terminated or one.truncated]  # type: ignore[arg-type]
    assert any(one.truncated for one in ends)
    assert any(one.terminated for one in ends) == (pool != "MountainCar")


def call_every_row_valid(row: Row) -> None:
    row.valid.fill(True)


@of_envpool_itself
@pytest.mark.parametrize(
    ("tamper", "real_finals"), [(call_every_row_valid, True), (swap_flags, True), (lambda row: None, False)]
)
def test_a_broken_rule_is_seen_by_hand(tamper: Callable[[Row], None], real_finals: bool) -> None:
    """Mutations: dummy rows as transitions, flags exchanged, zeros as final observations."""
    spec = POOLS["CartPole"]
    with pytest.raises(AssertionError):
        require_as_by_hand(spec, Tampered(Fewer(built(spec)), tamper, real_finals))  # type: ignore[arg-type]


@every_pool
def test_pools_of_other_sizes_show_the_same(pool: str) -> None:
    whole = streams(Fewer(built(POOLS[pool])))  # type: ignore[arg-type]
    parts = [streams(Fewer(built(POOLS[pool], part)), part) for part in (ENVS[:1], ENVS[1:])]  # type: ignore[arg-type]
    assert whole == [*parts[0], *parts[1]]
    assert len({stream[0].obs for stream in whole}) > 1, "each has a seed of its own"


# ----------------------------------------------------------------------------------------- Gymnasium, by autoreset mode


def of_cartpoles(mode: AutoresetMode, vectorization: str = "sync") -> EnvSpec:
    kwargs = {"id": "CartPole-v1", "max_episode_steps": 14, "vectorization_mode": vectorization}
    return EnvSpec(MAKE_VEC, kwargs | {"vector_kwargs": {"autoreset_mode": mode.value}})


def cartpole_streams(spec: EnvSpec) -> list[list[Transition]]:
    """As far as a next-step pool comes in the same number of rows."""
    return [stream[: N_STEPS * SLABS * 3 // 4] for stream in streams(Fewer(built(spec)))]  # type: ignore[arg-type]


def test_autoreset_modes_show_the_same_transitions() -> None:
    """Those that reset themselves are seeded once; where we reset, every episode is, as with single environments."""
    next_step, same_step, disabled = (cartpole_streams(of_cartpoles(mode)) for mode in AutoresetMode)
    assert next_step == same_step
    assert disabled == cartpole_streams(EnvSpec("CartPole-v1", {"max_episode_steps": 14}))
    assert next_step == cartpole_streams(of_cartpoles(AutoresetMode.NEXT_STEP, "async"))
    assert any(one.truncated for stream in next_step for one in stream)


def test_the_default_mode_of_make_vec_shows_what_it_shows_by_hand() -> None:
    """One generator for all: it is seeded with one number, the first environment's."""
    spec = EnvSpec(MAKE_VEC, {"id": "CartPole-v1", "max_episode_steps": 14})
    pool = gym.make_vec("CartPole-v1", len(ENVS), max_episode_steps=14)
    obs, _ = pool.reset(seed=spec.seed_of(SEED, Purpose.ENV)(ENVS[0], 0))
    ended, want = np.zeros(len(ENVS), bool), [[] for _ in ENVS]  # type: ignore[var-annotated]
    for _ in range(N_STEPS * SLABS):
        action = np.array([action_of(env, len(stream)) % 2 for env, stream in zip(ENVS, want, strict=True)])
        after, reward, terminated, truncated, _ = pool.step(action)
        for b in np.flatnonzero(~ended):
            final = tuple(after[b].tolist()) if truncated[b] and not terminated[b] else None
            flags = bool(terminated[b]), bool(truncated[b])
            want[b].append(Transition(tuple(obs[b].tolist()), int(action[b]), float(reward[b]), *flags, final))
        obs, ended = after, terminated | truncated
    pool.close()
    assert streams(Fewer(built(spec))) == want  # type: ignore[arg-type]


def test_a_pool_may_write_on_its_actions() -> None:
    """They are a copy: the slab keeps what the policy chose."""

    class Scribbling(gym.vector.SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            seen = super().step(actions)
            actions.fill(7)
            return seen

    envs = GymnasiumVector(Scribbling([lambda: gym.make("CartPole-v1")] * 4), ENVS, lambda env, episode: env)
    assert {one.action for stream in streams(Fewer(envs)) for one in stream} == {0, 1}  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------- training


def trained(env: Any = "envpool:CartPole-v1", **more: Any) -> hr.PPO:
    model = hr.PPO("MlpPolicy", env, **SMALL | more)
    with model:
        model.learn(700, callback=lambda record: record["headrace/first_ratio_error"] < 1e-5)
        assert model.result is not None
        assert model.result.steps >= 700, "a first ratio was not 1"
    return model


def bits(model: hr.PPO) -> tuple[Any, ...]:
    result = model.result
    assert result is not None
    return result.weights_sha256, result.optimizer_sha256, result.ledger, result.episodes, result.mean_return


PLACES: list[dict[str, Any]] = [
    {"topology": "threads", "workers": 2, "shards": 3},
    {"topology": "processes", "workers": 3, "env_kwargs": {"num_threads": 2}},
]


def test_envpool_gives_the_same_bits_everywhere() -> None:
    """Steps are real transitions: fewer than the rows, which hold resets, too."""
    want = trained(topology="inline", shards=1)
    for place in PLACES:
        assert bits(trained(**place)) == bits(want), place
    result = want.result
    assert result is not None
    assert result.ledger["consumed"] == result.steps == want.num_timesteps < result.updates * 6 * 32
    assert result.episodes > 10
    assert trained(seed=2).result.weights_sha256 != result.weights_sha256  # type: ignore[union-attr]


@pytest.mark.parametrize("is_masked", [True, False])
@pytest.mark.parametrize("env", ["envpool:CartPole-v1", MAKE_VEC])
def test_what_stands_in_dummy_rows_is_not_learned_from(
    env: str, is_masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation: the same rows, called valid, change the weights."""
    options: dict[str, Any] = {"topology": "inline", "env_kwargs": {"id": "CartPole-v1"} if env == MAKE_VEC else {}}
    want, step = bits(trained(env, **options)), GymnasiumVector.step

    def scribble(self: GymnasiumVector, row: Row, final: FinalObs) -> None:
        step(self, row, final)
        row.reward[~row.valid], row.action[~row.valid] = 1e3, 1
        if not is_masked:
            row.valid.fill(True)

    monkeypatch.setattr(GymnasiumVector, "step", scribble)
    assert (bits(trained(env, **options))[:2] == want[:2]) is is_masked


def test_evaluation_collector_and_impala_take_envpool() -> None:
    with hr.PPO("MlpPolicy", "envpool:CartPole-v1", **SMALL) as model:
        first, again = (hr.evaluate_policy(model, n_eval_episodes=5, return_episode_rewards=True) for _ in range(2))
        assert first == again
        assert first[0] == first[1], "a reward of 1 a step, none for resets"
        other = hr.evaluate_policy(model, "CartPole-v1", n_eval_episodes=5, return_episode_rewards=True)
        assert other != first, "Gymnasium's own CartPole has other seeds"
        pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=3, max_episode_steps=5)
        assert hr.evaluate_policy(model, pool, n_eval_episodes=4, return_episode_rewards=True)[1] == [5] * 4
        with pytest.raises(UsageError, match="get_env: envpool:CartPole-v1 is a pool"):
            model.get_env()
    with hr.Collector("envpool:CartPole-v1", "MlpPolicy", n_envs=4, n_steps=64, seed=1) as rollouts:
        batch = next(rollouts)
        assert batch.steps == int(batch.valid.sum()) < 4 * 64
        next(rollouts)
        assert rollouts.harvest is not None
        assert rollouts.harvest.steps == rollouts.ledger["consumed"]
    with hr.IMPALA("MlpPolicy", "envpool:CartPole-v1", n_envs=4, n_steps=32, seed=1) as other_model:
        other_model.learn(128)


# ---------------------------------------------------------------------------------------------------- what can't be had


def test_resume_is_refused_and_the_weights_can_be_had(tmp_path: Path) -> None:
    with hr.PPO("MlpPolicy", "envpool:CartPole-v1", **SMALL) as model:
        model.learn(200)
        model.save(tmp_path / "saved")
        obs = np.zeros((5, 4), np.float32)
        want = model.predict(obs, deterministic=True)[0]
    refusal = pytest.raises(ReplayError, match=r"envpool:CartPole-v1 is class B .*weights_only=True")
    with hr.PPO.load(tmp_path / "saved") as going_on, refusal:
        going_on.learn(200)
    with hr.PPO.load(tmp_path / "saved", weights_only=True) as loaded:
        assert (loaded.predict(obs, deterministic=True)[0] == want).all()
        loaded.learn(200)


def test_a_file_may_name_an_id_of_envpool_and_no_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kwargs in (("plain", {}), ("with", {"max_episode_steps": 9})):
        with hr.PPO("MlpPolicy", "envpool:CartPole-v1", env_kwargs=kwargs, **SMALL) as model:
            model.save(tmp_path / name)
    monkeypatch.setenv("HEADRACE_KEY_FILE", str(tmp_path / "another"))
    hr.PPO.load(tmp_path / "plain", weights_only=True).close()
    with pytest.raises(ConsentError, match="max_episode_steps"):
        hr.PPO.load(tmp_path / "with", weights_only=True)


def test_what_pools_can_not_do_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(match: str, env: Any = "envpool:CartPole-v1", **options: Any) -> None:
        with pytest.raises((UsageError, EnvError), match=match):
            hr.PPO("MlpPolicy", env, **SMALL | options)

    refused("unknown environment 'envpool:CartPol-v1': did you mean CartPole-v1", "envpool:CartPol-v1")
    for name in ("seed", "num_envs", "batch_size"):
        refused(f"env_kwargs: {name} can't be set; ", env_kwargs={name: 3})
    refused(r"could not be made with kwargs .*unexpected keyword argument 'gravity'", env_kwargs={"gravity": 3})
    refused("wrappers and action_repeat go inside", action_repeat=2)
    refused("unseeded_pool: EnvPool ignores the seeds of reset; use env='envpool:ID'", unseeded_pool)
    refused("MlpPolicy: expected observations of one array, got a Dict; use MultiInputPolicy", "envpool:LaneKeeping-v0")
    refused("nan_policy=drop", nan_policy="drop")
    monkeypatch.setitem(sys.modules, "envpool", None)
    refused(r"EnvPool is not installed; pip install 'headrace\[envpool\]'")


def test_bounds_that_are_none_do_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    """EnvPool's LunarLander has C++'s numeric limits as bounds: 1e-38 to 3e38."""
    space = built(EnvSpec("envpool:LunarLander-v3")).observation_space
    assert (space.low, space.high) == ((-np.inf,), (np.inf,))  # type: ignore[union-attr]
    assert not caplog.records


# ------------------------------------------------------------------------------------------------------------ instances


def test_an_instance_is_built_anew_as_it_was_made() -> None:
    options = {**SMALL, "n_envs": None}
    made = {
        "envpool:CartPole-v1": envpool.make("CartPole-v1", env_type="gymnasium", num_envs=5, max_episode_steps=30),
        "envpool:CartPole-v0": envpool.make("CartPole-v0", env_type="gymnasium", num_envs=5, seed=3),
        MAKE_VEC: gym.make_vec("CartPole-v1", 5, "sync", vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}),
    }
    for env, instance in made.items():
        with hr.PPO("MlpPolicy", instance, **options) as model:
            config = model.parts.config
            assert (config.env.env, config.topology.n_envs) == (env, 5)
            model.learn(160)
        instance.close()
    assert adapter.id_of(made["envpool:CartPole-v1"]) == ("CartPole-v1", {"max_episode_steps": 30})
    assert adapter.id_of(made["envpool:CartPole-v0"]) == ("CartPole-v0", {})
    vector_kwargs = {"autoreset_mode": "SameStep"}
    assert config.env.kwargs == {"id": "CartPole-v1", "vectorization_mode": "sync", "vector_kwargs": vector_kwargs}


def test_an_instance_that_does_not_say_how_it_was_made_is_refused() -> None:
    wrapped = gym.wrappers.vector.RecordEpisodeStatistics(gym.make_vec("CartPole-v1", 2))
    for instance in (wrapped, gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")])):
        with pytest.raises(UsageError, match=r"can't be built anew: .*a function with a parameter named num_envs"):
            hr.PPO("MlpPolicy", instance, **SMALL)
        instance.close()
