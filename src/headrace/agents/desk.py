"""The desk in the parent: hands groups to workers that pull, takes them back, and looks after the workers.

    worker: join · pull -> Future[Ticket | None] · beat · over · done(group) · leave · died(how)      from any thread
    reader: groups(hosts) -> every group once; while none comes, workers that died are started again

The decisions are made elsewhere, in plain data: which group, by the scheduler; which worker is replaced, and when to
give up, by the supervisor's machine (runtime/supervisor_state). Here is the lock round both, the futures and the queue.
Does not know sockets, joblib, or why a group should be played.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

from headrace.agents.engines.protocol import Draining, Engine
from headrace.agents.limits import Limits
from headrace.agents.plan import Ticket
from headrace.agents.records import WORKER, Failure, Group
from headrace.agents.scheduler import Scheduler
from headrace.agents.seat import failed_group
from headrace.clock import now_s
from headrace.errors import HeadraceError
from headrace.runtime import supervisor_state as supervision

_LOOK_S = 0.05  # between looks at the workers while no group comes
_START_S = 60.0  # for the first worker to come up
_RESTARTS = 3  # per worker, on average
_SILENT_S = 10.0  # beyond an environment's limit, without a sign of life

Granted = list[tuple[Future[Ticket | None], Ticket | None]]

logger = logging.getLogger(__name__)


class NoWorkersError(HeadraceError):
    """The workers could not be started: what is left can be played in another way."""


class MoveError(NoWorkersError):
    """What is left is better played in another way, by workers of another kind."""


class WorkersLostError(HeadraceError):
    """Workers keep dying. What kills them should not be let into this process."""


class Hosts(Protocol):
    """Where workers run."""

    def start(self, workers: Sequence[tuple[int, int]]) -> None:
        """Start these: a worker's number, and which life of it this is. NoWorkersError if that can't be."""

    def may_start(self, workers: Sequence[int]) -> bool:
        """Whether there is a place for them yet."""

    def kill(self, worker: int) -> bool:
        """End it by force; False if that can't be done."""


