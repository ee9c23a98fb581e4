"""The desk: what it makes of the supervisor's instructions. No process, no thread: hosts are a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from headrace.agents import desk as room
from headrace.agents.desk import Desk, MoveError, NoWorkersError
from headrace.agents.plan import Ticket
from headrace.agents.records import FAILED, Group
from headrace.agents.scheduler import Scheduler
from headrace.memory.ledger import Ledger


class Engine:
    """As far as a desk knows one."""

    version = 0

    def __init__(self) -> None:
        self.live, self.is_last = 0, False

    def expect(self, live: int) -> None:
        self.live = live

    def drain(self, is_last: bool) -> None:
        self.is_last = is_last


class Listed:
    """Hosts that start nothing."""

    def __init__(self, has_place: bool = True) -> None:
        self.started: list[tuple[int, int]] = []
        self.killed: list[int] = []
        self.has_place, self.can_kill = has_place, True

    def start(self, workers: Sequence[tuple[int, int]]) -> None:
        self.started += workers

    def may_start(self, workers: Sequence[int]) -> bool:
        return self.has_place

    def kill(self, worker: int) -> bool:
        self.killed.append(worker)
        return self.can_kill


class Scene:
    """A desk with two workers, and its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tickets: int = 4, **options: Any) -> None:
        self.now = 100.0
        monkeypatch.setattr(room, "now_s", lambda: self.now)
        monkeypatch.setattr(room, "_LOOK_S", 0.0)
        self.ledger = Ledger()
        self.scheduler = Scheduler([Ticket(number, "a", 0, 1) for number in range(tickets)], 2, self.ledger)
        made: Any = Engine()
        self.engine = made
        self.desk, self.hosts = Desk(self.scheduler, made, 2, 4, **options), Listed()

    def look(self) -> None:
        """One look at the workers."""
        self.desk._look_after(self.hosts)

    def begin(self) -> None:
        """Both workers are up."""
        self.look()
        for worker in range(2):
            self.desk.join(worker, 0)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    one = Scene(monkeypatch)
    one.begin()
    return one


def pulled(scene: Scene, worker: int) -> Ticket | None:
    future = scene.desk.pull(worker)
    return future.result() if future.done() else None


def test_a_worker_that_died_is_started_again_in_its_next_life(scene: Scene) -> None:
    assert scene.hosts.started == [(0, 0), (1, 0)]
    ticket = pulled(scene, 0)
    assert ticket is not None
    scene.desk.died(0, 0, "process 7 ended")
    scene.desk.died(0, 0, "the pool is broken")  # old news: it is about the same life
    scene.look()
    assert scene.hosts.started[2:] == [(0, 1)]
    assert scene.desk.restarts == 1
    again = pulled(scene, 1)
    assert again is not None
    assert (again.number, again.attempt) != (ticket.number, 1)


def test_it_waits_for_a_place(scene: Scene) -> None:
    scene.hosts.has_place = False
    scene.desk.died(1, 0, "gone")
    scene.look()
    assert len(scene.hosts.started) == 2
    scene.hosts.has_place = True
    scene.look()
    assert scene.hosts.started[2:] == [(1, 1)]


