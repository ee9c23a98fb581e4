"""Recycling: what counts as worn out, and what only a replay has made so."""

from __future__ import annotations

import os

import pytest

from headrace.collecting.recycling import Recycling
from headrace.errors import HeadraceError

ME = os.getpid()  # uses more than a megabyte


def test_above_the_limit_before_its_first_step_is_refused() -> None:
    with pytest.raises(HeadraceError, match="expected more than a worker needs to begin with, got 1"):
        Recycling(1, 0).begin(0, ME, 0, False, lambda text: None)


def test_above_the_limit_after_a_replay_it_stays_until_an_episode_has_ended() -> None:
    said: list[str] = []
    recycling = Recycling(1, 0)
    for worker in (0, 1, 0):
        recycling.begin(worker, ME, 5, True, said.append)
    assert len(said) == 1
    assert said[0].startswith("worker_max_memory_mb is 1, and worker 0 uses ")
    assert recycling.reason(0, ME, 5) is None
    assert "worker_max_memory_mb is 1" in str(recycling.reason(0, ME, 6))


def test_one_that_came_up_below_the_limit_is_replaced_at_once() -> None:
    recycling = Recycling(1, 0)
    recycling.begin(0, 2**30, 5, True, lambda text: None)  # there is no such process: it uses nothing
    assert "worker_max_memory_mb is 1" in str(recycling.reason(0, ME, 5))
