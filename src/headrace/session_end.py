"""How a session ends: worker processes first, then what can be kept, and always for the reason that it had.

    a signal ──> Stop: collecting, evaluating and drawing are broken off; else workers end, and the rest is finished
    the end  ──> SessionEnd: workers end, checkpoint, result.json, report

A signal that comes when the run is done and its files are written is an end all the same. Nothing that fails here
hides why the run ended. Does not know updates, evaluations or which steps are left.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from headrace.errors import HeadraceError
from headrace.plain_text import MAX_ERROR, message_of
from headrace.session_result import Result, ended, write_result
from headrace.train import Run
from headrace.views.terminal import TerminalView

logger = logging.getLogger(__name__)

_EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}
_CALM_CODES = (0, 3)  # the run came to its end
_SHORT_S = 60.0  # a session that was broken off within this time gets no figure, which costs two seconds


class Interrupted(BaseException):
    """A signal broke off collecting, evaluating or drawing. Not an Exception: no environment may swallow it."""


class Stop:
    """SIGINT, SIGTERM and SIGHUP, as a session takes them; a second SIGINT gives up at once."""

    def __init__(self, run: Run, halt_others: Callable[[], None] = lambda: None) -> None:
        self._run, self._halt_others = run, halt_others
        self.signal: int | None = None
        self.is_breakable = False  # what the session is at may be broken off
        self.is_resting = False  # nothing of the source is in use

    @property
    def name(self) -> str:
        """The signal's."""
        return signal.Signals(self.signal or signal.SIGINT).name

    @property
    def exit_code(self) -> int:
        """As a shell would have it."""
        return _EXIT_CODES[self.name]

    def if_asked(self) -> None:
        """Raise if a signal came."""
        if self.signal is not None:
            raise Interrupted

    def halt(self) -> None:
        """End worker processes, whatever the session still has to do; what was collected stays."""
        try:
            self._halt_others()
            self._run.source.halt()
        except Exception as error:
            logger.warning("the workers did not end in order: %s", message_of(error))

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Only the main thread may, and needs to."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        source = self._run.source
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup: the run outlives its terminal
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, self._handle) for number in numbers}
        source.before_wait = self.if_asked  # for a signal that came while the source could not be broken off
        try:
            yield
        finally:
            source.before_wait = lambda: None
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self.signal = number
        if self._run.source.is_interruptible or self.is_breakable:
            raise Interrupted
        if self.is_resting or not self._run.is_whole:  # learning, or writing files: that is finished first
            self.halt()


class SessionEnd:
    """The end of one session, and the result.json that is there before it."""

    def __init__(
        self, run: Run, run_dir: Path | None, stop: Stop, result: Callable[[], Result], checkpoint: Callable[[], None]
    ) -> None:
        self._run, self._dir, self._stop = run, run_dir, stop
        self._result, self._checkpoint = result, checkpoint
        self._written: Result | None = None  # as result.json has it

    def note(self) -> None:
        """The session goes on: if the process dies without a word, result.json says so."""
        if self._dir is not None:
            try:
                self._write(self._result())
            except OSError as error:
                logger.warning("result.json could not be written, training goes on: %s", error)

    def of(self, train: Callable[[], tuple[str, int]]) -> Result:
        """Train, and see to the end, however it comes."""
        try:
            try:
                reason, code = train()
            except Exception as error:
                self._end_badly(error)
                raise
            return self._end(reason, code, keep=True)
        except Exception:
            raise
        except BaseException as error:  # a second Ctrl-C, or a callback that called sys.exit
            self._give_up(error)
            raise

    def _end(self, reason: str, code: int, keep: bool) -> Result:
        stop, is_calm = self._stop, code in _CALM_CODES
        stop.is_resting = True
        if not is_calm:
            stop.halt()
        result = ended(self._result(), reason, code)
        if self._dir is not None:
            if keep:
                self._checkpoint()
            self._write_last(result)
            try:
                self._report(self._dir, result, is_calm)
            except Interrupted:
                logger.info("the report was broken off; draw it with: headrace report %s", self._dir)
        if stop.signal is not None and is_calm:  # it came after the last update
            stop.halt()
            result = ended(result, stop.name, stop.exit_code)
            self._write_last(result)
        logger.info("ended: %s", result.exit_reason)
        return result

    def _end_badly(self, error: Exception) -> None:
        """Keep what can be kept; what can't be must not hide why the run failed."""
        reason = type(error).__name__
        try:
            if self._dir is not None:
                logger.error("the run failed", exc_info=error)
            what = message_of(error, MAX_ERROR)
            reason = what if isinstance(error, HeadraceError) else f"{type(error).__name__}: {what}"
            self._end(f"error: {reason}", 1, keep=self._run.is_whole)
        except Exception as second:
            logger.warning("not all of the run could be kept: %s: %s", type(second).__name__, message_of(second))
            with suppress(Exception):  # a full disk may have had room for all but a checkpoint
                self._write(ended(self._result(), f"error: {reason}", 1))

    def _give_up(self, error: BaseException) -> None:
        """At once, without a checkpoint; result.json has the numbers of the last one."""
        self._stop.halt()
        if self._written is None or self._written.exit_code is not None:
            return
        is_second = isinstance(error, KeyboardInterrupt) and self._stop.signal is not None
        reason = "SIGINT twice: ended at once, without a checkpoint" if is_second else f"error: {type(error).__name__}"
        with suppress(Exception):
            self._write(ended(self._written, reason, 130 if isinstance(error, KeyboardInterrupt) else 1))

    def _report(self, run_dir: Path, result: Result, is_calm: bool) -> None:
        """Last of all: it costs seconds, and nothing depends on it."""
        from headrace.views.report import write_report

        is_short = not is_calm and result.wall_time_s < _SHORT_S
        if is_short:
            logger.info("no figure for a run of seconds; draw it with: headrace report %s", run_dir)
        try:
            self._stop.is_breakable = True
            if is_calm:
                self._stop.if_asked()
            write_report(run_dir, has_figure=not is_short)
        except Exception as error:
            logger.warning("the report could not be written: %s: %s", type(error).__name__, message_of(error))
        finally:
            self._stop.is_breakable = False

    def _write_last(self, result: Result) -> None:
        try:
            self._write(result)
        except OSError as error:
            raise HeadraceError(f"{self._dir}{os.sep}result.json: can't be written: {error}") from error

    def _write(self, result: Result) -> None:
        if self._dir is not None:
            write_result(self._dir, result)
            self._written = result


def say_stalled(run_dir: Path, view: TerminalView | None, stall_s: float) -> None:
    """What to do about a session that hangs; called by another thread."""
    text = (
        f"no update for {stall_s:g} s: an environment may hang. The stack of every thread stands in "
        f"{run_dir / 'log.txt'}. Ctrl-C ends the run at its last update; if that does not help, kill -9 {os.getpid()}, "
        f"and --resume goes on from the last checkpoint. If the environment is only slow, wait, or raise stall_after_s"
    )
    logger.warning("%s", text)
    if view is not None:
        view.message(text)
