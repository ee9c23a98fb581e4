"""Which group is played next, by whom, and what becomes of the groups of a worker that is gone. Pure.

    rounds ──> waiting ──next(worker)──> running ──finished──> ready ──handed_over──> gone
                  ^                         └──lost(worker)── once more, or given up: emitted as failed

The longest expected group goes first, so that a slow one does not leave the others idle at the end; what a tag takes is
learned from the groups that came back. An endless stream has rounds: the next one begins when the last of this one has
been given out, not when it has come back. With a learner, a group starts only if the pace allows it: the same
arithmetic as for slabs, (max_lag + version + 1) * groups_per_update. Every ticket leaves exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from headrace.agents.plan import Ticket


@dataclass(frozen=True)
class Pace:
    """How far groups may run ahead of a learner."""

    max_lag: int
    groups_per_update: int

    def room(self, version: int, taken: int) -> int:
        """How many more groups may start, beside those accepted or on their way."""
        return (self.max_lag + version + 1) * self.groups_per_update - taken


class Scheduler:
    """The groups of one call of run(), or of a stream: `rounds` gives more of them for as long as it is asked."""

    def __init__(
        self,
        tickets: list[Ticket],
        attempts: int,
        pace: Pace | None = None,
        accepted: int = 0,
        rounds: Iterator[list[Ticket]] | None = None,
        most_out: int = 1 << 30,
    ) -> None:
        self._waiting = list(tickets)
        self._running: dict[int, tuple[int, Ticket]] = {}  # number -> worker, ticket
        self._ready: set[int] = set()  # came back, and nobody has taken them yet
        self._attempts = attempts
        self._pace = pace
        self._rounds, self._most_out = rounds, most_out
        self._seconds: dict[str, float] = {}  # per group of a tag, a running mean
        self.accepted = accepted

    @property
    def is_done(self) -> bool:
        """Whether everything has been played."""
        return not self._waiting and not self._running and self._rounds is None

    @property
    def num_waiting(self) -> int:
        """Groups that nobody plays yet."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Groups in play."""
        return len(self._running)

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
        return ticket

    def finished(self, number: int, seconds: float) -> bool:
        """A group came back; False if it was not out (its worker had been given up): then nobody emits it."""
        if number not in self._running:
            return False
        _, ticket = self._running.pop(number)
        before = self._seconds.get(ticket.tag)
        self._seconds[ticket.tag] = seconds if before is None else 0.7 * before + 0.3 * seconds
        self._ready.add(number)
        return True

    def handed_over(self, number: int, is_accepted: bool) -> None:
        """Somebody has taken it; one that failed or came too late makes room for another."""
        self._ready.discard(number)
        self.accepted += is_accepted

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

    def take_back(self) -> None:
        """Nobody plays any more: what was running waits again, for another way to play it."""
        self._waiting += [ticket for _, ticket in self._running.values()]
        self._running = {}

    def abandon(self) -> list[Ticket]:
        """Nothing more is played: everything that is left, waiting or running."""
        left = [*self._waiting, *(ticket for _, ticket in self._running.values())]
        self._waiting, self._running, self._rounds = [], {}, None
        return left

    def _has_no_room(self, version: int) -> bool:
        taken = self.accepted + len(self._running) + len(self._ready)
        return self._pace is not None and self._pace.room(version, taken) <= 0


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