def test_of_a_fragile_pool_only_the_first_death_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One death ends all: the groups of the others lose no attempt, and none starts before all are back."""
    scene = Scene(monkeypatch, is_fragile=True)
    scene.begin()
    first, second = pulled(scene, 0), pulled(scene, 1)
    assert first is not None
    assert second is not None
    scene.desk.died(0, 0, "killed")
    scene.desk.died(1, 0, "went along")
    early = scene.desk.pull(0)
    assert not early.done()
    scene.look()
    assert early.done()
    taken = [early.result(), *(pulled(scene, 0) for _ in range(3))]
    tickets = {one.number: one.attempt for one in taken if one is not None}
    assert tickets[first.number] == 2
    assert tickets[second.number] == 1


def test_silence_is_ended_by_force(scene: Scene) -> None:
    scene.now += 30
    scene.desk.beat(1, [])
    scene.now += 45  # 75 s: an environment's limit and ten seconds more
    scene.look()
    assert scene.hosts.killed == [0]
    scene.desk.died(0, 0, "process 7 ended")
    scene.look()
    assert scene.hosts.started[2:] == [(0, 1)]


def test_a_thread_that_is_silent_is_replaced(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.hosts.can_kill = False
    scene.now += 80
    scene.look()
    scene.look()
    assert {worker for worker, _ in scene.hosts.started[2:]} == {0, 1}
    assert "no sign of life" in caplog.text


def test_none_comes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)

    def die() -> bool:
        scene.desk.died(0, 0, "ImportError: x")
        return False

    with pytest.raises(NoWorkersError, match="ImportError: x"):
        next(scene.desk.groups(scene.hosts, die))
    assert scene.scheduler.num_waiting == 4, "another way can play them"


def test_one_worker_is_enough_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that dies before it was ever ready is started again, if another is up."""
    scene = Scene(monkeypatch)
    scene.look()
    scene.desk.join(0, 0)
    scene.desk.died(1, 0, "killed while it imported")
    scene.look()
    assert scene.hosts.started[2:] == [(1, 1)]


def test_workers_that_keep_dying_fail_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    lives = 0

    def die() -> bool:
        nonlocal lives
        scene.desk.join(0, lives)
        scene.desk.died(0, lives, "signal 9")
        lives += 1
        return True

    groups = []
    for group in scene.desk.groups(scene.hosts, die):
        scene.desk.handed_over(group)
        groups.append(group)
    assert lives == 7, "three restarts a worker, and one death more"
    assert [group.status for group in groups] == [FAILED] * 4
    assert "workers keep dying: 6 were started again" in groups[0].failures[0].message
    assert dict(scene.ledger.discarded) == {"worker": 4}


def test_a_goodbye_of_an_earlier_life_is_old_news(scene: Scene) -> None:
    scene.desk.died(0, 0, "silent")
    scene.look()
    scene.desk.join(0, 1)
    scene.desk.leave(0, 0)
    scene.desk.died(0, 1, "gone")
    scene.look()
    assert scene.hosts.started[2:] == [(0, 1), (0, 2)]


def test_a_group_that_was_given_up_is_not_taken_twice(scene: Scene) -> None:
    ticket = pulled(scene, 0)
    assert ticket is not None
    scene.desk.died(0, 0, "gone")
    scene.desk.done(0, Group(ticket.number, "a", 0, ()))
    assert scene.desk._groups.empty()


def test_the_engine_knows_who_may_still_ask(scene: Scene) -> None:
    """An episode that is over is not waited for, nor are groups that have yet to begin once all have begun."""
    tickets = [pulled(scene, 0) for _ in range(4)]
    assert (scene.engine.live, scene.engine.is_last) == (4, True)
    assert tickets[0] is not None
    scene.desk.over(tickets[0].number)
    assert scene.engine.live == 3
    scene.desk.done(0, Group(tickets[0].number, "a", 0, ()))
    assert scene.engine.live == 3, "not counted twice"
    scene.desk.died(0, 0, "gone")
    assert (scene.engine.live, scene.engine.is_last) == (3, False), "they begin again"


def test_what_comes_back_when_others_play_on_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of another kind take over: every group comes once, from them."""
    scene, tickets = Scene(monkeypatch), list[Ticket | None]()

    def move() -> bool:
        scene.desk.join(0, 0)
        tickets.extend(pulled(scene, 0) for _ in range(2))
        raise MoveError("they compute")

    with pytest.raises(MoveError):
        next(scene.desk.groups(scene.hosts, move))
    assert tickets[0] is not None
    assert scene.scheduler.num_waiting == 4
    taken = scene.scheduler.next(1, 0)
    assert taken is not None
    scene.desk.done(0, Group(taken.number, "a", 0, ()))
    assert scene.scheduler.num_running == 1
