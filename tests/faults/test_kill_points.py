"""kill -9 of a worker or an inference server at the very instruction, each of the named points: the calm run's bits.

benchmarks/chaos.py (point 1) does the same five times each, idle and busy, and measures how soon it is noticed.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from headrace.weights.store import WeightStore
from support.kill_points import (
    ASKING,
    AT_START,
    IN_A_SLAB,
    POINTS,
    SERVING,
    Strikes,
    arm,
    deaths,
    is_armed,
    striking_servers,
)
from support.topology_runs import bits_of, processes
from support.waiting import is_gone, wait_until
from support.walks import WALK, calm

CENTRAL = {"inference": "central", "shards": 2}
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
            os.kill(run.source.place.workers.pids[0], signal.SIGKILL)
        episodes += WALK.advance(run, WALK.updates - 1)
        for _ in range(2):  # who died after the last rollout is noticed, and replaced, too
            run.source.run_ahead()
        assert not is_armed(tmp_path, point), "nobody got there"
        assert len(deaths(tmp_path)) == 1
        assert run.source.place.replaced.restarts == kills
        assert bits_of(run, episodes) == calm()


@pytest.mark.parametrize("point", [*ASKING, *SERVING])
def test_killed_where_the_policy_runs_in_a_server(point: str, tmp_path: Path) -> None:
    """A batch of two workers' shards: a server that dies between two answers has given one of them."""
    where = processes(1 if point in ASKING else 2, **CENTRAL)
    with striking_servers(tmp_path), WALK.wrapped(Strikes(str(tmp_path))).start(**where) as run:
        place = run.source.place
        episodes, kills = WALK.advance(run, 1), 1
        arm(tmp_path, point, after=5 if point in IN_A_SLAB else 0)
        if point in AT_START:
            kills += 1
            os.kill(place._servers.children[0].pid, signal.SIGKILL)
        episodes += WALK.advance(run, WALK.updates - 1)
        wait_until(lambda: place.replace_lost() == [] and place.replaced.restarts + place.replaced.servers == kills)
        assert not is_armed(tmp_path, point), "nobody got there"
        assert len(deaths(tmp_path)) == 1
        assert place.replaced.restarts == (point in ASKING)
        assert bits_of(run, episodes) == calm()


def test_a_server_is_killed_while_weights_are_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every time, wherever it is: the one that takes its place acts with the version that it is asked for."""
    victims, publish = [], WeightStore.publish
    with WALK.start(**processes(2, **CENTRAL)) as run:
        place = run.source.place

        def published(store: WeightStore, vector: Any, version: int) -> None:
            (server,) = place._servers.children.values()
            os.kill(server.pid, signal.SIGSTOP)  # it may be reading weights at this moment
            publish(store, vector, version)
            victims.append(server.pid)
            server.kill()

        monkeypatch.setattr(WeightStore, "publish", published)
        episodes = WALK.advance(run, WALK.updates)
        wait_until(lambda: place.replace_lost() == [] and place.replaced.servers == len(victims))
        assert len(set(victims)) == WALK.updates
        assert bits_of(run, episodes) == calm()


def test_killed_during_shutdown(tmp_path: Path) -> None:
    with WALK.wrapped(Strikes(str(tmp_path))).start(**processes(1)) as run:
        got = bits_of(run, WALK.advance(run, WALK.updates))
        pids = run.source.place.workers.pids
        arm(tmp_path, POINTS[-1])
    wait_until(lambda: all(map(is_gone, pids)))
    assert len(deaths(tmp_path)) == 1
    assert run.source.place.replaced.restarts == 0
    assert got == calm()
