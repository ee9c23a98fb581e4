"""Every ticket leaves exactly once, whoever is lost: a state machine; and the longest group first."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.agents.plan import Ticket
from headrace.agents.records import FAILED, WORKER, Episode, Failure, Group
from headrace.agents.scheduler import Numbers, Scheduler
from headrace.agents.ways import suggested_workers
from headrace.memory.ledger import Ledger
from headrace.pace import Pace

TICKETS = 7


def whole(number: int) -> Group:
    return Group(number, "a", 0, ())


def late(number: int) -> Group:
    return Group(number, "a", 0, (), lag=2, max_lag=1)


def failed(number: int) -> Group:
    return Group(number, "a", 0, (Episode(number, 0, "a", 0, FAILED, (), (), {}, Failure(WORKER, "gone")),))


class Groups(RuleBasedStateMachine):
    """Workers take tickets, finish them, finish them late, and get lost; a reader takes what is ready."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        tickets = [Ticket(number, f"tag{number % 3}", 0, 2) for number in range(TICKETS)]
        self.scheduler = Scheduler(tickets, attempts=2, ledger=self.ledger)
        self.held: dict[int, list[Ticket]] = {0: [], 1: [], 2: []}
        self.ready: list[int] = []
        self.given_up: list[int] = []
        self.left: list[int] = []
        self.losses: dict[int, int] = {}
        self.started: set[int] = set()
        self.accepted = 0

    @rule(worker=st.integers(0, 2))
    def takes(self, worker: int) -> None:
        ticket = self.scheduler.next(worker, 0)
        if ticket is not None:
            assert ticket.number not in self.left
            self.held[worker].append(ticket)
            self.started.add(ticket.number)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def finishes(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from([one for one, held in self.held.items() if held]))
        ticket = self.held[worker].pop()
        assert self.scheduler.finished(ticket.number, 0.1 * ticket.number)
        self.ready.append(ticket.number)

    @precondition(lambda self: self.ready)
    @rule(is_late=st.booleans())
    def is_read(self, is_late: bool) -> None:
        number = self.ready.pop(0)
        self.scheduler.handed_over(late(number) if is_late else whole(number))
        self.accepted += not is_late
        self.left.append(number)

    @precondition(lambda self: self.given_up)
    @rule()
    def is_read_as_failed(self) -> None:
        number = self.given_up.pop(0)
        self.scheduler.handed_over(failed(number))
        self.left.append(number)

    @rule(worker=st.integers(0, 2))
    def is_lost(self, worker: int) -> None:
        held, self.held[worker] = self.held[worker], []
        for ticket in held:
            self.losses[ticket.number] = self.losses.get(ticket.number, 0) + 1
        given_up = self.scheduler.lost(worker)
        assert sorted(one.number for one in given_up) == sorted(
            one.number for one in held if self.losses[one.number] >= 2
        )
        self.given_up += [one.number for one in given_up]

    @rule()
    def the_way_changes(self) -> None:
        """Workers are given up altogether, and somebody else plays what they had."""
        self.scheduler.take_back()
        self.held = {worker: [] for worker in self.held}

    def teardown(self) -> None:
        """However a call ends, its ledger balances."""
        self.scheduler.close()
        self.ledger.check()
        assert self.ledger.discarded["broken off"] == len(self.started) - len(self.left)

    @rule(number=st.integers(0, TICKETS - 1))
    def a_ghost_returns(self, number: int) -> None:
        """A worker that was given up answers after all."""
        if not any(ticket.number == number for held in self.held.values() for ticket in held):
            assert not self.scheduler.finished(number, 1.0)

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        out = [ticket.number for held in self.held.values() for ticket in held]
        left = [*self.left, *self.ready, *self.given_up]
        assert len(set(left)) == len(left)
        assert not set(left) & set(out)
        assert len(left) + len(out) + self.scheduler.num_waiting == TICKETS
        assert self.scheduler.num_running == len(out)
        assert self.scheduler.is_done == (len(left) == TICKETS)
        assert self.scheduler.accepted == self.accepted == self.ledger.consumed

    @invariant()
    def the_ledger_knows_every_group_that_started(self) -> None:
        settled = self.ledger.consumed + self.ledger.rejected + sum(self.ledger.discarded.values())
        assert self.ledger.produced == len(self.started)
        assert settled == len(self.left)

    @invariant()
    def is_never_held(self) -> None:
        assert not self.scheduler.is_held(0), "without a pace no learner is waited for"


TestGroups = Groups.TestCase


def test_who_went_down_with_another_is_not_blamed() -> None:
    scheduler = Scheduler([Ticket(0, "a", 0, 1)], attempts=1)
    for _ in range(5):
        assert scheduler.next(0, 0) is not None
        assert scheduler.lost(0, is_blamed=False) == []
    assert scheduler.next(0, 0) is not None
    assert [one.number for one in scheduler.lost(0)] == [0]


