"""The checksum of an episode: what it depends on, and that nothing of an episode can change without it.

Compared with slow code of its own, one Python number at a time; cut into slabs and shards anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.memory.checksum import begin, extend
from headrace.memory.schema import rollout_schema
from headrace.memory.slab import Slab
from headrace.memory.spaces import Box, Discrete, Space
from support.generators import Flags, flags, quick, seeds, spaces, thorough
from support.slabs import Array, heap_slab

MASK = (1 << 64) - 1
IMAGE = Box((7, 7, 3), "uint8", (0.0,), (255.0,))  # no whole number of words


def slow_mix(state: int, word: int) -> int:
    state = ((state ^ word) * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) & MASK
    return state ^ (state >> 32)


def slow_digest(state: int, data: bytes) -> int:
    width = next(width for width in (8, 4, 1) if len(data) % width == 0)
    words = [int.from_bytes(data[i : i + width], "little") for i in range(0, len(data), width)]
    if len(words) >= 16:
        lanes = [state, state + 0x9E3779B97F4A7C15, state ^ 0x9E3779B97F4A7C15, state + 0xD1B54A32D192ED03]
        lanes = [lane & MASK for lane in lanes]
        while len(words) >= 4:
            lanes = [slow_mix(lane, word) for lane, word in zip(lanes, words, strict=False)]
            words = words[4:]
        state = lanes[0]
        for lane in lanes[1:]:
            state = slow_mix(state, lane)
    for word in words:
        state = slow_mix(state, word)
    return state


def slow_begin(env: int, episode: int) -> int:
    return slow_mix(slow_mix(0xD1B54A32D192ED03, env), episode)


def random_slab(observation: Space, action: Space, rows: Flags, seed: int) -> Slab:
    """Rows as an actor leaves them; every byte of observations and actions may be anything."""
    (T, B), rng = rows.shape, np.random.default_rng(seed)
    slab = heap_slab(rollout_schema(observation, action, T, B))
    for array in (slab.obs["obs"], slab.action, slab.reward):
        array.reshape(-1).view(np.uint8)[:] = rng.integers(0, 256, array.nbytes)
    slab.terminated[:], slab.truncated[:], slab.valid[:] = rows
    ended = (rows.terminated | rows.truncated) & rows.valid
    slab.episode[:] = np.cumsum(ended, 0) - ended
    for t, b in np.argwhere(rows.truncated & ~rows.terminated & rows.valid):
        bits = rng.integers(0, 256, slab.obs["obs"][0, 0].nbytes, np.uint8)
        slab.record_final(int(t), int(b), {"obs": bits.view(slab.obs["obs"].dtype).reshape(slab.obs["obs"].shape[2:])})
    return slab


def part_of(slab: Slab, rows: range, envs: range) -> Slab:
    """Some rows of some environments of an IMAGE slab, as a slab of their own."""
    part = heap_slab(rollout_schema(IMAGE, Discrete(3), len(rows), len(envs)))
    for field in slab.schema.fields:
        if field.axes == "TB":
            part.arrays[field.name][:] = slab.arrays[field.name][rows.start : rows.stop, envs.start : envs.stop]
    for row, obs in zip(slab.final_row, slab.final_obs["obs"], strict=True):
        t, b = divmod(int(row), slab.schema.n_envs)
        if t in rows and b in envs:
            part.record_final(t - rows.start, b - envs.start, {"obs": obs})
    return part


def sums(slab: Slab, env_start: int = 0) -> Array:
    """The checksum after every row, from the beginning of every environment's first episode."""
    start = np.array([begin(env_start + b, 0) for b in range(slab.schema.n_envs)], np.uint64)
    return extend(start, env_start, slab)


def slow_sums(slab: Slab) -> list[list[int]]:
    finals = {int(row): obs for row, obs in zip(slab.final_row, slab.final_obs["obs"], strict=True)}
    T, B = slab.reward.shape
    after = [[0] * B for _ in range(T)]
    for b in range(B):
        state = slow_begin(b, 0)
        for t in range(T):
            if slab.valid[t, b]:
                digest = slow_digest(1, slab.obs["obs"][t, b].tobytes())
                digest = slow_digest(digest, slab.action[t, b].tobytes())
                if t * B + b in finals:
                    digest ^= slow_digest(2, finals[t * B + b].tobytes())
                flags = int(slab.terminated[t, b]) + 2 * int(slab.truncated[t, b])
                word = int.from_bytes(slab.reward[t, b].tobytes(), "little") | flags << 32
                state = slow_mix(state, slow_mix(digest, word))
            after[t][b] = state
            if slab.valid[t, b] and (slab.terminated[t, b] or slab.truncated[t, b]):
                state = slow_begin(b, int(slab.episode[t, b]) + 1)
    return after


@quick
@given(spaces, spaces, flags(max_steps=8), seeds)
def test_it_is_what_slow_code_says(observation: Space, action: Space, rows: Flags, seed: int) -> None:
    slab = random_slab(observation, action, rows, seed)
    assert sums(slab).tolist() == slow_sums(slab)


