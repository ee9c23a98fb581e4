"""Threads that run an environment's calls with a time limit, and the way from threads back into an event loop.

    Callers: submit(call) -> Future · give_up(future, afterwards): its result is not waited for any more
    Bridge, of a loop: result(future) · post(call) ──> box ──(one wake-up)──> loop: every call in the box, in order

Calls that wait get a thread each; calls that are over in no time share a few, since threads that take turns at the
interpreter cost more than such a call. Which kind they are is learned from those that came back; if no call is taken
for a moment, all threads are in one that waits, and more threads come. A thread takes call after call without the
lock; that is for threads that go to sleep, wake others, or give up.

Python can't stop a thread, so a hung call keeps its own until it returns; then `afterwards` runs (an environment is
closed where it was stuck) and the thread ends. Threads are daemons: a call that never returns can't keep the process.

An engine that answers a batch, or environments that come back together, would write to the loop's pipe for each
answer: with a bridge, many threads wake the loop once. Does not know environments.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from headrace.clock import now_s

T = TypeVar("T")

_DRAIN_S = 2e-3  # calls that wait should all have begun after that
_SHORT_S = 2e-4  # a call that waits no longer does not keep its thread from the next
_LONG_S = 2e-3  # computing that is not done any sooner by more threads
_COMPUTING = 4  # threads for calls that compute
_STUCK_S = 4e-3  # without a call being taken: all threads are in one that waits


@dataclass
class _Call:
    call: Callable[[], Any]
    future: Future[Any]
    submitted_s: float
    begun_s: float = 0.0
    thread: threading.Thread = field(default_factory=threading.current_thread)
    afterwards: Callable[[], None] | None = None


class Callers:
    """As many threads as calls that wait, at most `most`; idle ones are used again."""

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._jobs: deque[_Call] = deque()
        lock = threading.Lock()
        self._changed, self._keeping = threading.Condition(lock), threading.Condition(lock)
        self._running: dict[int, _Call] = {}  # by the future's id
        self._idle = 0  # threads that wait for a call
        self._coming = 0  # those that were woken or started and have not taken one yet
        self._threads: set[threading.Thread] = set()
        self._keeper: threading.Thread | None = None
        self._waits_s = 0.0  # of a call, what it does not compute: about the shorter ones
        self._computes_s = 0.0  # of a call, on average
        self._taken_s = 0.0  # when one was last taken
        self._is_closed = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run it as soon as a thread is free."""
        future: Future[T] = Future()
        self.submit_all([(call, future)])
        return future

    def submit_all(self, calls: Sequence[tuple[Callable[[], Any], Future[Any]]]) -> None:
        """Several at once, each with its future."""
        now = now_s()
        with self._changed:
            assert not self._is_closed, "closed"
            self._jobs.extend(_Call(call, future, now) for call, future in calls)
            self._wake(self._wanted() - self._coming)
            if self._most > 1 and len(self._jobs) <= len(calls):
                self._keep()

    def begun_s(self, future: Future[Any]) -> float | None:
        """When this call was begun; None if it waits for a thread."""
        job = self._running.get(id(future))
        return job.begun_s if job is not None else None

    def give_up(self, future: Future[Any], afterwards: Callable[[], None]) -> bool:
        """Its result is not waited for any more. True: it is out, and `afterwards` runs when, and if, it returns.

        False: it never began, or is over; what comes after it is for the caller.
        """
        with self._changed:
            job = None if future.cancel() else self._running.pop(id(future), None)
            if job is None:
                return False
            job.afterwards = afterwards  # it is out of `_running`: its thread sees that
            self._threads.discard(job.thread)  # it is lost to us: another takes its place
            self._wake(min(1, len(self._jobs)) - self._coming)
            return True

    def close(self, patience_s: float = 1.0) -> int:
        """End all threads that are not stuck; returns how many calls are still out."""
        with self._changed:
            self._is_closed = True
            self._wake(len(self._jobs))
            self._coming, self._idle = self._coming + self._idle, 0
            self._changed.notify_all()
            self._keeping.notify()
            threads = [*self._threads, *([self._keeper] if self._keeper is not None else [])]
        deadline = now_s() + patience_s
        for thread in threads:
            thread.join(max(0.0, deadline - now_s()))
        with self._changed:
            return len(self._running)

    @property
    def _is_computing(self) -> bool:
        """Whether calls compute more than they wait: only so many can, however many threads they have."""
        return self._computes_s > _LONG_S and self._waits_s < 4 * self._computes_s

    @property
    def _num_busy(self) -> int:
        """Threads that are in a call."""
        return len(self._threads) - self._idle - self._coming

    def _wanted(self) -> int:
        """Threads that should be on their way to the queue."""
        count = len(self._jobs)
        if self._is_computing:
            return min(count, _COMPUTING - self._num_busy)
        if self._waits_s < _SHORT_S:
            return min(count, 1 + int(count * self._waits_s / _DRAIN_S)) - self._num_busy
        return min(count, 1 + int(count * self._waits_s / _DRAIN_S))

    def _wake(self, count: int) -> None:
        """That many threads more: idle ones first, then new ones."""
        idle = max(0, min(count, self._idle))
        if idle:
            self._idle, self._coming = self._idle - idle, self._coming + idle
            self._changed.notify(idle)
        for _ in range(min(count - idle, self._most - len(self._threads))):
            thread = threading.Thread(target=self._work, name="env-caller", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no more: those who are there go on
                if not self._threads:
                    raise
                return
            self._threads.add(thread)
            self._coming += 1

    def _keep(self) -> None:
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._watch, name="env-callers-keeper", daemon=True)
            self._keeper.start()
        else:
            self._keeping.notify()

    def _watch(self) -> None:
        """The keeper: where all threads are in calls that wait, more of them, until the queue moves.

        All at once if the process has next to nothing to do; else threads may just not get to the interpreter, and
        twice as many are enough of a try.
        """
        with self._changed:
            while not self._is_closed:
                looked_s, computed_s = now_s(), time.process_time()
                self._keeping.wait(_STUCK_S if self._jobs else None)
                try:
                    waits_s = now_s() - max(self._taken_s, self._jobs[0].submitted_s)
                except IndexError:  # a thread has taken it
                    continue
                if waits_s < _STUCK_S:  # it moves; what was learned since it was filled may ask for more
                    self._wake(self._wanted() - self._coming - self._num_busy)
                    continue
                is_idle = time.process_time() - computed_s < 0.5 * (now_s() - looked_s)
                if self._is_computing and not is_idle:
                    continue
                more = len(self._jobs) if is_idle else min(len(self._jobs), max(1, len(self._threads) - self._idle))
                self._wake(more - self._coming)

    def _work(self) -> None:
        me = threading.current_thread()
        with self._changed:
            self._coming -= 1
        while True:
            try:
                job = self._jobs.popleft()
            except IndexError:
                if self._sleep(me):
                    continue
                return
            job.begun_s = self._taken_s = now_s()
            job.thread = me
            self._running[id(job.future)] = job
            if not job.future.set_running_or_notify_cancel():
                del self._running[id(job.future)]
                continue
            computing_s = time.thread_time()
            try:
                result, error = job.call(), None
            except BaseException as raised:
                result, error = None, raised
            computing_s = time.thread_time() - computing_s
            self._learn(now_s() - job.begun_s - computing_s, computing_s)
            is_given_up = self._running.pop(id(job.future), None) is None
            if error is None:
                job.future.set_result(result)
            else:
                job.future.set_exception(error)
            if is_given_up:
                with self._changed:
                    afterwards = job.afterwards
                assert afterwards is not None
                with contextlib.suppress(Exception):
                    afterwards()
                return

    def _sleep(self, me: threading.Thread) -> bool:
        """Until there is something to do; False: there will not be."""
        with self._changed:
            while not self._jobs:
                if self._is_closed:
                    self._threads.discard(me)
                    return False
                self._idle += 1
                self._changed.wait()
                self._coming -= 1
            return True

    def _learn(self, waited_s: float, computed_s: float) -> None:
        """Down quickly and up slowly: a call that computes looks as if it waited when others have the interpreter."""
        rate = 0.3 if waited_s < self._waits_s else 0.03
        self._waits_s += rate * (waited_s - self._waits_s)
        self._computes_s += 0.1 * (computed_s - self._computes_s)


