"""Groups and a learner: nobody runs further ahead than allowed, what is late says so, and whoever waits is told why."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import headrace as hr
from headrace.agents.engines.batching import Batched
from headrace.agents.engines.scripted import Latency, scripted
from headrace.agents.exports.verl import samples
from headrace.agents.limits import Limits
from headrace.agents.records import COMPLETED, LATE, Group, fingerprint
from headrace.errors import UsageError
from support.agent_envs import Counting, spec

WAYS = [("sequential", 1), ("lock-step", 1), ("threading", 2), ("loky", 2)]


@pytest.fixture
def engine() -> Iterator[Batched]:
    one = scripted(latency=Latency(0.001))
    yield one
    one.close()


def paced(engine: Batched, backend: str = "threading", n_jobs: int = 2, **options: Any) -> hr.AgentRollouts:
    options = {"max_lag": 0, "groups_per_update": 2, "group_size": 2, "limits": Limits(publish_s=20.0), **options}
    return hr.AgentRollouts([spec(Counting)], engine, n_jobs, backend, **options)


def oldest(group: Group) -> int:
    return min(int(row.versions[row.loss_mask > 0].min()) for one in group.episodes for row in one.rows)


@pytest.mark.parametrize(("backend", "n_jobs"), WAYS)
def test_a_group_too_many_waits_for_publish(engine: Batched, backend: str, n_jobs: int) -> None:
    """Two groups an update and max_lag 0: the third waits until somebody publishes, in whatever thread."""
    with paced(engine, backend, n_jobs) as rollouts:
        stream = rollouts.stream(6)
        first = [next(stream), next(stream)]
        assert {group.status for group in first} == {COMPLETED}
        assert {oldest(group) for group in first} == {0}
        waiting = threading.Timer(0.3, lambda: rollouts.publish(None))
        waiting.start()
        third = next(stream)
        waiting.join()
        assert oldest(third) == 1
        stream.close()


@pytest.mark.parametrize(("backend", "n_jobs"), WAYS)
def test_a_loop_that_publishes_on_the_way(engine: Batched, backend: str, n_jobs: int) -> None:
    with paced(engine, backend, n_jobs) as rollouts:
        for count, group in enumerate(rollouts.stream(8), 1):
            assert group.status == COMPLETED
            assert group.lag == 0
            if count % 2 == 0:
                rollouts.publish(None)


def test_publishing_past_the_rollouts_is_seen_too(engine: Batched) -> None:
    with paced(engine) as rollouts:
        stream = rollouts.stream(3)
        next(stream), next(stream)
        waiting = threading.Timer(0.2, lambda: engine.publish(None))
        waiting.start()
        assert oldest(next(stream)) == 1
        waiting.join()


@pytest.mark.parametrize(("backend", "n_jobs"), WAYS)
def test_waiting_for_nobody_is_told_and_ends(
    engine: Batched, backend: str, n_jobs: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody publishes: the log says what is waited for, the error too, and the groups are played next time."""
    with paced(engine, backend, n_jobs, limits=Limits(publish_s=0.5)) as rollouts, caplog.at_level(logging.WARNING):
        stream = rollouts.stream(3)
        assert {next(stream).number, next(stream).number} == {0, 1}
        with pytest.raises(UsageError, match=r"before the next publish\(\): 2 were accepted.*publish_s = 0.5 s"):
            next(stream)
        assert "no group may start before the next publish()" in caplog.text
        rollouts.publish(None)
        rest = rollouts.run(1)
        assert [group.number for group in rest] == [2], "nothing is skipped"


def test_run_does_not_begin_what_it_could_not_end(engine: Batched) -> None:
    """run() hands everything over at once, so nobody could publish on the way: refused, and nothing is lost."""
    with paced(engine, max_lag=1) as rollouts:
        with pytest.raises(UsageError, match="groups: expected at most 4, got 5"):
            rollouts.run(5)
        assert [group.number for group in rollouts.run(4)] == [0, 1, 2, 3]
        with pytest.raises(UsageError, match="expected at most 0, got 1"):
            rollouts.run(1)
        rollouts.publish(None)
        assert [group.number for group in rollouts.run(2)] == [4, 5]


@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_what_waited_too_long_for_its_reader_is_late(engine: Batched, backend: str) -> None:
    """Played in time and handed over when the weights had moved on: late, not accepted, and not trained on."""
    with paced(engine, backend, max_lag=1, groups_per_update=2) as rollouts:
        stream = rollouts.stream(9)
        got = [next(stream)]
        while engine.statistics().requests < 4 * 2 * 2 or rollouts.statistics.groups < 1:
            threading.Event().wait(0.01)  # the four that may start are being played
        threading.Event().wait(0.3)
        rollouts.publish(None), rollouts.publish(None)
        got += [next(stream) for _ in range(3)]
        assert [group.status for group in got].count(LATE) == 3
        assert {group.lag for group in got if group.status == LATE} == {2}
        assert rollouts.statistics.late == 3
        assert len(samples(got)) == 2, "of the one that came in time"
        got += stream
        assert sorted(group.number for group in got) == list(range(9)), "six of them accepted: eight may be by now"


def test_what_nobody_read_takes_no_room(engine: Batched) -> None:
    """A stream that is broken off leaves groups that were played and never handed over: they do not count."""
    with paced(engine, max_lag=1) as rollouts:
        stream = rollouts.stream(4)
        next(stream)
        threading.Event().wait(0.3)  # all four have been played
        stream.close()
        assert len(rollouts.run(3)) == 3
        with pytest.raises(UsageError, match="at most 0"):
            rollouts.run(1)


def test_a_pace_does_not_change_records(engine: Batched) -> None:
    with paced(engine, max_lag=2) as rollouts:
        want = rollouts.run(4)
    free = scripted()
    with hr.AgentRollouts([spec(Counting)], free, backend="sequential", group_size=2) as rollouts:
        assert fingerprint(rollouts.run(4)) == fingerprint(want)
    free.close()
