"""Threads that run an environment's calls with a time limit.

    submit(call) -> Future · give_up(future, afterwards): its result is not waited for any more, and never comes

Calls that wait get a thread each, as far as the interpreter can serve so many: calls that wait 1 ms and compute 0.1 ms
keep it busy with a dozen threads, and others would only take turns. Calls that are over in no time share a few. What
kind they are is learned from those that came back; and where calls queue while the process has nothing to do, all
threads are in calls that wait, and more threads come.

Python can't stop a thread, so a hung call keeps its own until it returns; then `afterwards` runs (an environment is
closed where it was stuck) and the thread ends. Threads are daemons: a call that never returns can't keep the process.
Does not know environments.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.clock import now_s

T = TypeVar("T")

_SHORT_S = 2e-4  # a call that waits no longer does not keep its thread from the next
_LONG_S = 2e-3  # computing that is not done any sooner by more threads
_COMPUTING = 4  # threads for calls that compute
_UNKNOWN = 8  # threads for calls of a kind that is new
_HAND_S = 5e-5  # of computing per call, beside its own
_SPARE = 2  # times as many threads as calls that wait alike would keep busy
_LOOK_S = 1e-3  # between looks at a queue


class Outcome:
    """What came of a call: a future that nobody waits for, and that costs a third. `ended` is called in its thread."""

    __slots__ = ("_ended", "_error", "_free", "_is_cancelled", "_result", "took_s")

    def __init__(self, ended: Callable[[Outcome], None]) -> None:
        self._ended = ended
        self._free = [True]  # taken by the first that pops it: the thread that begins, or the one that cancels
        self._is_cancelled = False
        self._result: Any = None
        self._error: BaseException | None = None
        self.took_s = 0.0, 0.0  # seconds, and of them computing

    def cancel(self) -> bool:
        """Whether it never begins."""
        self._is_cancelled = self._is_cancelled or self.set_running_or_notify_cancel()
        return self._is_cancelled

    def cancelled(self) -> bool:
        """Whether it was cancelled before it began."""
        return self._is_cancelled

    def set_running_or_notify_cancel(self) -> bool:
        """Whether the caller is to run it."""
        try:
            return self._free.pop()
        except IndexError:
            return False

    def set_result(self, result: Any) -> None:
        """It returned."""
        self._result = result
        self._ended(self)

    def set_exception(self, error: BaseException) -> None:
        """It raised."""
        self._error = error
        self._ended(self)

    def exception(self) -> BaseException | None:
        """What it raised."""
        return self._error

    def result(self) -> Any:
        """What it returned."""
        return self._result


Awaited = Future[Any] | Outcome


@dataclass(slots=True, eq=False)
class _Call:
    call: Callable[[], Any]
    future: Awaited
    kind: str
    begun_s: float = 0.0
    thread: threading.Thread | None = None
    afterwards: Callable[[], None] | None = None


class Callers:
    """As many threads as calls that wait, at most `most`; idle ones are used again."""

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._jobs: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()  # None: a thread may end
        self._lock = threading.Lock()  # of who comes, ends, or is given up; calls go without it
        self._running: dict[int, _Call] = {}  # by the future's id
        self._threads: set[threading.Thread] = set()
        self._keeper: threading.Thread | None = None
        self._keeping = threading.Event()  # there is a queue to look at
        self._waits: dict[str, float] = {}  # of calls of a kind, what they do not compute: about the shorter ones
        self._waits_s = 0.0  # the same, of all kinds
        self._computes_s = 0.0  # of a call, on average
        self._is_closed = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run it as soon as a thread is free."""
        future: Future[T] = Future()
        self.submit_all([(call, future)])
        return future

    def submit_all(self, calls: Sequence[tuple[Callable[[], Any], Awaited]], kind: str = "") -> None:
        """Several of a kind at once, each with its future."""
        for call, future in calls:
            self._jobs.put(_Call(call, future, kind))
        if self._num_waiting > 0:
            self._see_to_the_queue(kind)

    def go_on(self, call: Callable[[], Any], future: Awaited, kind: str) -> None:
        """The same, in this thread if it is one of these: a call that follows another."""
        if threading.current_thread() in self._threads:
            self._do(_Call(call, future, kind))
        else:
            self.submit_all([(call, future)], kind)

    def begun_s(self, future: Awaited) -> float | None:
        """When this call was begun; None if it waits for a thread."""
        job = self._running.get(id(future))
        return job.begun_s if job is not None else None

    def give_up(self, future: Awaited, afterwards: Callable[[], None]) -> bool:
        """Its result is not waited for any more. True: it is out, and `afterwards` runs when, and if, it returns.

        False: it never began, or is over; what comes after it is for the caller.
        """
        with self._lock:
            job = None if future.cancel() else self._running.pop(id(future), None)
            if job is None:
                return False
            job.afterwards = afterwards  # it is out of `_running`: its thread sees that
            assert job.thread is not None
            self._threads.discard(job.thread)  # it is lost to us: another takes its place
        if self._num_waiting > 0:
            self._start(1)
        return True

    def close(self, patience_s: float = 1.0) -> int:
        """End all threads that are not stuck, after what was submitted; returns how many calls are still out."""
        with self._lock:
            self._is_closed = True
            threads = [*self._threads, *([self._keeper] if self._keeper is not None else [])]
        for _ in threads:
            self._jobs.put(None)
        self._keeping.set()
        deadline = now_s() + patience_s
        for thread in threads:
            thread.join(max(0.0, deadline - now_s()))
        return len(self._running)

    # ------------------------------------------------------------------------------------------------ how many threads

    @property
    def _num_waiting(self) -> int:
        """Calls in the queue beyond those that idle threads are about to take."""
        return self._jobs.qsize() - max(0, len(self._threads) - len(self._running))

    @property
    def _is_computing(self) -> bool:
        """Whether calls compute more than they wait: only so many can, however many threads they have."""
        return self._computes_s > _LONG_S and self._waits_s < 4 * self._computes_s

    def _most_useful(self, waits_s: float) -> int:
        return 1 if self._is_computing else most_useful(waits_s, self._computes_s)

    def _see_to_the_queue(self, kind: str) -> None:
        """More threads for calls that wait, as far as is known; for others the keeper has a look."""
        waits_s = self._waits.get(kind)
        most = _UNKNOWN if waits_s is None else self._most_useful(waits_s)
        self._start(min(self._num_waiting, most - len(self._threads)))
        if self._most > 1 and self._num_waiting > 0 and not self._keeping.is_set():
            self._keeping.set()
            with self._lock:
                if self._keeper is None and not self._is_closed:
                    self._keeper = threading.Thread(target=self._keep, name="env-callers-keeper", daemon=True)
                    self._keeper.start()

    def _start(self, count: int) -> None:
        with self._lock:
            for _ in range(min(count, self._most - len(self._threads))):
                if self._is_closed:
                    return
                thread = threading.Thread(target=self._work, name="env-caller", daemon=True)
                self._threads.add(thread)
                try:
                    thread.start()
                except RuntimeError:  # the system has no more: those who are there go on
                    self._threads.discard(thread)
                    if not self._threads:
                        raise
                    return

    def _keep(self) -> None:
        """Where all threads are in calls that wait, more of them, until the queue is empty.

        All at once if the process has next to nothing to do; else threads may just not get to the interpreter, and
        twice as many are enough of a try.
        """
        while not self._is_closed:
            self._keeping.wait()
            looked_s, computed_s = now_s(), time.process_time()
            time.sleep(_LOOK_S)
            waiting = self._num_waiting
            if waiting <= 0:
                self._keeping.clear()
                if self._num_waiting > 0:  # it came just now, and saw that the keeper was looking
                    self._keeping.set()
                continue
            is_idle = time.process_time() - computed_s < 0.5 * (now_s() - looked_s)
            if is_idle:
                self._start(waiting)
            elif (most := self._most_useful(self._waits_s)) > 1:
                self._start(min(waiting, most - len(self._threads)))
            elif not self._is_computing or len(self._threads) < _COMPUTING:
                self._start(min(waiting, len(self._threads)))

    # ----------------------------------------------------------------------------------------- what a thread does

    def _work(self) -> None:
        me = threading.current_thread()
        while (job := self._jobs.get()) is not None:
            self._do(job)
            if me not in self._threads:  # given up: another has taken its place
                return
        with self._lock:
            self._threads.discard(me)

    def _do(self, job: _Call) -> None:
        job.begun_s, job.thread = now_s(), threading.current_thread()
        self._running[id(job.future)] = job
        if not job.future.set_running_or_notify_cancel():
            del self._running[id(job.future)]
            return
        computing_s = time.thread_time()
        try:
            result, error = job.call(), None
        except BaseException as raised:
            result, error = None, raised
        took_s, computing_s = now_s() - job.begun_s, time.thread_time() - computing_s
        self._learn(job.kind, took_s - computing_s, computing_s)
        if self._running.pop(id(job.future), None) is None:  # given up
            with self._lock:
                afterwards = job.afterwards
            assert afterwards is not None
            with contextlib.suppress(Exception):
                afterwards()
            return
        if isinstance(job.future, Outcome):
            job.future.took_s = took_s, computing_s
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)

    def _learn(self, kind: str, waited_s: float, computed_s: float) -> None:
        self._waits[kind] = _towards(self._waits.get(kind, waited_s), waited_s)
        self._waits_s = _towards(self._waits_s, waited_s)
        self._computes_s += 0.1 * (computed_s - self._computes_s)


def most_useful(waits_s: float, computes_s: float) -> int:
    """Threads for calls that wait and compute so long; with more of them the interpreter would get no more done."""
    return 1 if waits_s <= _SHORT_S else 1 + int(_SPARE * waits_s / (computes_s + _HAND_S))


def _towards(known_s: float, waited_s: float) -> float:
    """Down quickly and up slowly: a call that computes looks as if it waited when others have the interpreter."""
    return known_s + (0.3 if waited_s < known_s else 0.1) * (waited_s - known_s)
