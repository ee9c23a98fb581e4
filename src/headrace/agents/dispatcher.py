"""The desk in the parent: hands tickets to whoever pulls, takes finished groups, notices who is gone. Thread-safe.

    pull(worker) -> Future[Ticket | None] · done(worker, group) · beat(worker, waits) · lost(worker, why) -> requeued
    next_group(timeout) -> Group: what the user's loop reads · handed_over(number): it has taken it

The decisions are the scheduler's, which is pure; here is the lock, the futures and the queue. Knows no sockets.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace

from headrace.agents.plan import Ticket
from headrace.agents.records import WORKER, Failure, Group
from headrace.agents.scheduler import Scheduler
from headrace.agents.table import failed_group
from headrace.clock import now_s

logger = logging.getLogger(__name__)


@dataclass
class _Member:
    """What is known of a worker."""

    beat_s: float
    waits: list[tuple[str, float]]


class Dispatcher:
    """Between the scheduler and the workers."""

    def __init__(
        self,
        scheduler: Scheduler,
        version: Callable[[], int],
        on_live: Callable[[int], None],
        most_live: int,
        is_fragile: bool = False,
    ) -> None:
        self._scheduler, self._version = scheduler, version
        self._on_live, self._most_live = on_live, most_live  # groups at one time
        self._lock = threading.Lock()
        self._pulls: deque[tuple[int, Future[Ticket | None]]] = deque()
        self._members: dict[int, _Member] = {}
        self._missing: set[int] = set()  # lost, and not started again
        self._joined: set[int] = set()  # at any time
        self._groups: queue.SimpleQueue[Group] = queue.SimpleQueue()
        self._is_fragile = is_fragile  # one death ends all workers: nobody gets a ticket until all are back
        self._active = 1 << 30  # workers below this number get tickets
        self._group_size = 1
        self._is_closed = False
        self.progress_s = now_s()
        self.num_lost = 0  # workers that went without a word

    @property
    def num_members(self) -> int:
        """Workers that are here."""
        return len(self._members)

    @property
    def num_waiting(self) -> int:
        """Groups that nobody plays yet."""
        return self._scheduler.num_waiting

    @property
    def num_running(self) -> int:
        """Groups in play."""
        return self._scheduler.num_running

    @property
    def is_empty(self) -> bool:
        """Whether every finished group has been fetched."""
        return self._groups.empty()

    def join(self, worker: int) -> None:
        """A worker is there."""
        with self._lock:
            self._members[worker] = _Member(now_s(), [])
            self._joined.add(worker)
            self.progress_s = now_s()

    def leave(self, worker: int) -> None:
        """A worker has ended as it should."""
        with self._lock:
            self._members.pop(worker, None)

    def pull(self, worker: int) -> Future[Ticket | None]:
        """A ticket when there is one for this worker; None when there are no more."""
        future: Future[Ticket | None] = Future()
        with self._lock:
            self._pulls.append((worker, future))
            granted = self._grant()
        _resolve(granted)
        return future

    def done(self, worker: int, group: Group) -> None:
        """A group came back; one that was given up in the meantime is dropped: it has been dealt with."""
        with self._lock:
            is_new = self._scheduler.finished(group.number, group.seconds)
            self.progress_s = now_s()
            if is_new:
                self._groups.put(replace(group, worker=worker))
                told = (group.number, group.tag, group.status, worker, group.seconds)
                logger.info("group %d (%s) %s by worker %d after %.2f s", *told)
            granted = self._grant()
        _resolve(granted)

    def lost(self, worker: int, why: str) -> None:
        """A worker is gone without a word: its groups are played again, or emitted as failed."""
        with self._lock:
            if self._members.pop(worker, None) is None:
                return
            is_blamed = not (self._is_fragile and self._missing)
            self._missing.add(worker)
            self.num_lost += 1
            running = self._scheduler.running_of(worker)
            given_up = self._scheduler.lost(worker, is_blamed)
            for ticket in given_up:
                self._groups.put(failed_group(ticket, Failure(WORKER, why), worker))
            self._pulls = deque(one for one in self._pulls if one[0] != worker)
            granted = self._grant()
        again = len(running) - len(given_up)
        logger.warning(
            "worker %d is gone (%s): %d groups are played again, %d given up", worker, why, again, len(given_up)
        )
        _resolve(granted)

    def has_joined(self, worker: int) -> bool:
        """Whether it was ever here."""
        return worker in self._joined

    @property
    def num_joined(self) -> int:
        """Workers that were ever here."""
        return len(self._joined)

    def missing(self) -> set[int]:
        """Workers that were lost, as long as there is something for them to do."""
        with self._lock:
            return set() if self._is_closed or self._scheduler.is_done else set(self._missing)

    def forget(self, workers: set[int]) -> None:
        """They are started again."""
        with self._lock:
            self._missing -= workers
            granted = self._grant()
        _resolve(granted)

    def beat(self, worker: int, waits: list[tuple[str, float]]) -> None:
        """A sign of life."""
        with self._lock:
            member = self._members.get(worker)
            if member is not None:
                member.beat_s, member.waits = now_s(), waits

    def silent(self, limit_s: float) -> list[int]:
        """Workers that have given no sign of life for so long."""
        now = now_s()
        with self._lock:
            return [worker for worker, member in self._members.items() if now - member.beat_s > limit_s]

    def set_active(self, active: int) -> None:
        """Only the first so many workers get tickets."""
        with self._lock:
            self._active = active
            granted = self._grant()
        _resolve(granted)

    def look_again(self) -> None:
        """Something outside changed, such as the version of the weights."""
        with self._lock:
            granted = self._grant()
        _resolve(granted)

    def next_group(self, timeout_s: float) -> Group | None:
        """The next finished group, or None if there was none in time."""
        try:
            return self._groups.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def handed_over(self, number: int, is_accepted: bool) -> None:
        """The user's loop has taken it: another may start in its place."""
        with self._lock:
            self._scheduler.handed_over(number, is_accepted)
            granted = self._grant()
        _resolve(granted)

    def explain(self) -> str:
        """Who is waited for, in one line."""
        with self._lock:
            waits = sorted(
                ((what, age, worker) for worker, member in self._members.items() for what, age in member.waits),
                key=lambda one: -one[1],
            )
        told = [f"worker {worker} waits {age:.0f} s for {what}" for what, age, worker in waits[:3]]
        if told:
            return "; ".join(told)
        return f"{self.num_running} groups in play, {self.num_waiting} waiting, {self.num_members} workers"

    def abandon(self) -> list[Ticket]:
        """Nobody can play what is left: it leaves now, and is for the caller to tell."""
        with self._lock:
            return self._scheduler.abandon()

    def close(self) -> None:
        """No more tickets: whoever pulls gets None, and what comes back is not taken."""
        with self._lock:
            self._is_closed = True
            self._scheduler.take_back()
            granted = self._grant()
        _resolve(granted)

    def _grant(self) -> list[tuple[Future[Ticket | None], Ticket | None]]:
        """Answers for those who pull, as far as there are any; given outside of the lock."""
        granted: list[tuple[Future[Ticket | None], Ticket | None]] = []
        kept: deque[tuple[int, Future[Ticket | None]]] = deque()
        while self._pulls:
            worker, future = self._pulls.popleft()
            if self._is_closed or self._scheduler.is_done:
                granted.append((future, None))
                continue
            is_held = worker >= self._active or (self._is_fragile and bool(self._missing))
            ticket = None if is_held else self._scheduler.next(worker, self._version())
            if ticket is None:
                kept.append((worker, future))
            else:
                self._group_size = ticket.group_size
                logger.info("group %d (%s) goes to worker %d", ticket.number, ticket.tag, worker)
                granted.append((future, ticket))
        self._pulls = kept
        to_come = min(self._most_live, self._scheduler.num_running + self._scheduler.num_waiting)
        self._on_live(to_come * self._group_size)
        return granted


def _resolve(granted: list[tuple[Future[Ticket | None], Ticket | None]]) -> None:
    for future, ticket in granted:
        if future.set_running_or_notify_cancel():
            future.set_result(ticket)
