"""Episode and step numbers of a slab's rows, against counting row by row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.episodes.counting import Counters, number_rows
from support.generators import Flags, flags, quick, seeds, thorough
from support.oracles import SlowEnv
from support.slabs import Array


def counters_before(n_envs: int, seed: int) -> Counters:
    rng = np.random.default_rng(seed)
    return Counters(rng.integers(0, 1000, n_envs), rng.integers(0, 1000, n_envs))


def numbered(rows: Flags, before: Counters) -> tuple[Array, Array, Counters]:
    episode, step = np.empty(rows.shape, np.int64), np.empty(rows.shape, np.int32)
    return episode, step, number_rows(*rows, before, episode, step)


def counted_slowly(rows: Flags, before: Counters) -> tuple[Array, Array, Counters]:
    T, B = rows.shape
    episode, step = np.empty((T, B), np.int64), np.empty((T, B), np.int32)
    lives = [SlowEnv(b, int(before.episode[b]), int(before.step[b])) for b in range(B)]
    for t in range(T):
        for b, life in enumerate(lives):
            (episode[t, b], step[t, b]), _ = life.live_through(None, 0.0, *(flag[t, b] for flag in rows))
    return episode, step, Counters(np.array([x.episode for x in lives]), np.array([x.step for x in lives]))


def assert_counted_the_same(rows: Flags, before: Counters) -> None:
    for got, wanted in zip(numbered(rows, before)[:2], counted_slowly(rows, before)[:2], strict=True):
        assert (got == wanted).all()
    after, wanted_after = numbered(rows, before)[2], counted_slowly(rows, before)[2]
    assert after.episode.tolist() == wanted_after.episode.tolist()
    assert after.step.tolist() == wanted_after.step.tolist()


@thorough
@given(flags(), seeds)
def test_rows_are_numbered_as_if_counted_one_by_one(rows: Flags, seed: int) -> None:
    assert_counted_the_same(rows, counters_before(rows.shape[1], seed))


@quick
@given(flags(), seeds, st.integers(0, 12))
def test_it_does_not_matter_where_a_slab_ends(rows: Flags, seed: int, cut: int) -> None:
    before = counters_before(rows.shape[1], seed)
    cut = 1 + cut % rows.shape[0]
    episode, step, after = numbered(rows, before)
    first_episode, first_step, between = numbered(rows.rows(0, cut), before)
    assert (first_episode == episode[:cut]).all()
    assert (first_step == step[:cut]).all()
    if cut < rows.shape[0]:
        second_episode, second_step, end = numbered(rows.rows(cut, rows.shape[0]), between)
        assert (second_episode == episode[cut:]).all()
        assert (second_step == step[cut:]).all()
        assert end.episode.tolist() == after.episode.tolist()
        assert end.step.tolist() == after.step.tolist()


def test_what_is_given_is_not_written_to() -> None:
    before = Counters(np.array([4]), np.array([9]))
    rows = Flags(np.array([[True], [False]]), np.zeros((2, 1), np.bool_), np.ones((2, 1), np.bool_))
    _, _, after = numbered(rows, before)
    assert (before.episode.tolist(), before.step.tolist()) == ([4], [9])
    assert (after.episode.tolist(), after.step.tolist()) == ([5], [1])


@pytest.mark.parametrize("flag", ["terminated", "truncated", "valid"])
def test_a_flag_that_is_not_looked_at_is_caught(flag: str) -> None:
    terminated = np.array([[False, True, False, False, False, False]]).T
    truncated = np.array([[False, False, False, True, False, False]]).T
    valid = np.array([[True, True, False, True, False, True]]).T
    rows = Flags(terminated, truncated, valid)
    blind = rows._replace(**{flag: np.full((6, 1), flag == "valid")})
    before = counters_before(1, 0)
    assert_counted_the_same(rows, before)
    assert (numbered(blind, before)[0] != counted_slowly(rows, before)[0]).any() or (
        numbered(blind, before)[1] != counted_slowly(rows, before)[1]
    ).any()