def test_the_longest_expected_goes_first() -> None:
    scheduler = Scheduler([Ticket(number, "slow" if number > 3 else "quick", 0, 1) for number in range(8)], 1)
    for seconds in (0.1, 9.0):
        ticket = scheduler.next(0, 0)
        while ticket is not None and ticket.tag != ("quick" if seconds == 0.1 else "slow"):
            ticket = scheduler.next(0, 0)
        assert ticket is not None
        scheduler.finished(ticket.number, seconds)
    rest = []
    while (ticket := scheduler.next(0, 0)) is not None:
        rest.append(ticket.tag)
    assert rest == sorted(rest, reverse=True)


def test_nobody_runs_ahead_of_the_learner() -> None:
    scheduler = Scheduler([Ticket(number, "a", 0, 1) for number in range(20)], 1, pace=Pace(1, 3))
    taken = [scheduler.next(0, 0) for _ in range(10)]
    assert sum(one is not None for one in taken) == 6, "(max_lag 1 + version 0 + 1) * 3"
    assert scheduler.next(0, 1) is not None


def test_a_rejected_group_makes_room() -> None:
    scheduler = Scheduler([Ticket(number, "a", 0, 1) for number in range(20)], 1, pace=Pace(0, 1))
    first = scheduler.next(0, 0)
    assert first is not None
    assert scheduler.next(0, 0) is None
    scheduler.finished(first.number, 1.0)
    assert scheduler.next(0, 0) is None, "it may be accepted yet"
    assert not scheduler.is_held(0), "its reader may make room"
    scheduler.handed_over(late(first.number))
    second = scheduler.next(0, 0)
    assert second is not None
    scheduler.finished(second.number, 1.0)
    scheduler.handed_over(whole(second.number))
    assert scheduler.next(0, 0) is None
    assert scheduler.is_held(0)
    assert not scheduler.is_held(1)


def test_rounds_follow_each_other_without_a_barrier() -> None:
    """The next round begins while the last is played; a round is given out before the next, so nobody starves."""
    rounds = iter([[Ticket(2 * at, "slow", 0, 1), Ticket(2 * at + 1, "quick", 0, 1)] for at in range(100)])
    scheduler = Scheduler([], 1, rounds=rounds, most_out=5)
    seconds = {"slow": 9.0, "quick": 0.1}
    taken = [scheduler.next(0, 0) for _ in range(6)]
    assert [one.number for one in taken if one is not None] == [0, 1, 2, 3, 4]
    assert taken[-1] is None, "five are out"
    for one in taken[:-1]:
        assert one is not None
        scheduler.finished(one.number, seconds[one.tag])
    assert scheduler.next(0, 0) is None, "ready, but nobody has read them: a slow reader is not buried"
    for number in range(5):
        scheduler.handed_over(whole(number))
    order = [one.number for _ in range(5) if (one := scheduler.next(0, 0)) is not None]
    assert order == [5, 6, 7, 8, 9]
    assert not scheduler.is_done
    scheduler.abandon()
    assert scheduler.is_done


def test_what_was_never_played_is_accounted_for_when_it_is_given_up() -> None:
    ledger = Ledger()
    scheduler = Scheduler([Ticket(number, "a", 0, 1) for number in range(3)], 1, ledger)
    scheduler.next(0, 0)
    for ticket in scheduler.abandon():
        scheduler.handed_over(failed(ticket.number))
    scheduler.close()
    assert (ledger.produced, dict(ledger.discarded)) == (3, {"worker": 3})


def test_numbers_that_did_not_come_back_are_taken_first() -> None:
    numbers = Numbers()
    assert numbers.take(4) == [0, 1, 2, 3]
    numbers.returned(1), numbers.returned(3)
    numbers.break_off()
    assert numbers.take_known([2, 5, 1]) == [2, 5], "1 has come back"
    numbers.returned(2)
    numbers.break_off()
    assert numbers.take(4) == [0, 5, 4, 6], "5 was broken off; it is not taken twice"


def test_workers_follow_the_engine() -> None:
    assert suggested_workers(2, 1, 4, engine_idle=0.6, num_waiting=5) == 3
    assert suggested_workers(4, 1, 4, engine_idle=0.6, num_waiting=5) == 4
    assert suggested_workers(2, 1, 4, engine_idle=0.6, num_waiting=0) == 2
    assert suggested_workers(3, 1, 4, engine_idle=0.0, num_waiting=5) == 2
    assert suggested_workers(1, 1, 4, engine_idle=0.0, num_waiting=5) == 1
    assert suggested_workers(2, 1, 4, engine_idle=0.1, num_waiting=5) == 2