@pytest.mark.parametrize("shape", [(4,), (5, 5), (7, 7, 3), (8, 8, 2), (33,)], ids=str)
def test_long_rows_are_what_slow_code_says(shape: tuple[int, ...]) -> None:
    """Rows of more than 16 words go through four lanes."""
    rows = Flags(*np.array([[[0, 0], [1, 0]], [[0, 1], [0, 0]], [[1, 1], [1, 1]]], np.bool_))
    for dtype in ("uint8", "float32", "float64"):
        slab = random_slab(Box(shape, dtype, (0.0,), (1.0,)), Discrete(4), rows, 1)
        assert sums(slab).tolist() == slow_sums(slab)


@thorough
@given(flags(max_steps=12), seeds, st.lists(st.integers(1, 11), max_size=3), st.integers(0, 4))
def test_slabs_and_shards_leave_no_trace(rows: Flags, seed: int, cuts: list[int], border: int) -> None:
    slab = random_slab(IMAGE, Discrete(3), rows, seed)
    T, B = rows.shape
    whole = sums(slab)
    edges = sorted({0, T, *(cut for cut in cuts if cut < T)})
    for envs in (range(min(border, B)), range(min(border, B), B)):
        state = np.array([begin(env, 0) for env in envs], np.uint64)
        for start, stop in pairwise(edges):
            if len(envs):
                got = extend(state, envs.start, part_of(slab, range(start, stop), envs))
                assert got.tolist() == whole[start:stop, envs.start : envs.stop].tolist()


def ends_of(slab: Slab, got: Array) -> Array:
    """What counts: the checksums of episodes that ended, and of those that run on."""
    ended = (slab.terminated | slab.truncated) & slab.valid
    ended[-1] = True
    return np.where(ended, got, 0)


def changes(rng: np.random.Generator) -> dict[str, Callable[[Slab], None]]:
    def flip(array: Array) -> None:
        """One bit of an array, anywhere."""
        bits = array.reshape(-1).view(np.uint8)
        bits[rng.integers(len(bits))] ^= np.uint8(1 << rng.integers(8))

    def swap(array: Array, axis: int) -> None:
        """Two different entries along an axis, in one column or row."""
        first, second = rng.choice(array.shape[axis], 2, replace=False)
        a, b = ((first, 0), (second, 0)) if axis == 0 else ((0, first), (0, second))
        array[a], array[b] = array[b].copy(), array[a].copy()

    def swap_rows(slab: Slab) -> None:
        first, second = rng.choice(slab.schema.n_steps, 2, replace=False)
        for array in (slab.obs["obs"], slab.action, slab.reward):
            array[[first, second], 1] = array[[second, first], 1]

    def swap_envs(slab: Slab) -> None:
        for name in ("obs", "action", "reward", "terminated", "truncated"):
            array = slab.arrays[name]
            array[:, [0, 2]] = array[:, [2, 0]]

    def shift_reward(slab: Slab) -> None:
        """The sum stays what it was."""
        t, b = int(rng.integers(slab.schema.n_steps - 1)), int(rng.integers(slab.schema.n_envs))
        slab.reward[t, b] += 1
        slab.reward[t + 1, b] -= 1

    return {
        "observation": lambda slab: flip(slab.obs["obs"]),
        "action": lambda slab: flip(slab.action),
        "reward": lambda slab: flip(slab.reward),
        "final observation": lambda slab: flip(slab.final_obs["obs"]),
        "terminated for truncated": lambda slab: (
            np.copyto(slab.truncated[-1], True),
            np.copyto(slab.terminated, False),
        ),
        "rewards of two rows": lambda slab: swap(slab.reward, 0),
        "actions of two rows": lambda slab: swap(slab.action, 0),
        "observations of two environments": lambda slab: swap(slab.obs["obs"], 1),
        "two rows": swap_rows,
        "two environments": swap_envs,
        "a reward a step later": shift_reward,
    }


@pytest.mark.parametrize("what", list(changes(np.random.default_rng(0))))
def test_nothing_of_an_episode_changes_without_it(what: str) -> None:
    rng = np.random.default_rng(5)
    rows = Flags(np.zeros((6, 3), np.bool_), np.zeros((6, 3), np.bool_), np.ones((6, 3), np.bool_))
    rows.terminated[-1], rows.truncated[2, 1] = True, True
    for round_ in range(60):
        slab = random_slab(IMAGE if round_ % 2 else Box((3,), "float32", (0.0,), (1.0,)), Discrete(3), rows, round_)
        slab.action[:] = np.arange(18).reshape(6, 3)
        slab.reward[:] = np.arange(18).reshape(6, 3)
        before = ends_of(slab, sums(slab))
        changes(rng)[what](slab)
        after = ends_of(slab, sums(slab))
        assert before.tolist() != after.tolist(), f"{what}, round {round_}"


def test_invalid_rows_leave_no_trace() -> None:
    rows = Flags(*np.zeros((3, 3, 1), np.bool_))
    rows.valid[[0, 2]] = True
    slab = random_slab(IMAGE, Discrete(3), rows, 0)
    before = sums(slab)
    for array in (slab.obs["obs"], slab.action, slab.reward):
        array[1] = 7
    assert sums(slab).tolist() == before.tolist()


def test_no_two_episodes_begin_alike() -> None:
    begun: set[Any] = {begin(env, episode) for env in range(300) for episode in range(300)}
    assert len(begun) == 300 * 300
