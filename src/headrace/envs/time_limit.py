"""A limit for environments that run in this process: one that shows no progress ends the work, or the process.

    with time_limit(name, note, limit_s): make, reset, step      the crash note stands still for limit_s
        -> Ctrl-C to the thread that hangs -> EnvError: what it was in, with its Python stack
        -> that did not help, or there is no way to break in: said on stderr, all stacks, exit code 1

The last is faulthandler's own timer, which needs no GIL. It also counts the time in which the process was stopped
(Ctrl-Z). Slow is not hung: every step, reset and make begins the limit anew. Does not know runs.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from headrace.clock import now_s
from headrace.errors import EnvError
from headrace.memory.crash_note import CrashNote, Doing

_POLL_S = 0.5
_GRACE_S = 5.0  # for the environment to be left, once it was interrupted
RAISE = "raise hang_ceiling_s (0: no limit)"


@contextmanager
def time_limit(name: str, note: CrashNote, limit_s: float, advice: str = RAISE) -> Iterator[None]:
    """No more than limit_s without progress of the environments that keep this note; 0: for ever."""
    if not limit_s:
        yield
        return
    watch = _Watch(name, note, limit_s, advice)
    try:
        with watch.watching():
            yield
    except KeyboardInterrupt:
        if watch.error is None:  # the user's own Ctrl-C
            raise
        raise watch.error from None


class _Watch:
    """A thread that looks at the note now and then."""

    def __init__(self, name: str, note: CrashNote, limit_s: float, advice: str) -> None:
        self._name, self._note, self._limit_s, self._advice = name, note, limit_s, advice
        self._watched = threading.current_thread()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="time-limit", daemon=True)
        self.error: EnvError | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._arm()
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._thread.join()
            faulthandler.cancel_dump_traceback_later()

    def _arm(self) -> None:
        with suppress(AttributeError, OSError, RuntimeError, ValueError):  # there is no stderr
            faulthandler.dump_traceback_later(self._limit_s + _GRACE_S, exit=True, file=sys.__stderr__)  # type: ignore[arg-type]

    def _watch(self) -> None:
        poll_s = min(_POLL_S, self._limit_s / 10)
        seen, idle_s, looked_s, is_said = b"", 0.0, now_s(), False
        while not self._ended.wait(poll_s):
            now, words = now_s(), self._note.words.tobytes()
            idle_s += min(now - looked_s, 2 * poll_s)  # more than that, and nobody looked
            looked_s = now
            if words != seen:
                seen, idle_s = words, 0.0
                self._arm()
            elif idle_s >= self._limit_s and self.error is None:
                self.error = self._error()
                if self._can_break():
                    signal.pthread_kill(self._watched.ident or 0, signal.SIGINT)
            is_stuck = not self._can_break() or idle_s > self._limit_s + _GRACE_S / 2
            if self.error is not None and is_stuck and not is_said:
                is_said = True
                if sys.stderr is not None:
                    said = (*self.error.__notes__, f"headrace: error: {self.error}")
                    print(*said, sep="\n", file=sys.stderr, flush=True)

    def _error(self) -> EnvError:
        noted = self._note.read()
        where = "" if noted.doing is Doing.NOTHING else f" in {noted.doing.name.lower()}()"
        error = EnvError(
            f"{self._name}: hung{where}: no progress for {self._limit_s:g} s; {self._advice} if it is only slow"
        )
        frame = sys._current_frames().get(self._watched.ident or 0)
        error.add_note("In the environment:\n" + "".join(traceback.format_stack(frame)).rstrip())
        return error

    def _can_break(self) -> bool:
        is_main = self._watched is threading.main_thread()
        return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
