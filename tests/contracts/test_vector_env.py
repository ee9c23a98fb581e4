"""The contract of VectorEnv, over every implementation: the common format, numbers of rows, final observations, seeds.

Two sources that differ only in how they reset give equal streams of valid transitions: the script's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from headrace.envs.adapters.gymnasium_vector import GymnasiumVector
from headrace.envs.serial import SerialEnvs
from headrace.envs.spec import ActionRepeat
from headrace.envs.vector_env import EnvFailure, LiveEpisode, VectorEnv
from headrace.errors import EnvError, ReplayError
from headrace.memory.layout import Row
from headrace.memory.slab import Slab
from support.chains import (
    NUM_ACTIONS,
    SOURCES,
    ChainEnv,
    Script,
    Tampered,
    chain_envs,
    expected_stream,
    reward_of,
    seed_of,
    streams_of,
    swap_flags,
)
from support.generators import quick, seeds
from support.oracles import SlowEnv
from support.slabs import action_of, filled_slabs, slab_for

ENV_INDICES = range(5, 9)  # a shard in the middle of a run
N_ROWS = 40

every_source = pytest.mark.parametrize("source", SOURCES)


def keyed_action(env_index: int, transition: int) -> int:
    return (env_index * 5 + transition * transition) % NUM_ACTIONS


def play(envs: VectorEnv, env_indices: range, n_rows: int, slab: Slab | None = None) -> Slab:
    """Rows as an actor would drive them, with actions keyed by (env, valid step)."""
    slab = slab or slab_for(envs, n_rows)
    envs.begin(slab.rows[0].obs)
    valid_steps = np.zeros(len(env_indices), np.int64)
    for t, row in enumerate(slab.rows):
        row.action[:] = [keyed_action(env, n) for env, n in zip(env_indices, valid_steps, strict=True)]
        envs.step(row, lambda b, obs, t=t: slab.record_final(t, b, obs))  # type: ignore[misc]
        valid_steps += row.valid
    return slab


def assert_tells_the_script(slab: Slab, script: Script, env_indices: range) -> None:
    for env_index, stream in zip(env_indices, streams_of([slab]), strict=True):
        assert stream == expected_stream(script, env_index, len(stream), keyed_action)


# --------------------------------------------------------------------------------------------------- the common format


@every_source
@quick
@given(seed=seeds, longest=st.integers(1, 8))
def test_the_stream_of_valid_transitions_is_the_scripts(source: str, seed: int, longest: int) -> None:
    script = Script(seed, longest)
    envs, _ = chain_envs(source, ENV_INDICES, script)
    assert_tells_the_script(play(envs, ENV_INDICES, N_ROWS), script, ENV_INDICES)


@quick
@given(seed=seeds)
def test_sources_that_differ_only_in_their_resets_give_equal_streams(seed: int) -> None:
    by_source = {
        source: streams_of([play(chain_envs(source, ENV_INDICES, Script(seed))[0], ENV_INDICES, N_ROWS)])
        for source in SOURCES
    }
    for streams in by_source.values():
        for stream, longest in zip(streams, by_source["serial"], strict=True):
            assert stream == longest[: len(stream)]
            assert len(stream) >= N_ROWS // 2


@every_source
def test_a_row_is_invalid_only_after_an_end_and_only_if_the_source_skips_rows(source: str) -> None:
    envs, _ = chain_envs(source, ENV_INDICES, Script(3))
    slab = play(envs, ENV_INDICES, N_ROWS)
    ended = (slab.terminated | slab.truncated) & slab.valid
    after_end = np.vstack([np.zeros((1, len(ENV_INDICES)), np.bool_), ended[:-1]])
    assert (slab.valid == ~(after_end & envs.skips_rows)).all()
    assert not (slab.terminated | slab.truncated)[~slab.valid].any(), "nothing ends in a row that is none"
    assert (slab.reward[~slab.valid] == 0).all()
    assert envs.skips_rows == (source == "next_step")


@every_source
def test_every_observation_is_the_one_the_next_row_begins_with(source: str) -> None:
    """Where no end is in between, next_obs is the episode's next step; after one it is the next episode's first."""
    script = Script(1)
    envs, _ = chain_envs(source, ENV_INDICES, script)
    slab = play(envs, ENV_INDICES, N_ROWS)
    obs = slab.obs["obs"]
    following = np.concatenate([obs[1:], slab.last_obs["obs"][None]])
    for b in range(len(ENV_INDICES)):
        for t in np.flatnonzero(slab.valid[:, b]):
            env, episode, step = obs[t, b].tolist()
            if not (slab.terminated[t, b] or slab.truncated[t, b]):
                assert following[t, b].tolist() == [env, episode, step + 1]
            elif not envs.skips_rows:
                assert following[t, b].tolist() == [env, episode + 1, 0]


# Not same_step: there Gymnasium itself keeps the final observation by reference while it resets the environment.
@pytest.mark.parametrize("source", ["serial", "next_step", "disabled"])
def test_an_environment_that_reuses_its_observation_array_is_read_in_time(source: str) -> None:
    script = Script(11)

    class Reusing(gym.ObservationWrapper[Any, Any, Any]):
        def __init__(self, env: gym.Env[Any, Any]) -> None:
            super().__init__(env)
            self._kept = np.zeros(3, np.float32)

        def observation(self, observation: Any) -> Any:
            self._kept[:] = observation
            return self._kept

    makers = [lambda env=env: Reusing(ChainEnv(env, script)) for env in ENV_INDICES]
    envs = SOURCES[source](makers, ENV_INDICES, seed_of)
    assert_tells_the_script(play(envs, ENV_INDICES, N_ROWS), script, ENV_INDICES)


# ------------------------------------------------------------------------------------------------------ numbers of rows


def assert_numbered_as_counted_one_by_one(slabs: list[Slab], env_indices: range) -> None:
    """Episode and step of every row, invalid ones too, against a life that is lived row by row."""
    lives = [SlowEnv(env_index) for env_index in env_indices]
    for slab in slabs:
        for t, b in np.ndindex(slab.valid.shape):
            flags = (slab.terminated[t, b], slab.truncated[t, b], slab.valid[t, b])
            number, _ = lives[b].live_through(None, 0.0, *flags)
            assert (slab.episode[t, b], slab.step[t, b]) == number, (t, b)


@every_source
@quick
@given(seed=seeds, longest=st.integers(1, 8), n_steps=st.integers(1, 20))
def test_rows_are_numbered_as_if_counted_one_by_one(source: str, seed: int, longest: int, n_steps: int) -> None:
    """Wherever a slab ends: the environments count on over its edge."""
    envs, _ = chain_envs(source, ENV_INDICES, Script(seed, longest))
    assert_numbered_as_counted_one_by_one(filled_slabs(envs, ENV_INDICES, n_steps, count=3), ENV_INDICES)


@every_source
def test_a_row_is_numbered_before_its_step_is_taken(source: str) -> None:
    """So that a failure can be located: the row whose step raises has its numbers."""
    envs = misbehaving(source, "raises in step")
    slab = slab_for(envs, N_ROWS)
    poison = int(slab.episode[0, 0])
    with pytest.raises(EnvFailure, match="boom"):
        play(envs, ENV_INDICES, N_ROWS, slab)
    failed = int((slab.episode != poison).all(1).sum()) - 1
    assert failed >= 2
    for b, env_index in enumerate(ENV_INDICES):
        life = SlowEnv(env_index)
        for t in range(failed):
            life.live_through(None, 0.0, slab.terminated[t, b], slab.truncated[t, b], slab.valid[t, b])
        assert (slab.episode[failed, b], slab.step[failed, b]) == (life.episode, life.step)


def counts_invalid_rows(row: Row) -> None:
    row.step[~row.valid] = 1


def counts_them_to_the_old_episode(row: Row) -> None:
    row.episode[~row.valid] -= 1


def steps_from_one(row: Row) -> None:
    row.step[:] += 1


class Forgetting:
    """A tamper that numbers rows itself, as if one flag did not end an episode."""

    def __init__(self, flag: str) -> None:
        self._flag = flag
        self._lives = [SlowEnv(b) for b in range(len(ENV_INDICES))]

    def __call__(self, row: Row) -> None:
        for b, life in enumerate(self._lives):
            flags = {name: getattr(row, name)[b] for name in ("terminated", "truncated", "valid")}
            flags[self._flag] = self._flag == "valid"
            (row.episode[b], row.step[b]), _ = life.live_through(None, 0.0, **flags)


@pytest.mark.parametrize(
    ("source", "make_tamper"),
    [
        ("next_step", lambda: counts_invalid_rows),
        ("next_step", lambda: counts_them_to_the_old_episode),
        ("next_step", lambda: Forgetting("valid")),
        *[(source, lambda: steps_from_one) for source in SOURCES],
        *[(source, lambda flag=flag: Forgetting(flag)) for source in SOURCES for flag in ("terminated", "truncated")],
    ],
)
def test_a_source_that_counts_wrongly_is_caught(source: str, make_tamper: Callable[[], Callable[[Row], None]]) -> None:
    envs, _ = chain_envs(source, ENV_INDICES, Script(3))
    tampered = play(Tampered(envs, make_tamper()), ENV_INDICES, N_ROWS)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        assert_numbered_as_counted_one_by_one([tampered], ENV_INDICES)


# ---------------------------------------------------------------------------------------------------------- it can fail


def call_every_row_valid(row: Row) -> None:
    row.valid.fill(True)


def nothing(row: Row) -> None:
    """No tampering."""


@pytest.mark.parametrize(
    ("source", "tamper", "real_finals"),
    [
        *[(source, swap_flags, True) for source in SOURCES],
        *[(source, nothing, False) for source in SOURCES],
        ("next_step", call_every_row_valid, True),
    ],
)
def test_a_source_that_breaks_the_common_format_is_caught(
    source: str, tamper: Callable[[Row], None], real_finals: bool
) -> None:
    script = Script(3)
    envs, _ = chain_envs(source, ENV_INDICES, script)
    assert_tells_the_script(play(Tampered(envs, nothing), ENV_INDICES, N_ROWS), script, ENV_INDICES)  # type: ignore[arg-type]
    envs, _ = chain_envs(source, ENV_INDICES, script)
    tampered = play(Tampered(envs, tamper, real_finals), ENV_INDICES, N_ROWS)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        assert_tells_the_script(tampered, script, ENV_INDICES)


# -------------------------------------------------------------------------------------------- through the actor's slabs


@every_source
@pytest.mark.parametrize("n_steps", [1, 7, 16])
def test_slabs_hold_the_scripts_stream_with_its_numbers(source: str, n_steps: int) -> None:
    script = Script(2)
    envs, _ = chain_envs(source, ENV_INDICES, script)
    slabs = filled_slabs(envs, ENV_INDICES, n_steps, count=4)
    for env_index, stream in zip(ENV_INDICES, streams_of(slabs), strict=True):
        assert stream == expected_stream(script, env_index, len(stream), action_of)
    for version, slab in enumerate(slabs):
        assert (slab.version == version).all()
        assert (slab.episode == slab.obs["obs"][..., 1])[slab.valid].all()
        assert (slab.step == slab.obs["obs"][..., 2])[slab.valid].all()
        assert (slab.step[~slab.valid] == 0).all()
    for slab, following in pairwise(slabs):
        assert (slab.last_obs["obs"] == following.obs["obs"][0]).all()


@every_source
def test_the_noise_counter_moves_once_per_real_transition(source: str) -> None:
    envs, _ = chain_envs(source, ENV_INDICES, Script(2))
    slabs = filled_slabs(envs, ENV_INDICES, 9, count=3)
    so_far = np.zeros(len(ENV_INDICES), np.int64)
    for slab in slabs:
        so_far += slab.valid.sum(0)
        assert slab.noise_counter.tolist() == so_far.tolist()
    assert (so_far < 27).all() == envs.skips_rows


def test_noise_that_is_spent_on_invalid_rows_is_caught() -> None:
    """The mutation: a source that skips rows but does not say so, and an actor that therefore draws for every row."""
    script = Script(2)
    envs, _ = chain_envs("next_step", ENV_INDICES, script)
    envs.skips_rows = False
    streams = streams_of(filled_slabs(envs, ENV_INDICES, 16, count=2))
    assert any(
        stream != expected_stream(script, env_index, len(stream), action_of)
        for env_index, stream in zip(ENV_INDICES, streams, strict=True)
    )


@every_source
def test_splitting_a_shard_changes_nothing(source: str) -> None:
    script = Script(4)

    def streams_from(env_indices: range) -> list[Any]:
        return streams_of(filled_slabs(chain_envs(source, env_indices, script)[0], env_indices, 8, count=3))

    assert streams_from(range(6)) == streams_from(range(2)) + streams_from(range(2, 6))


# --------------------------------------------------------------------------------------------- action repeat and seeds


@every_source
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_repeated_action_sums_its_rewards_and_stops_at_the_end(source: str, times: int) -> None:
    script = Script(6, longest=7)
    makers = [lambda env=env: ActionRepeat(ChainEnv(env, script), times) for env in ENV_INDICES]
    slab = play(SOURCES[source](makers, ENV_INDICES, seed_of), ENV_INDICES, N_ROWS)
    for env_index, stream in zip(ENV_INDICES, streams_of([slab]), strict=True):
        for transition in stream:
            _, episode, step = (int(x) for x in transition.obs)
            ending = script(env_index, episode)
            taken = range(step, min(step + times, ending.length))
            assert transition.reward == sum(reward_of(env_index, episode, s, transition.action) for s in taken)
            is_last = step + times >= ending.length
            assert transition.terminated == (is_last and ending.terminated)
            assert transition.truncated == (is_last and ending.truncated)


@pytest.mark.parametrize("source", ["serial", "disabled"])
def test_where_we_reset_every_episode_gets_its_own_leaf_of_the_seed_tree(source: str) -> None:
    envs, chains = chain_envs(source, ENV_INDICES, Script(8))
    play(envs, ENV_INDICES, N_ROWS)
    for env_index, chain in zip(ENV_INDICES, chains, strict=True):
        assert len(chain.reset_seeds) > 3
        assert chain.reset_seeds == [seed_of(env_index, episode) for episode in range(len(chain.reset_seeds))]


@pytest.mark.parametrize("source", ["next_step", "same_step"])
def test_a_pool_that_resets_itself_is_seeded_once_for_each_environment(source: str) -> None:
    envs, chains = chain_envs(source, ENV_INDICES, Script(8))
    play(envs, ENV_INDICES, N_ROWS)
    for env_index, chain in zip(ENV_INDICES, chains, strict=True):
        assert chain.reset_seeds[0] == seed_of(env_index, 0)
        assert set(chain.reset_seeds[1:]) == {None}


@pytest.mark.parametrize("source", [source for source in SOURCES if source != "serial"])
def test_a_pool_refuses_to_go_back_into_an_episode_by_name(source: str) -> None:
    envs, _ = chain_envs(source, ENV_INDICES, Script())
    live = [LiveEpisode(env, 0, seed_of(env, 0), np.zeros(0, np.int64), 0) for env in ENV_INDICES]
    with pytest.raises(ReplayError, match="SyncVectorEnv is class B"):
        envs.restore(live, {"obs": np.zeros((len(ENV_INDICES), 3), np.float32)})


# ------------------------------------------------------------------------------------------------------------- failures


class Misbehaving(ChainEnv):
    """Plays the script until it is told to misbehave in one call."""

    def __init__(self, env_index: int, where: str, how: Callable[[], Any], obs_dtype: str = "float32") -> None:
        super().__init__(env_index, Script(seed=1, longest=4))
        self._where, self._how = where, how
        if obs_dtype == "uint8":
            self.observation_space = spaces.Box(0, 255, (3,), np.uint8)
        elif obs_dtype == "discrete":
            self.observation_space = spaces.Discrete(1000)
        self._dtype = obs_dtype
        self._calls = 0

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        is_first = len(self.reset_seeds) == 1
        if self._where == ("first reset" if is_first else "later reset"):
            return self._how(), info
        return self._seen_as(obs), info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        self._calls += 1
        if self._calls == 3 and self._where == "obs":
            return self._how(), reward, terminated, truncated, info
        if self._calls == 3 and self._where == "reward":
            return self._seen_as(obs), self._how(), terminated, truncated, info
        if self._calls == 3 and self._where == "step":
            return self._how()
        return self._seen_as(obs), reward, terminated, truncated, info

    def _seen_as(self, obs: Any) -> Any:
        return int(obs[2]) if self._dtype == "discrete" else obs.astype(self._dtype)


def boom() -> Any:
    raise RuntimeError("boom")


BAD = 2  # the position of the one that misbehaves

FAILURES: dict[str, tuple[str, Callable[[], Any], str, str]] = {
    # name: where, what happens there, dtype of observations, what the message says
    "raises in the first reset": ("first reset", boom, "float32", "boom"),
    "raises in a later reset": ("later reset", boom, "float32", "boom"),
    "raises in step": ("step", boom, "float32", "boom"),
    "returns too few things": (
        "step",
        lambda: (np.zeros(3, np.float32), 0.0, False),
        "float32",
        "returned 3 values, expected 5 (obs, reward",
    ),
    "other shape": ("obs", lambda: np.zeros(4, np.float32), "float32", "shape"),
    "other shape in the first reset": ("first reset", lambda: np.zeros((1, 3), np.float32), "float32", "shape"),
    "other shape in a later reset": ("later reset", lambda: np.zeros(2, np.float32), "float32", "shape"),
    "other dtype": ("obs", lambda: np.zeros(3, np.float32), "uint8", "dtype"),
    "other dtype in a later reset": ("later reset", lambda: np.zeros(3, np.float64), "uint8", "dtype"),
    "a fraction where a choice was declared": ("obs", lambda: 1.5, "discrete", "dtype"),
    "a word as reward": ("reward", lambda: "plenty", "float32", "number"),
    "a dict as reward": ("reward", dict, "float32", "number"),
    "an array as reward": ("reward", lambda: np.ones(2), "float32", "number"),
    "a complex reward": ("reward", lambda: 1 + 2j, "float32", "number"),
}


def misbehaving(source: str, name: str) -> VectorEnv:
    where, how, dtype, _ = FAILURES[name]
    makers = [
        lambda b=b: Misbehaving(ENV_INDICES[b], where if b == BAD else "nowhere", how, dtype)
        for b in range(len(ENV_INDICES))
    ]
    return SOURCES[source](makers, ENV_INDICES, seed_of)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_names_the_environment_and_what_it_did(name: str) -> None:
    envs = misbehaving("serial", name)
    with pytest.raises(EnvFailure) as caught:
        play(envs, ENV_INDICES, N_ROWS)
    assert caught.value.position == BAD
    assert FAILURES[name][3] in caught.value.reason


@pytest.mark.parametrize("source", [source for source in SOURCES if source != "serial"])
def test_a_failure_inside_a_pool_is_an_env_failure_too(source: str) -> None:
    """Which of its environments it was, a pool does not say."""
    unnoticed = []
    for name in FAILURES:
        try:
            play(misbehaving(source, name), ENV_INDICES, N_ROWS)
        except EnvFailure:
            continue
        unnoticed.append(name)
    # Of these a pool makes numbers, with some versions of NumPy and Gymnasium.
    assert set(unnoticed) <= {"a fraction where a choice was declared", "a complex reward"}


@every_source
@pytest.mark.parametrize("name", ["raises in the first reset", "raises in a later reset", "raises in step"])
def test_the_actor_names_episode_seed_and_step(source: str, name: str) -> None:
    with pytest.raises(EnvError, match="boom") as caught:
        filled_slabs(misbehaving(source, name), ENV_INDICES, N_ROWS, count=1)
    if source == "serial":
        env_index, message = ENV_INDICES[BAD], str(caught.value)
        assert message.startswith(f"env {env_index}, episode {env_index}:")
        assert any(f"seed {seed_of(env_index, episode)}," in message for episode in range(3))


@every_source
def test_close_closes_every_environment(source: str) -> None:
    envs, chains = chain_envs(source, ENV_INDICES, Script())
    closed: list[int] = []
    for b, chain in enumerate(chains):
        chain.close = lambda b=b: closed.append(b)  # type: ignore[method-assign, misc]
    envs.close()
    assert sorted(closed) == list(range(len(ENV_INDICES)))


def test_close_reaches_every_environment_even_if_one_raises() -> None:
    envs, chains = chain_envs("serial", ENV_INDICES, Script())
    closed: list[int] = []
    for b, chain in enumerate(chains):
        chain.close = lambda b=b: boom() if b == 1 else closed.append(b)  # type: ignore[method-assign, misc]
    with pytest.raises(EnvError, match=f"env {ENV_INDICES[1]}: could not be closed: RuntimeError: boom"):
        envs.close()
    assert closed == [0, 2, 3]


def test_what_was_made_before_a_maker_raised_is_closed() -> None:
    closed: list[int] = []
    chain = ChainEnv(0, Script())
    chain.close = lambda: closed.append(0)  # type: ignore[method-assign]
    makers: Iterator[Callable[[], Any]] = iter([lambda: chain, boom])
    with pytest.raises(RuntimeError, match="boom"):
        SerialEnvs(lambda: next(makers)(), range(2), seed_of)
    assert closed == [0]


def test_a_pool_that_does_not_say_how_it_resets_is_refused() -> None:
    pool = SyncVectorEnv([lambda: ChainEnv(0, Script())], autoreset_mode=AutoresetMode.SAME_STEP)
    pool.metadata = {}
    with pytest.raises(EnvError, match="autoreset_mode"):
        GymnasiumVector(pool, range(1), seed_of)


def test_a_same_step_pool_without_final_observations_is_refused() -> None:
    pool = SyncVectorEnv(
        [lambda env=env: ChainEnv(env, Script(3)) for env in ENV_INDICES],  # type: ignore[misc]
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    step = pool.step
    pool.step = lambda actions: (*step(actions)[:4], {})  # type: ignore[method-assign]
    with pytest.raises(EnvFailure, match="final_obs"):
        play(GymnasiumVector(pool, ENV_INDICES, seed_of), ENV_INDICES, N_ROWS)
