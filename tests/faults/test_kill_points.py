"""kill -9 of a worker at the very instruction: each of the named points of a worker's life, and the calm run's bits.

benchmarks/chaos.py (point 1) does the same five times each, idle and busy, and measures how soon it is noticed.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from support.kill_points import AT_START, IN_A_SLAB, POINTS, Strikes, arm, deaths, is_armed
from support.topology_runs import INLINE, Case, bits_of, processes
from support.waiting import is_gone, wait_until

WALK = Case("walk", "support.bit_envs:LongWalk", n_envs=4, updates=6, kwargs={"limit": 20})
USUAL = ("before attach", "in the middle of a write", "before commit", "after commit", "during weight copy")


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=() if point in USUAL else pytest.mark.full) for point in POINTS[:-1]]
)
def test_killed_at(point: str, tmp_path: Path) -> None:
    with WALK.wrapped(Strikes(str(tmp_path))).start(**processes(1)) as run:
        episodes, kills = WALK.advance(run, 1), 1
        arm(tmp_path, point, after=5 if point in IN_A_SLAB else 0)
        if point in AT_START:
            kills += 1
            os.kill(run.source.place.pids[0], signal.SIGKILL)
        episodes += WALK.advance(run, WALK.updates - 1)
        run.source.run_ahead()  # who died after the last rollout is replaced, too
        assert not is_armed(tmp_path, point), "nobody got there"
        assert len(deaths(tmp_path)) == 1
        assert run.source.restarts == kills
        assert bits_of(run, episodes) == WALK.play(**INLINE)


def test_killed_during_shutdown(tmp_path: Path) -> None:
    with WALK.wrapped(Strikes(str(tmp_path))).start(**processes(1)) as run:
        got = bits_of(run, WALK.advance(run, WALK.updates))
        pids = run.source.place.pids
        arm(tmp_path, POINTS[-1])
    wait_until(lambda: all(map(is_gone, pids)))
    assert len(deaths(tmp_path)) == 1
    assert run.source.restarts == 0
    assert got == WALK.play(**INLINE)
