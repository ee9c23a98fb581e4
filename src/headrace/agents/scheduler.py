"""Which group is played next, by whom, and what becomes of the groups of a worker that is gone. Pure.

    waiting --next(worker)--> running --finished--> done
       ^                         └──lost(worker)── once more, or given up: emitted as failed

The longest expected group goes first, so that a slow one does not leave the others idle at the end; what a tag takes is
learned from the groups that came back. With a learner, a group starts only if the pace allows it: the same arithmetic
as for slabs, (max_lag + version + 1) * groups_per_update. Every ticket leaves exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.agents.plan import Ticket
from headrace.learning.lag import lease_limit


@dataclass(frozen=True)
class Pace:
    """How far groups may run ahead of a learner."""

    max_lag: int
    groups_per_update: int

    def allows(self, version: int, accepted: int, running: int) -> bool:
        """Whether one more group may start."""
        return accepted + running < lease_limit(version, self.max_lag, self.groups_per_update)


class Scheduler:
    """The groups of one call of run()."""

    def __init__(self, tickets: list[Ticket], attempts: int, pace: Pace | None = None, accepted: int = 0) -> None:
        self._waiting = list(tickets)
        self._running: dict[int, tuple[int, Ticket]] = {}  # number -> worker, ticket
        self._attempts = attempts
        self._pace = pace
        self._seconds: dict[str, float] = {}  # per group of a tag, a running mean
        self.accepted = accepted

    @property
    def is_done(self) -> bool:
        """Whether every ticket has left."""
        return not self._waiting and not self._running

    @property
    def num_waiting(self) -> int:
        """Groups that nobody plays yet."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Groups in play."""
        return len(self._running)

    def running_of(self, worker: int) -> list[Ticket]:
        """What a worker plays."""
        return [ticket for host, ticket in self._running.values() if host == worker]

    def next(self, worker: int, version: int) -> Ticket | None:
        """The next group for a worker; None: nothing is left, or the learner is too far behind."""
        if not self._waiting or (self._pace and not self._pace.allows(version, self.accepted, len(self._running))):
            return None
        longest = max(self._seconds.values(), default=0.0)
        place = max(
            range(len(self._waiting)),
            key=lambda at: (self._seconds.get(self._waiting[at].tag, longest), -self._waiting[at].number),
        )
        ticket = self._waiting.pop(place)
        self._running[ticket.number] = (worker, ticket)
        return ticket

    def finished(self, number: int, seconds: float, is_accepted: bool) -> bool:
        """A group came back; False if it was not out (its worker had been given up): then nobody emits it."""
        if number not in self._running:
            return False
        _, ticket = self._running.pop(number)
        before = self._seconds.get(ticket.tag)
        self._seconds[ticket.tag] = seconds if before is None else 0.7 * before + 0.3 * seconds
        self.accepted += is_accepted
        return True

    def lost(self, worker: int, is_blamed: bool = True) -> list[Ticket]:
        """A worker is gone: its groups are played again, from the start; returns those given up.

        `is_blamed` says that one of its groups may have killed it; else it went down with somebody else's pool.
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
        return given_up

    def abandon(self) -> list[Ticket]:
        """Nothing more is played: everything that is left, waiting or running."""
        left = [*self._waiting, *(ticket for _, ticket in self._running.values())]
        self._waiting, self._running = [], {}
        return left


def suggested_workers(active: int, least: int, most: int, engine_idle: float, num_waiting: int) -> int:
    """How many workers should get groups, from what was measured since the last look.

    An engine that waits for requests wants more of them; one that never waits gets no faster from more workers, and
    fewer leave it more of the machine.
    """
    if num_waiting and engine_idle > 0.25:
        return min(most, active + 1)
    if engine_idle < 0.02:
        return max(least, active - 1)
    return min(most, max(least, active))
