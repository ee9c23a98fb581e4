"""Threads that run an environment's calls with a time limit, off whoever waits. One that hangs is given up.

    submit(call) -> Future · give_up(future, afterwards): nobody waits for it any more

Python can't stop a thread, so a hung call keeps its own until it returns; then `afterwards` runs (an environment is
closed where it was stuck) and the thread ends. Threads are daemons: a call that never returns can't keep the process.
Does not know environments.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.clock import now_s

T = TypeVar("T")


@dataclass
class _Job:
    call: Callable[[], Any]
    future: Future[Any]
    afterwards: Callable[[], None] | None = None
    is_given_up: bool = False
    thread: threading.Thread | None = None


class Callers:
    """As many threads as there are calls at one time, at most `most`; idle ones are used again."""

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._running: dict[int, _Job] = {}  # by the future's id
        self._idle = 0
        self._threads: set[threading.Thread] = set()
        self._is_closed = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run it as soon as a thread is free."""
        future: Future[T] = Future()
        with self._changed:
            assert not self._is_closed, "closed"
            self._jobs.append(_Job(call, future))
            if self._idle >= len(self._jobs):
                self._changed.notify()
            else:
                self._start()
        return future

    def give_up(self, future: Future[Any], afterwards: Callable[[], None]) -> None:
        """Nobody waits for this call any more; `afterwards` runs when, and if, it returns."""
        with self._changed:
            job = self._running.get(id(future))
            if job is not None:
                job.is_given_up, job.afterwards = True, afterwards
                if job.thread is not None:
                    self._threads.discard(job.thread)  # it is lost to us: another takes its place
                if self._jobs:
                    self._start()
                return
        future.cancel()
        afterwards()

    def close(self, patience_s: float = 1.0) -> int:
        """End all threads that are not stuck; returns how many calls are still out."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            threads = list(self._threads)
        deadline = now_s() + patience_s
        for thread in threads:
            thread.join(max(0.0, deadline - now_s()))
        with self._changed:
            return len(self._running)

    def _start(self) -> None:
        if len(self._threads) < self._most:
            thread = threading.Thread(target=self._work, name="env-caller", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _work(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                while not self._jobs:
                    if self._is_closed:
                        self._threads.discard(me)
                        return
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                job = self._jobs.popleft()
                if not job.future.set_running_or_notify_cancel():
                    continue
                job.thread = me
                self._running[id(job.future)] = job
            try:
                result, error = job.call(), None
            except BaseException as raised:
                result, error = None, raised
            with self._changed:
                del self._running[id(job.future)]
            if error is None:
                job.future.set_result(result)
            else:
                job.future.set_exception(error)
            if job.is_given_up:
                if job.afterwards is not None:
                    with suppress(Exception):
                        job.afterwards()
                return
