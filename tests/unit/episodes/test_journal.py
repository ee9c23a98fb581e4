"""The journal: the actions of live episodes, from committed slabs; and environments brought back from it."""

from __future__ import annotations

import json
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

from headrace.envs.serial import SerialEnvs
from headrace.envs.vector_env import EnvFailure, LiveEpisode
from headrace.episodes.journal import Journal
from headrace.episodes.standing import Standing, live_episodes, restore, snapshot, standing
from headrace.errors import ReplayError
from headrace.memory.schema import rollout_schema
from headrace.memory.slab import Slab
from headrace.memory.spaces import Box, Discrete, Leaves, Space
from support.bit_envs import Noisy
from support.chains import seed_of
from support.generators import Flags, flags, quick, seeds, thorough
from support.oracles import SlowEnv
from support.slabs import VECTOR, Array, act_by_noise, filled_slabs, heap_slab, noise_actor, slab_for

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
    journal = Journal(B, seed_of, VECTOR, space)
    edges = sorted({0, T, *(cut % T for cut in cuts)})
    for start, stop in pairwise(edges):
        for shard in (range(B // 2), range(B // 2, B)):
            if len(shard):
                slab = slab_of(space, rows.rows(start, stop), actions[start:stop], shard)
                journal.enter(shard, slab)
                slab.poison()
    return journal


def slab_of(space: Space, rows: Flags, actions: Array, shard: range, seed: int = 0) -> Slab:
    """Some rows of some environments, as an actor commits them; the observations after them are random."""
    part, rng = slice(shard.start, shard.stop), np.random.default_rng(seed)
    slab = heap_slab(rollout_schema(VECTOR, space, len(actions), len(shard)))
    slab.action[:], slab.reward[:] = actions[:, part], 1.0
    slab.terminated[:], slab.truncated[:], slab.valid[:] = (flag[:, part] for flag in rows)
    slab.last_obs["obs"][:] = rng.normal(size=(len(shard), 3))
    slab.noise_counter[:] = rng.integers(0, 1000, len(shard))
    return slab


def through_json(journal: Journal) -> tuple[dict[str, Any], dict[str, Array]]:
    """As a checkpoint keeps it."""
    state, arrays = snapshot(journal)
    return json.loads(json.dumps(state, allow_nan=False)), arrays


def live_slowly(space: Space, rows: Flags, actions: Array) -> list[SlowEnv]:
    T, B = rows.shape
    lives = [SlowEnv(b) for b in range(B)]
    for t in range(T):
        for b, life in enumerate(lives):
            life.live_through(actions[t, b], 0.0, *(flag[t, b] for flag in rows))
    return lives


def assert_same_lives(live: list[LiveEpisode], wanted: list[SlowEnv]) -> None:
    for got, life in zip(live, wanted, strict=True):
        assert (got.env_index, got.episode) == (life.env_index, life.episode)
        assert got.seed == seed_of(life.env_index, life.episode)
        assert len(got.actions) == life.step
        assert [action.tolist() for action in got.actions] == [action.tolist() for action in life.actions]


@thorough
@given(flags(max_steps=20, max_envs=5), st.sampled_from(ACTION_SPACES), seeds, st.lists(st.integers(0, 19), max_size=4))
def test_it_holds_the_live_episodes_actions_as_slabs_do(rows: Flags, space: Space, seed: int, cuts: list[int]) -> None:
    actions = actions_in(space, rows.shape, seed)
    journal = journalled(space, rows, actions, cuts)
    assert_same_lives(live_episodes(journal, range(rows.shape[1])), live_slowly(space, rows, actions))


@quick
@given(flags(max_steps=20, max_envs=5), st.sampled_from(ACTION_SPACES), seeds, st.integers(1, 19))
def test_a_restored_journal_goes_on_as_if_nothing_had_happened(rows: Flags, space: Space, seed: int, cut: int) -> None:
    T, B = rows.shape
    cut, actions = cut % T, actions_in(space, rows.shape, seed)
    first = journalled(space, rows.rows(0, cut), actions[:cut], []) if cut else Journal(B, seed_of, VECTOR, space)
    restored = Journal(B, seed_of, VECTOR, space)
    restore(restored, *through_json(first))
    restored.enter(range(B), slab_of(space, rows.rows(cut, T), actions[cut:], range(B)))
    assert_same_lives(live_episodes(restored, range(B)), live_slowly(space, rows, actions))


def test_a_new_journal_has_episode_0_without_actions_everywhere() -> None:
    live = live_episodes(Journal(3, seed_of, VECTOR, Discrete(2)), range(1, 3))
    assert [(one.env_index, one.episode, len(one.actions)) for one in live] == [(1, 0, 0), (2, 0, 0)]


# ------------------------------------------------------------------------------------------------ where a shard stands


def numbers_of(where: Standing | None) -> Any:
    """All of it, to compare."""
    if where is None:
        return None
    live = [(one.env_index, one.episode, one.seed, one.actions.tolist()) for one in where.live]
    return live, where.last_obs["obs"].tolist(), where.noise_counter.tolist()


@thorough
@given(flags(max_steps=20, max_envs=5), st.sampled_from(ACTION_SPACES), seeds, st.lists(st.integers(0, 19), max_size=4))
def test_a_shard_stands_after_the_slabs_that_wait_for_a_batch(
    rows: Flags, space: Space, seed: int, cuts: list[int]
) -> None:
    """Whether the journal has entered them or they still wait; those that wait are not entered by the question."""
    (T, B), actions = rows.shape, actions_in(space, rows.shape, seed)
    edges = sorted({0, T, *(cut % T for cut in cuts)})
    shard = range(B // 2, B)
    slabs = [slab_of(space, rows.rows(a, b), actions[a:b], shard, seed + a) for a, b in pairwise(edges)]
    journal = Journal(B, seed_of, VECTOR, space)
    assert standing(journal, shard) is None, "at its beginning"
    wanted = []
    for entered in range(len(slabs) + 1):
        before = numbers_of(standing(journal, shard))
        wanted.append(numbers_of(standing(journal, shard, slabs[entered:])))
        assert numbers_of(standing(journal, shard)) == before
        if entered < len(slabs):
            journal.enter(shard, slabs[entered])
    assert all(one == wanted[0] for one in wanted)
    live, last_obs, noise_counter = wanted[0]
    assert [len(one[3]) for one in live] == [life.step for life in live_slowly(space, rows, actions)[B // 2 :]]
    assert last_obs == slabs[-1].last_obs["obs"].tolist()
    assert noise_counter == slabs[-1].noise_counter.tolist()
    assert B // 2 == 0 or standing(journal, range(B // 2)) is None, "another shard has not begun"


def test_what_is_done_to_a_standing_does_not_change_the_journal() -> None:
    rows = Flags(*(np.zeros((3, 2), np.bool_) for _ in range(2)), np.ones((3, 2), np.bool_))
    journal = journalled(Discrete(5), rows, actions_in(Discrete(5), (3, 2), 0), [])
    where, before = standing(journal, range(2)), numbers_of(standing(journal, range(2)))
    assert where is not None
    for one in where.live:
        one.actions.fill(77)
    where.last_obs["obs"].fill(77)
    where.noise_counter.fill(77)
    assert numbers_of(standing(journal, range(2))) == before


def test_a_journal_that_goes_back_to_the_beginning_forgets_everything() -> None:
    rows = Flags(np.array([[True], [False]]), np.zeros((2, 1), np.bool_), np.ones((2, 1), np.bool_))
    journal = Journal(1, seed_of, VECTOR, Discrete(5))
    beginning = through_json(journal)
    journal.enter(range(1), slab_of(Discrete(5), rows, actions_in(Discrete(5), (2, 1), 0), range(1)))
    assert numbers_of(standing(journal, range(1))) is not None
    restore(journal, *beginning)
    assert standing(journal, range(1)) is None
    assert [(one.episode, len(one.actions)) for one in live_episodes(journal, range(1))] == [(0, 0)]


def test_an_environment_that_has_not_begun_starts_where_others_go_on() -> None:
    """Updates that take the first rollouts that come may leave a shard out; a resume may deal its environments anew."""
    envs, begun = serial("np_random"), range(ENV_INDICES.start, ENV_INDICES.start + 2)
    spaces = envs.observation_space, envs.action_space
    journal, restored = (Journal(ENV_INDICES.stop, seed_of, *spaces) for _ in range(2))
    journal.enter(begun, filled_slabs(SerialEnvs(Counting, begun, seed_of), begun, 11, count=1)[0])
    restore(restored, *through_json(journal))
    assert standing(restored, range(begun.stop, ENV_INDICES.stop)) is None
    where = standing(restored, ENV_INDICES)
    assert where is not None
    assert [one.is_at_start for one in where.live] == [False] * 2 + [True] * 3
    actor, first = noise_actor(envs, ENV_INDICES, standing=where), empty_like(where.last_obs)
    serial("np_random").begin(first)
    slab = slab_for(envs, 1)
    actor.fill(slab, act_by_noise(0))
    assert slab.obs["obs"][0, :2].tolist() == where.last_obs["obs"][:2].tolist()
    assert slab.obs["obs"][0, 2:].tolist() == first["obs"][2:].tolist()
    assert slab.episode[0, 2:].tolist() == slab.step[0, 2:].tolist() == [0, 0, 0]


def test_a_snapshot_of_another_seed_is_refused() -> None:
    rows = Flags(np.zeros((2, 1), np.bool_), np.zeros((2, 1), np.bool_), np.ones((2, 1), np.bool_))
    state, arrays = through_json(journalled(Discrete(5), rows, actions_in(Discrete(5), (2, 1), 0), []))
    other = Journal(1, lambda env, episode: 1 + seed_of(env, episode), VECTOR, Discrete(5))
    with pytest.raises(ReplayError, match=r"env 0, episode 0:0: .*another seed"):
        restore(other, state, arrays)


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
    journal = Journal(ENV_INDICES.stop, seed_of, envs.observation_space, envs.action_space)
    for slab in slabs:
        journal.enter(ENV_INDICES, slab)
    return envs, slabs[-1], live_episodes(journal, ENV_INDICES)


def empty_like(leaves: Leaves) -> Leaves:
    return {name: np.empty_like(leaf) for name, leaf in leaves.items()}


def what_follows(envs: SerialEnvs, n_rows: int = 30) -> Slab:
    """The next rows under fixed actions."""
    slab = slab_for(envs, n_rows)
    for t, row in enumerate(slab.rows):
        row.action[:] = (np.arange(envs.num_envs) + t) % 4
        envs.step(row, partial(slab.record_final, t))
    return slab


@every_environment
def test_replayed_environments_go_on_as_the_first_ones_do(name: str) -> None:
    envs, last, live = lived(name)
    assert any(one.episode > 0 for one in live)
    assert any(len(one.actions) > 0 for one in live)
    again, first = serial(name), empty_like(last.last_obs)
    again.restore(live, first)
    assert first["obs"].tobytes() == last.last_obs["obs"].tobytes()
    ours, theirs = what_follows(envs), what_follows(again)
    for field in ("reward", "terminated", "truncated", "last_obs", "episode", "step"):
        assert ours.arrays[field].tobytes() == theirs.arrays[field].tobytes(), field
    assert ours.obs["obs"][1:].tobytes() == theirs.obs["obs"][1:].tobytes()
    assert (ours.terminated | ours.truncated).any(), "the comparison reaches into later episodes"
    envs.close()
    again.close()


class Told(Noisy):
    """Noisy that keeps what it is sent, under some action space."""

    def __init__(self, action_space: gym.Space[Any]) -> None:
        super().__init__()
        self.action_space = action_space
        self.sent: list[Any] = []

    def reset(self, **options: Any) -> Any:
        self.sent = []
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self.sent.append(np.array(action))
        return super().step(0)


@pytest.mark.parametrize(
    "space",
    [gym.spaces.Discrete(4, start=3), gym.spaces.Box(-0.1, 0.2, (2,)), gym.spaces.MultiDiscrete([3, 3], start=[1, 5])],
    ids=["shifted", "clipped", "shifted, several"],
)
def test_a_replay_sends_what_the_first_play_sent(space: gym.Space[Any]) -> None:
    """Choices from their start on, numbers within their bounds; the journal holds them as slabs do."""
    rng, envs = np.random.default_rng(0), SerialEnvs(lambda: Told(space), range(3), seed_of)
    slab, journal = slab_for(envs, 7), Journal(3, seed_of, envs.observation_space, envs.action_space)
    envs.begin(slab.rows[0].obs)
    for t, row in enumerate(slab.rows):
        row.action[:] = rng.integers(0, 3, row.action.shape) if row.action.dtype.kind == "i" else rng.normal()
        envs.step(row, partial(slab.record_final, t))
    slab.noise_counter.fill(7)
    journal.enter(range(3), slab)
    again = SerialEnvs(lambda: Told(space), range(3), seed_of)
    again.restore(live_episodes(journal, range(3)), empty_like(slab.last_obs))
    for ours, theirs in zip(envs._envs, again._envs, strict=True):
        assert [one.tolist() for one in theirs.sent] == [one.tolist() for one in ours.sent]  # type: ignore[attr-defined]
        assert all(space.contains(one.astype(space.dtype)) for one in ours.sent)  # type: ignore[attr-defined]
    assert any(one.sent for one in envs._envs)  # type: ignore[attr-defined]


def longest(live: list[LiveEpisode]) -> int:
    return max(range(len(live)), key=lambda b: len(live[b].actions))


@every_environment
def test_a_dropped_action_is_caught(name: str) -> None:
    envs, last, live = lived(name)
    b = longest(live)
    live[b] = replace(live[b], actions=live[b].actions[1:])
    again = serial(name)
    with pytest.raises(ReplayError, match=f"env {ENV_INDICES[b]}, episode {ENV_INDICES[b]}:{live[b].episode}"):
        noise_actor(again, ENV_INDICES, standing=Standing(live, last.last_obs, last.noise_counter))
    envs.close()
    again.close()


def test_a_journal_of_another_seed_is_refused() -> None:
    _, last, live = lived("np_random", n_slabs=1)
    live[1] = replace(live[1], seed=live[1].seed + 1)
    with pytest.raises(ReplayError, match=f"env {ENV_INDICES[1]}.*another seed"):
        serial("np_random").restore(live, empty_like(last.last_obs))


def test_an_episode_that_ends_before_its_journal_does_is_refused() -> None:
    _, last, live = lived("np_random")
    b = longest(live)
    live[b] = replace(live[b], actions=np.tile(live[b].actions, 100))
    with pytest.raises(ReplayError, match=r"ended at step \d+ of \d+ journalled"):
        serial("np_random").restore(live, empty_like(last.last_obs))


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
        SerialEnvs(make, ENV_INDICES, seed_of).restore(live, empty_like(last.last_obs))
    assert caught.value.position == bad
