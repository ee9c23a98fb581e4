"""Episode statistics: accumulated over slabs as if row by row, and carried through JSON to the last bit."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given

from headrace.episodes.finished import Finished
from headrace.episodes.journal import Journal, in_order
from headrace.episodes.standing import restore, snapshot
from headrace.memory.slab import Slab
from support.chains import seed_of
from support.generators import Flags, flags, floats_like, quick, seeds, thorough
from support.oracles import SlowEnv
from support.slabs import CHOICE, VECTOR, Array, heap_slab, small_schema


def episodes_of(rows: Flags) -> Array:
    """The episode number of every row, counted one by one."""
    lives, episode = [SlowEnv(b) for b in range(rows.shape[1])], np.empty(rows.shape, np.int64)
    for t, b in np.ndindex(rows.shape):
        (episode[t, b], _), _ = lives[b].live_through(None, 0.0, *(flag[t, b] for flag in rows))
    return episode


def batches_of(rows: Flags, reward: Array, n_batches: int = 3) -> list[tuple[Array, Flags, Array]]:
    """Rewards, flags and episode numbers, cut into consecutive batches."""
    episode = episodes_of(rows)
    edges = np.linspace(0, rows.shape[0], n_batches + 1).astype(int)
    return [(reward[a:b], rows.rows(a, b), episode[a:b]) for a, b in pairwise(edges) if a < b]


def journal_of(n_envs: int) -> Journal:
    return Journal(n_envs, seed_of, VECTOR, CHOICE, window=5)


def add(journal: Journal, batches: list[tuple[Array, Flags, Array]]) -> list[Finished]:
    """One slab of all environments after the other."""
    return [one for batch in batches for one in add_slabs(journal, [slab_of(*batch, range(batch[0].shape[1]))])]


def add_slabs(journal: Journal, slabs: list[tuple[range, Slab]]) -> list[Finished]:
    """Slabs of one batch."""
    ended = in_order([journal.enter(shard, slab) for shard, slab in slabs])
    journal.results.count(ended)
    return ended


def finished_slowly(batches: list[tuple[Array, Flags, Array]], n_envs: int) -> list[Finished]:
    lives, done = [SlowEnv(b) for b in range(n_envs)], []
    for reward, rows, _ in batches:
        for t in range(len(reward)):
            for b, life in enumerate(lives):
                _, finished = life.live_through(None, reward[t, b], *(flag[t, b] for flag in rows))
                done += [finished] if finished else []
    return done


@thorough
@given(flags(), seeds)
def test_episodes_are_told_as_if_counted_one_by_one(rows: Flags, seed: int) -> None:
    journal = journal_of(rows.shape[1])
    reward = np.random.default_rng(seed).integers(-9999, 9999, rows.shape) / 64  # sums are exact in any order
    batches = batches_of(rows, reward.astype(np.float32))
    wanted = finished_slowly(batches, rows.shape[1])
    assert add(journal, batches) == wanted, "ordered by row, then by environment"
    assert journal.results.episodes == len(wanted)
    assert [*journal.results.recent] == [(one.total_reward, one.length) for one in wanted[-5:]]


@quick
@given(flags(max_steps=20), seeds)
def test_it_goes_on_from_json_bit_for_bit(rows: Flags, seed: int) -> None:
    n_envs, batches = rows.shape[1], batches_of(rows, floats_like(np.random.default_rng(seed), rows.shape))
    straight, before, resumed = (journal_of(n_envs) for _ in range(3))
    add(straight, batches[:1])
    add(before, batches[:1])
    state, arrays = snapshot(before)
    restore(resumed, json.loads(json.dumps(state, allow_nan=False)), arrays)
    assert snapshot(resumed)[0] == snapshot(before)[0]
    assert add(resumed, batches[1:]) == add(straight, batches[1:])
    assert snapshot(resumed)[0] == snapshot(straight)[0]
    assert resumed.results.recent == straight.results.recent


@thorough
@given(flags(max_steps=20, max_envs=5), seeds)
def test_slabs_of_shards_are_taken_in_together(rows: Flags, seed: int) -> None:
    """A batch may hold two slabs of one shard and none of another: each environment's rows follow one another."""
    (T, B), rng = rows.shape, np.random.default_rng(seed)
    n_steps = int(rng.integers(1, T + 1))
    T = T // n_steps * n_steps
    rows = rows.rows(0, T)
    reward, episode = rng.integers(-99, 99, rows.shape).astype(np.float32), episodes_of(rows)
    shards = [shard for shard in (range(B // 2), range(B // 2, B)) if len(shard)]
    starts = range(0, T, n_steps)
    parts = [(reward[a : a + n_steps], rows.rows(a, a + n_steps), episode[a : a + n_steps]) for a in starts]
    slabs = [slab_of(*part, shard) for shard in shards for part in parts]
    journal, finished = journal_of(B), []
    while slabs:  # some at a time, of each shard the earliest
        count = int(rng.integers(1, 4))
        taken, slabs = slabs[:count], slabs[count:]
        finished += add_slabs(journal, taken)
    wanted = finished_slowly([(reward, rows, episode)], B)

    def by_episode(one: Finished) -> tuple[int, int]:
        return one.env_index, one.episode

    assert sorted(finished, key=by_episode) == sorted(wanted, key=by_episode)


def test_slabs_of_one_row_range_are_told_by_row_then_environment() -> None:
    """In the order in which one slab of all environments would tell them, whatever order the slabs come in."""
    ended = np.array([[False, True, True], [True, False, True]])
    rows = Flags(ended, np.zeros_like(ended), np.ones_like(ended))
    reward, episode = np.ones(rows.shape, np.float32), episodes_of(rows)
    told = add_slabs(journal_of(3), [slab_of(reward, rows, episode, shard) for shard in (range(2, 3), range(2))])
    assert told == add(journal_of(3), [(reward, rows, episode)])
    assert [one.env_index for one in told] == [1, 2, 0, 2]


def test_a_return_has_the_same_bits_whoever_shares_its_slab() -> None:
    """Rewards of all sizes, so that their sum depends on its order; an environment alone in its shard or not."""
    rng, shape = np.random.default_rng(0), (200, 3)
    reward = (rng.normal(size=shape) * 10.0 ** rng.uniform(-12, 12, shape)).astype(np.float32)
    no, episode = np.zeros(shape, np.bool_), np.zeros(shape, np.int64)
    ended = no.copy()
    ended[[70, 150], [0, 2]] = True
    together, alone, batch = journal_of(3), journal_of(3), (reward, Flags(ended, no, ~no), episode)
    for _ in range(2):
        assert add_slabs(alone, [slab_of(*batch, range(env, env + 1)) for env in range(3)]) == add(together, [batch])
        assert snapshot(alone)[0] == snapshot(together)[0]


def slab_of(reward: Array, rows: Flags, episode: Array, shard: range) -> tuple[range, Slab]:
    """A shard's part of some rows."""
    columns = slice(shard.start, shard.stop)
    slab = heap_slab(small_schema(len(reward), len(shard)))
    slab.reward[:], slab.episode[:], slab.action[:] = reward[:, columns], episode[:, columns], 0
    slab.terminated[:], slab.truncated[:], slab.valid[:] = (flag[:, columns] for flag in rows)
    return shard, slab


def test_both_flags_count_as_terminated() -> None:
    one: Any = np.ones((1, 1), np.bool_)
    (finished,) = add(journal_of(1), [(np.array([[2.5]], np.float32), Flags(one, one, one), np.array([[7]]))])
    assert finished == Finished(env_index=0, episode=7, total_reward=2.5, length=1, terminated=True)


def test_the_reward_of_an_invalid_row_does_not_count_even_if_it_is_poison() -> None:
    no, valid = np.zeros((3, 1), np.bool_), np.array([[True], [False], [True]])
    ended, reward = np.array([[False], [False], [True]]), np.array([[1.0], [np.nan], [2.0]], np.float32)
    (finished,) = add(journal_of(1), [(reward, Flags(ended, no, valid), np.zeros((3, 1)))])
    assert (finished.total_reward, finished.length) == (3.0, 2)
