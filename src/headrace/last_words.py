"""What a process leaves when it can't speak any more: the stack of every thread, in a file.

    a crash (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL)   the stacks are written as the process dies
    no sign of life for stall_s                          they are written while it hangs, also if the GIL is held;
                                                         `on_stall` says the rest, as soon as the GIL is free

Environments that run inline or in threads can take the whole process with them, and nothing can replace it: a stack is
what can be had. kill -9 and os._exit leave none. Slow is not hung: nothing is ended here, and after a long pause only a
ten times longer one counts. If faulthandler is at work already (pytest, python -X faulthandler), crashes stay its own.
Does not know runs.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from headrace.clock import now_s

_ARM_S = 1.0  # between two times that the watch is set: that starts a thread
_SLOWER = 10.0  # times the longest pause so far

_is_ours = False  # the faulthandler that is enabled now


def watch_stderr() -> None:
    """The stack of a crash goes to stderr, until `stacks_into` takes it elsewhere."""
    global _is_ours
    if sys.__stderr__ is not None and not faulthandler.is_enabled():
        faulthandler.enable(sys.__stderr__)
        _is_ours = True


@contextmanager
def stacks_into(file: IO[Any]) -> Iterator[None]:
    """The stack of a crash goes to this file."""
    global _is_ours
    was_ours = _is_ours
    if faulthandler.is_enabled() and not was_ours:
        yield
        return
    faulthandler.enable(file)
    _is_ours = True
    try:
        yield
    finally:
        faulthandler.disable()
        _is_ours = False
        if was_ours:
            watch_stderr()


class StallWatch:
    """Writes the stacks into a file if no sign of life comes for stall_s, once a pause; 0: never."""

    def __init__(self, file: IO[Any], stall_s: float, on_stall: Callable[[float], None]) -> None:
        self._file, self._limit_s, self._on_stall = file, stall_s, on_stall
        self._seen_s = self._armed_s = self._due_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stall-watch", daemon=True)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """From now on."""
        if not self._limit_s:
            yield
            return
        self._seen_s = now_s()
        self._arm(self._seen_s)
        self._thread.start()
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            self._ended.set()
            self._thread.join()

    def alive(self) -> None:
        """A sign of life."""
        now = now_s()
        self._limit_s = max(self._limit_s, _SLOWER * (now - self._seen_s)) if self._limit_s else 0.0
        self._seen_s = now
        if self._limit_s and now - self._armed_s >= min(_ARM_S, self._limit_s / 10):
            self._arm(now)

    def _arm(self, now: float) -> None:
        self._armed_s, self._due_s = now, now + self._limit_s
        faulthandler.dump_traceback_later(self._limit_s, file=self._file)

    def _watch(self) -> None:
        said_s = 0.0  # the due time that was spoken of
        while not self._ended.wait(max(0.05, self._due_s - now_s())):
            due_s = self._due_s
            if now_s() >= due_s != said_s:
                said_s = due_s
                self._on_stall(self._limit_s)