class Bridge:
    """Into the loop that made it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._box: deque[Callable[[], None]] = deque()
        self._is_woken = False

    def post(self, call: Callable[[], None]) -> None:
        """Have it called in the loop; from any thread."""
        self._box.append(call)
        if not self._is_woken:  # one wake-up too many does no harm; one too few can't be: see `_empty`
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop has ended: it waits for nothing
                self._loop.call_soon_threadsafe(self._empty)

    async def result(self, future: Future[T], limit_s: float | None = None) -> T:
        """What a future of some thread gives; TimeoutError after limit_s. A waiter that stops leaves it to itself."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        future.add_done_callback(lambda _: self.post(partial(_wake, waiter)))
        await awaited(waiter, limit_s)
        return future.result()

    def _empty(self) -> None:
        self._is_woken = False  # before looking: what comes after the look wakes again
        while self._box:
            self._box.popleft()()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def awaited(waiter: asyncio.Future[T], limit_s: float | None) -> T:
    """A future of this loop, with a limit: asyncio.timeout at a quarter of its price, for what is awaited all day."""
    timer = None if limit_s is None else waiter.get_loop().call_later(limit_s, _expire, waiter)
    try:
        return await waiter
    finally:
        if timer is not None:
            timer.cancel()


def _expire(waiter: asyncio.Future[T]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