class Desk:
    """Between the scheduler and the workers of one call. Thread-safe."""

    def __init__(
        self,
        scheduler: Scheduler,
        engine: Engine,
        num_workers: int,
        most_live: int,
        limits: Limits | None = None,
        is_fragile: bool = False,
    ) -> None:
        self._scheduler, self._engine = scheduler, engine
        self._draining = engine if isinstance(engine, Draining) else None
        self._most_live = most_live  # groups at one time
        self._limits = limits or Limits()
        self._is_fragile = is_fragile  # one death ends all workers: no worker gets a group until all are back
        self._supervisor = supervision.SupervisorState(
            num_workers,
            supervision.RestartLimits(
                fruitless=None,
                needs_all=False,
                restarts=_RESTARTS * num_workers,
                start_s=_START_S,
                silent_s=self._limits.env_s + _SILENT_S,
            ),
        )
        self._lives = [0] * num_workers  # how often each was lost: reports of an earlier life are old news
        self._to_start = {one.worker for one in self._supervisor.launch(now_s())}
        self._to_kill: dict[int, str] = {}  # and why
        self._given_up: supervision.GiveUp | None = None
        self._lock = threading.Lock()
        self._pulls: deque[tuple[int, Future[Ticket | None]]] = deque()
        self._groups: queue.SimpleQueue[Group] = queue.SimpleQueue()
        self._active = num_workers  # workers below this number get groups
        self._group_size = 1
        self._over: dict[int, int] = {}  # group in play -> episodes of it that ask nothing more
        self._progress_s = now_s()
        self._is_closed = False

    # ------------------------------------------------------------------------------------------- what workers call

    def join(self, worker: int, life: int) -> None:
        """A worker is ready."""
        with self._lock:
            self._progress_s = now_s()
            if life == self._lives[worker]:
                self._handle(supervision.Ready(worker))

    def beat(self, worker: int, waits: list[tuple[str, float]]) -> None:
        """A sign of life, and what the worker waits for."""
        with self._lock:
            self._handle(supervision.Beat(worker, waits))

    def leave(self, worker: int, life: int) -> None:
        """A worker has ended as it should."""
        with self._lock:
            if life == self._lives[worker]:
                self._handle(supervision.Left(worker))

    def died(self, worker: int, life: int, how: str) -> None:
        """A worker is gone without a word: its groups are played again, or emitted as failed."""
        with self._lock:
            if self._is_closed or life != self._lives[worker]:
                return
            self._lives[worker] += 1
            self._pulls = deque(one for one in self._pulls if one[0] != worker)
            self._handle(supervision.Died(worker, self._to_kill.pop(worker, how)))
            granted = self._grant()
        _resolve(granted)

    def pull(self, worker: int) -> Future[Ticket | None]:
        """A group when there is one for this worker; None when there are no more."""
        future: Future[Ticket | None] = Future()
        with self._lock:
            self._pulls.append((worker, future))
            granted = self._grant()
        _resolve(granted)
        return future

    def over(self, number: int) -> None:
        """An episode of this group asks nothing more: an engine need not wait for it."""
        with self._lock:
            self._over[number] = self._over.get(number, 0) + 1
            self._expect()

    def done(self, worker: int, group: Group) -> None:
        """A group came back; one that was given up in the meantime is dropped: it has been dealt with."""
        with self._lock:
            self._progress_s = now_s()
            self._over.pop(group.number, None)
            self._handle(supervision.Done(worker))
            if not self._is_closed and self._scheduler.finished(group.number, group.seconds):
                self._groups.put(replace(group, worker=worker))
                what = (group.number, group.tag, group.status, worker, group.seconds)
                logger.info("group %d (%s) %s by worker %d after %.2f s", *what)
            granted = self._grant()
        _resolve(granted)

    # -------------------------------------------------------------------------------------------- what the reader calls

    def groups(self, hosts: Hosts, meanwhile: Callable[[], bool]) -> Generator[Group, None, None]:
        """Every group as it comes back, each to be handed over before the next is asked for.

        `meanwhile` is called while none comes; it returns whether it has explained the wait. NoWorkersError if no
        worker comes up; if they keep dying, what is left has failed.
        """
        reported_s = now_s()
        try:
            self._look_after(hosts)
            while not self._scheduler.is_done or not self._groups.empty():
                group = self._next_group(_LOOK_S)
                if group is not None:
                    yield group
                    continue
                self._look_after(hosts)
                self.look_again()  # weights may have been published elsewhere
                if meanwhile():
                    reported_s = now_s()
                quiet_s = now_s() - max(reported_s, self._progress_s)
                if quiet_s > self._limits.stall_s:
                    reported_s = now_s()
                    logger.warning("no progress for %.0f s: %s", quiet_s, self._explain())
        except NoWorkersError:
            self._close()  # first: what comes back from now on is played again
            yield from self._finished()
            raise
        except WorkersLostError as error:
            logger.error("%s; what is left of the groups has failed", error)
            with self._lock:
                left = self._scheduler.abandon()
            yield from self._finished()
            for ticket in left:
                yield failed_group(ticket, Failure(WORKER, str(error)))
        finally:
            self._close()

    def handed_over(self, group: Group) -> None:
        """The reader has taken it: another may start in its place."""
        with self._lock:
            self._scheduler.handed_over(group)
            granted = self._grant()
        _resolve(granted)

    def look_again(self) -> None:
        """Something outside changed, such as the version of the weights."""
        with self._lock:
            granted = self._grant()
        _resolve(granted)

    def set_active(self, active: int) -> None:
        """Only the first so many workers get groups."""
        with self._lock:
            self._active = active
            granted = self._grant()
        _resolve(granted)

    @property
    def num_waiting(self) -> int:
        """Groups that no worker plays yet."""
        return self._scheduler.num_waiting

    @property
    def restarts(self) -> int:
        """Workers that were lost and started again."""
        return self._supervisor.restarts

    # ------------------------------------------------------------------------------------------------------ inside

    def _look_after(self, hosts: Hosts) -> None:
        """Carry out what the supervisor says."""
        with self._lock:
            if self._scheduler.is_done:
                return
            self._handle(supervision.Tick())
            kills, starting = dict(self._to_kill), sorted(self._to_start)
            over = self._given_up
        if over is not None:
            raise (WorkersLostError if over.has_begun else NoWorkersError)(over.why)
        for worker, why in kills.items():
            if not hosts.kill(worker):
                self.died(worker, self._lives[worker], why)
        if starting and hosts.may_start(starting):
            with self._lock:
                self._to_start -= {*starting}
                granted = self._grant()
            hosts.start([(worker, self._lives[worker]) for worker in starting])
            _resolve(granted)

    def _handle(self, event: supervision.Event) -> None:
        """Tell the supervisor, and do at once what it wants of the groups; the rest waits for `_look_after`."""
        for one in self._supervisor.handle(event, now_s()):
            if isinstance(one, supervision.Lost):
                self._requeue(one.worker, one.how)
            elif isinstance(one, supervision.Start):
                self._to_start.add(one.worker)
            elif isinstance(one, supervision.Kill):
                self._to_kill[one.worker] = f"{one.why}: something in it holds on to the interpreter"
            else:
                self._given_up = one

    def _requeue(self, worker: int, how: str) -> None:
        is_blamed = not (self._is_fragile and self._to_start)
        running = self._scheduler.running_of(worker)
        for ticket in running:
            self._over.pop(ticket.number, None)
        given_up = self._scheduler.lost(worker, is_blamed)
        for ticket in given_up:
            self._groups.put(failed_group(ticket, Failure(WORKER, how), worker))
        again = len(running) - len(given_up)
        logger.warning(
            "worker %d is gone (%s): %d groups are played again, %d given up", worker, how, again, len(given_up)
        )

    def _next_group(self, timeout_s: float) -> Group | None:
        try:
            return self._groups.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _finished(self) -> Iterator[Group]:
        """What has come back and was not read yet."""
        while (group := self._next_group(0.0)) is not None:
            yield group

    def _explain(self) -> str:
        """Who is waited for, in one line."""
        with self._lock:
            here = self._supervisor.in_phase(supervision.Phase.READY)
            notes = [(worker, self._supervisor.note(worker)) for worker in here]
            waits = [(age, what, worker) for worker, note in notes if isinstance(note, list) for what, age in note]
        if waits:
            longest = sorted(waits, key=lambda one: -one[0])[:3]
            return "; ".join(f"worker {worker} waits {age:.0f} s for {what}" for age, what, worker in longest)
        return f"{self._scheduler.num_running} groups in play, {self.num_waiting} waiting, {len(here)} workers"

    def _close(self) -> None:
        """No more groups: workers that pull get None, and what comes back is not taken."""
        with self._lock:
            self._is_closed = True
            self._scheduler.take_back()
            granted = self._grant()
        _resolve(granted)

    def _grant(self) -> Granted:
        """Answers for workers that pull, as far as there are any; given outside of the lock."""
        granted: Granted = []
        kept: deque[tuple[int, Future[Ticket | None]]] = deque()
        while self._pulls:
            worker, future = self._pulls.popleft()
            if self._is_closed or self._scheduler.is_done:
                granted.append((future, None))
                continue
            is_held = worker >= self._active or (self._is_fragile and bool(self._to_start))
            ticket = None if is_held else self._scheduler.next(worker, self._engine.version)
            if ticket is None:
                kept.append((worker, future))
            else:
                self._group_size = ticket.group_size
                logger.info("group %d (%s) goes to worker %d", ticket.number, ticket.tag, worker)
                granted.append((future, ticket))
        self._pulls = kept
        self._expect()
        return granted

    def _expect(self) -> None:
        to_come = (self._scheduler.num_running + self._scheduler.num_waiting) * self._group_size
        self._engine.expect(min(self._most_live * self._group_size, to_come - sum(self._over.values())))
        if self._draining is not None:
            self._draining.drain(not self._scheduler.has_more)


def _resolve(granted: Granted) -> None:
    for future, ticket in granted:
        if future.set_running_or_notify_cancel():
            future.set_result(ticket)
