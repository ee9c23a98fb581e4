"""Which group is played next, by which worker, and what becomes of each: every number comes back exactly once. Pure.

    Numbers, over all calls: ──take──> out ──returned──> done       broken off: taken first next time
    Scheduler, of one call:  rounds ──> waiting ──next(worker)──> running ──finished──> ready ──handed_over──> ledger
                                           ^                         └──lost(worker)── once more, or given up: failed

The longest expected group goes first, so that a slow one does not leave the others idle at the end; what a tag takes is
learned from the groups that came back. An endless stream has rounds: the next one begins when the last of this one has
been given out, not when it has come back. With a learner, a group starts only if the pace allows it.

The ledger counts groups: one that starts is produced; handed over, it is consumed, rejected (late) or discarded
(failed, by the boundary). So the groups that the learner accepted are those that the ledger says were consumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from headrace.agents.plan import Ticket
from headrace.agents.records import COMPLETED, LATE, Group
from headrace.memory.ledger import Ledger
from headrace.pace import Pace

BROKEN_OFF = "broken off"


def settle(ledger: Ledger, group: Group) -> None:
    """A group that was produced has come to its reader."""
    if group.status == COMPLETED:
        ledger.consumed += 1
    elif group.status == LATE:
        ledger.rejected += 1
    else:
        ledger.discarded[group.failures[0].boundary] += 1


class Numbers:
    """Which group numbers were taken: none is skipped, none comes twice."""

    def __init__(self) -> None:
        self._next = 0
        self._out: set[int] = set()
        self._left: list[int] = []  # did not come back: taken first
        self._early: set[int] = set()  # came from the log before it was their turn

    def take(self, count: int) -> list[int]:
        """First what was left unfinished, then new ones."""
        numbers, self._left = self._left[:count], self._left[count:]
        while len(numbers) < count:
            if self._next not in self._early:
                numbers.append(self._next)
            self._next += 1
        self._out |= {*numbers}
        return numbers

    def take_known(self, known: Iterable[int]) -> list[int]:
        """Those of `known` that have not come back yet: an endless stream gives them first."""
        left = {*self._left}
        numbers = sorted(one for one in known if one in left or (one >= self._next and one not in self._early))
        self._early |= {*numbers}
        self._left = sorted(left - {*numbers})
        self._out |= {*numbers}
        return numbers

    def returned(self, number: int) -> None:
        """It has come back."""
        self._out.discard(number)

    def state(self) -> dict[str, Any]:
        """As JSON; what is out counts as not come back."""
        return {"next": self._next, "left": sorted({*self._out, *self._left}), "early": sorted(self._early)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._next, self._left = state["next"], list(state["left"])
        self._early, self._out = {*state["early"]}, set()

    def break_off(self) -> None:
        """What is out will not come back: it is taken first next time, so nothing is skipped."""
        self._left = sorted({*self._out, *self._left})
        self._out = set()


class Scheduler:
    """The groups of one call of run(), or of a stream: `rounds` gives more of them for as long as it is asked."""

    def __init__(
        self,
        tickets: list[Ticket],
        attempts: int,
        ledger: Ledger | None = None,
        pace: Pace | None = None,
        rounds: Iterator[list[Ticket]] | None = None,
        most_out: int = 1 << 30,
    ) -> None:
        self._waiting = list(tickets)
        self._running: dict[int, tuple[int, Ticket]] = {}  # number -> worker, ticket
        self._ready: set[int] = set()  # came back, or was given up, and is not handed over yet
        self._produced: set[int] = set()  # started, and not settled in the ledger
        self._attempts = attempts
        self._ledger = ledger or Ledger()
        self._pace = pace
        self._rounds, self._most_out = rounds, most_out
        self._seconds: dict[str, float] = {}  # per group of a tag, a running mean

    @property
    def is_done(self) -> bool:
        """Whether everything has been played."""
        return not self._waiting and not self._running and self._rounds is None

    @property
    def num_waiting(self) -> int:
        """Groups that no worker plays yet."""
        return len(self._waiting)

    @property
    def has_more(self) -> bool:
        """Whether groups are still to start."""
        return bool(self._waiting) or self._rounds is not None

    @property
    def num_running(self) -> int:
        """Groups in play."""
        return len(self._running)

    @property
    def accepted(self) -> int:
        """Groups that the learner can use, since the beginning of the run."""
        return self._ledger.consumed

    def is_held(self, version: int) -> bool:
        """Whether nothing happens before the learner has moved on: nothing is out, and nothing may start."""
        return not self.is_done and not self._running and not self._ready and self._has_no_room(version)

    def running_of(self, worker: int) -> list[Ticket]:
        """What a worker plays."""
        return [ticket for host, ticket in self._running.values() if host == worker]

    def next(self, worker: int, version: int) -> Ticket | None:
        """The next group for a worker; None: nothing is left, too much is out, or the learner is too far behind."""
        if len(self._running) + len(self._ready) >= self._most_out or self._has_no_room(version):
            return None
        if not self._waiting and self._rounds is not None:
            self._waiting = list(next(self._rounds))
        if not self._waiting:
            return None
        longest = max(self._seconds.values(), default=0.0)
        place = max(
            range(len(self._waiting)),
            key=lambda at: (self._seconds.get(self._waiting[at].tag, longest), -self._waiting[at].number),
        )
        ticket = self._waiting.pop(place)
        self._running[ticket.number] = (worker, ticket)
        self._produce(ticket.number)
        return ticket

    def finished(self, number: int, seconds: float) -> bool:
        """A group came back; False if it was not out (its worker had been given up): then it is not emitted."""
        if number not in self._running:
            return False
        _, ticket = self._running.pop(number)
        before = self._seconds.get(ticket.tag)
        self._seconds[ticket.tag] = seconds if before is None else 0.7 * before + 0.3 * seconds
        self._ready.add(number)
        return True

    def handed_over(self, group: Group) -> None:
        """The reader has taken it; one that failed or came too late makes room for another."""
        self._produce(group.number)  # given up before it was ever played: it is accounted for all the same
        self._produced.discard(group.number)
        self._ready.discard(group.number)
        settle(self._ledger, group)

    def lost(self, worker: int, is_blamed: bool = True) -> list[Ticket]:
        """A worker is gone: its groups are played again, from the start; returns those given up.

        `is_blamed` says that one of its groups may have killed it; else another's death took it along.
        """
        given_up = []
        for ticket in self.running_of(worker):
            del self._running[ticket.number]
            if not is_blamed:
                self._waiting.append(ticket)
            elif ticket.attempt < self._attempts:
                self._waiting.append(replace(ticket, attempt=ticket.attempt + 1))
            else:
                given_up.append(ticket)
                self._ready.add(ticket.number)
        return given_up

    def take_back(self) -> None:
        """No worker plays any more: what was running waits again, for another way to play it."""
        self._waiting += [ticket for _, ticket in self._running.values()]
        self._running = {}

    def abandon(self) -> list[Ticket]:
        """Nothing more is played: everything that is left, waiting or running."""
        left = [*self._waiting, *(ticket for _, ticket in self._running.values())]
        self._waiting, self._running, self._rounds = [], {}, None
        return left

    def close(self) -> None:
        """The call is over: what started and was not handed over is discarded, and the ledger balances."""
        if self._produced:
            self._ledger.discarded[BROKEN_OFF] += len(self._produced)
            self._produced.clear()
        self._ledger.check()

    def _produce(self, number: int) -> None:
        if number not in self._produced:
            self._produced.add(number)
            self._ledger.produced += 1

    def _has_no_room(self, version: int) -> bool:
        taken = self.accepted + len(self._running) + len(self._ready)
        return self._pace is not None and self._pace.room(version, taken) <= 0
