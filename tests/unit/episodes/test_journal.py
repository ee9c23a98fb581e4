"""The journal: the actions of live episodes, as sent, from committed slabs; and environments brought back from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.envs.actions import sender
from headrace.envs.serial import SerialEnvs
from headrace.envs.vector_env import EnvFailure, LiveEpisode
from headrace.episodes.journal import Journal
from headrace.errors import ReplayError
from headrace.memory.slab import Slab
from headrace.memory.spaces import Box, Discrete, Space
from support.bit_envs import Noisy
from support.chains import seed_of
from support.generators import Flags, flags, quick, seeds, thorough
from support.oracles import SlowEnv
from support.slabs import Array, filled_slabs, noise_actor, slab_for

ACTION_SPACES: list[Space] = [
    Discrete(5),
    Discrete(5, start=3),
    Box((2,), "float32", (-0.5, -1.0), (0.5, 0.25)),
]


def actions_in(space: Space, shape: tuple[int, int], seed: int) -> Array:
    """As slabs hold them: choices from 0, numbers not clipped."""
    rng = np.random.default_rng(seed)
    if isinstance(space, Discrete):
        return rng.integers(0, space.n, shape)
    return rng.normal(size=(*shape, *space.shape)).astype(np.float32)  # type: ignore[union-attr]


def journalled(space: Space, rows: Flags, actions: Array, cuts: list[int]) -> Journal:
    """A journal that was given the rows in slabs, two shards each; the slabs' memory is reused at once."""
    T, B = rows.shape
    journal = Journal(B, seed_of, sender(space))
    edges = sorted({0, T, *(cut % T for cut in cuts)})
    for start, stop in pairwise(edges):
        for shard in (range(B // 2), range(B // 2, B)):
            part = slice(shard.start, shard.stop)
            action = actions[start:stop, part].copy()
            journal.append(shard, action, *(flag[start:stop, part] for flag in rows))
            action.fill(99)
    return journal


def live_slowly(space: Space, rows: Flags, actions: Array) -> list[SlowEnv]:
    T, B = rows.shape
    sent = sender(space)(actions)
    lives = [SlowEnv(b) for b in range(B)]
    for t in range(T):
        for b, life in enumerate(lives):
            life.live_through(sent[t, b], 0.0, *(flag[t, b] for flag in rows))
    return lives


def assert_same_lives(live: list[LiveEpisode], wanted: list[SlowEnv]) -> None:
    for got, life in zip(live, wanted, strict=True):
        assert (got.env_index, got.episode) == (life.env_index, life.episode)
        assert got.seed == seed_of(life.env_index, life.episode)
        assert len(got.actions) == life.step
        assert [action.tolist() for action in got.actions] == [action.tolist() for action in life.actions]


@thorough
@given(flags(max_steps=20, max_envs=5), st.sampled_from(ACTION_SPACES), seeds, st.lists(st.integers(0, 19), max_size=4))
def test_it_holds_the_live_episodes_actions_as_sent(rows: Flags, space: Space, seed: int, cuts: list[int]) -> None:
    actions = actions_in(space, rows.shape, seed)
    journal = journalled(space, rows, actions, cuts)
    assert_same_lives(journal.live(range(rows.shape[1])), live_slowly(space, rows, actions))


@quick
@given(flags(max_steps=20, max_envs=5), st.sampled_from(ACTION_SPACES), seeds, st.integers(1, 19))
def test_a_restored_journal_goes_on_as_if_nothing_had_happened(rows: Flags, space: Space, seed: int, cut: int) -> None:
    T, B = rows.shape
    cut, actions = cut % T, actions_in(space, rows.shape, seed)
    first = journalled(space, rows.rows(0, cut), actions[:cut], []) if cut else Journal(B, seed_of, sender(space))
    restored = Journal(B, seed_of, sender(space))
    restored.restore(first.live(range(B)))
    restored.append(range(B), actions[cut:], *rows.rows(cut, T))
    assert_same_lives(restored.live(range(B)), live_slowly(space, rows, actions))


def test_a_new_journal_has_episode_0_without_actions_everywhere() -> None:
    live = Journal(3, seed_of, sender(Discrete(2))).live(range(1, 3))
    assert [(one.env_index, one.episode, len(one.actions)) for one in live] == [(1, 0, 0), (2, 0, 0)]


# ------------------------------------------------------------------------------------------- environments brought back


class Counting(Noisy):
    """Noisy with as many actions as the noise of tests has numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Discrete(4)


class FourWayCartPole(gym.ActionWrapper[Any, Any, Any]):
    """CartPole that takes four actions: 0 and 1 push left, 2 and 3 right."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.action_space = gym.spaces.Discrete(4)

    def action(self, action: Any) -> Any:
        return int(action) // 2


ENV_INDICES = range(2, 7)
ENVIRONMENTS: dict[str, Callable[[], gym.Env[Any, Any]]] = {"CartPole": FourWayCartPole, "np_random": Counting}

every_environment = pytest.mark.parametrize("name", ENVIRONMENTS)


def serial(name: str) -> SerialEnvs:
    return SerialEnvs(ENVIRONMENTS[name], ENV_INDICES, seed_of)


def lived(name: str, n_slabs: int = 3) -> tuple[SerialEnvs, Slab, list[LiveEpisode]]:
    """Environments after some slabs, the last slab, and what the journal says of the episodes still running."""
    envs = serial(name)
    slabs = filled_slabs(envs, ENV_INDICES, n_steps=11, count=n_slabs)
    journal = Journal(ENV_INDICES.stop, seed_of, sender(envs.action_space))
    for slab in slabs:
        journal.append(ENV_INDICES, slab.action, slab.terminated, slab.truncated, slab.valid)
    return envs, slabs[-1], journal.live(ENV_INDICES)


def what_follows(envs: SerialEnvs, n_rows: int = 30) -> Slab:
    """The next rows under fixed actions."""
    slab = slab_for(envs, n_rows)
    for t, row in enumerate(slab.rows):
        actions = (np.arange(envs.num_envs) + t) % 4
        envs.step(actions, row, partial(slab.record_final, t))
    return slab


@every_environment
def test_replayed_environments_go_on_as_the_first_ones_do(name: str) -> None:
    envs, last, live = lived(name)
    assert any(one.episode > 0 for one in live)
    assert any(len(one.actions) > 0 for one in live)
    again, first = serial(name), np.empty_like(last.last_obs)
    again.restore(live, first)
    assert first.tobytes() == last.last_obs.tobytes()
    ours, theirs = what_follows(envs), what_follows(again)
    for field in ("reward", "terminated", "truncated", "last_obs"):
        assert ours.arrays[field].tobytes() == theirs.arrays[field].tobytes(), field
    assert ours.obs[1:].tobytes() == theirs.obs[1:].tobytes()
    assert (ours.terminated | ours.truncated).any(), "the comparison reaches into later episodes"
    envs.close()
    again.close()


def longest(live: list[LiveEpisode]) -> int:
    return max(range(len(live)), key=lambda b: len(live[b].actions))


@every_environment
def test_a_dropped_action_is_caught(name: str) -> None:
    envs, last, live = lived(name)
    b = longest(live)
    live[b] = replace(live[b], actions=live[b].actions[1:])
    again = serial(name)
    actor = noise_actor(again, ENV_INDICES)  # type: ignore[arg-type]
    with pytest.raises(ReplayError, match=f"env {ENV_INDICES[b]}, episode {live[b].episode}"):
        actor.restore(live, last.last_obs, last.noise_counter)
    envs.close()
    again.close()


def test_a_journal_of_another_seed_is_refused() -> None:
    _, last, live = lived("np_random", n_slabs=1)
    live[1] = replace(live[1], seed=live[1].seed + 1)
    with pytest.raises(ReplayError, match=f"env {ENV_INDICES[1]}.*another seed"):
        serial("np_random").restore(live, np.empty_like(last.last_obs))


def test_an_episode_that_ends_before_its_journal_does_is_refused() -> None:
    _, last, live = lived("np_random")
    b = longest(live)
    live[b] = replace(live[b], actions=np.tile(live[b].actions, 100))
    with pytest.raises(ReplayError, match=r"ended at step \d+ of \d+ journalled"):
        serial("np_random").restore(live, np.empty_like(last.last_obs))


@pytest.mark.parametrize("method", ["reset", "step"])
def test_an_environment_that_raises_while_it_is_replayed_is_named(method: str) -> None:
    _, last, live = lived("np_random")
    bad = longest(live)
    made: list[gym.Env[Any, Any]] = []

    def boom(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("boom")

    def make() -> gym.Env[Any, Any]:
        env = Counting()
        if len(made) == bad:
            setattr(env, method, boom)
        made.append(env)
        return env

    with pytest.raises(EnvFailure, match="boom") as caught:
        SerialEnvs(make, ENV_INDICES, seed_of).restore(live, np.empty_like(last.last_obs))
    assert caught.value.position == bad
