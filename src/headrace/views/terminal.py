"""The terminal while a run goes on: a live panel for a person, plain lines for a log.

    record ──> TerminalView.update ──> Progress ──┬── a terminal ──> panel, redrawn at most every min_interval_s
                                                  └── a pipe, CI ──> one line at most every 10 s, first and last always

Drawing happens inside update, in the caller's thread: there is no refresher thread to leave behind or to fork with.
A terminal that goes away (closed window, broken pipe) ends the view, never the run. What it does not have characters
for, and control characters, are shown as escapes.
This file does not know what a panel looks like (panel) or what a line says (progress).
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import IO, TYPE_CHECKING, NoReturn, Protocol, Self

from headrace.plain_text import encodable, printable
from headrace.telemetry.sinks import Record
from headrace.views.panel import render_panel
from headrace.views.process_usage import ProcessUsage
from headrace.views.progress import Progress
from headrace.views.text_layout import ASCII, UNICODE

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

logger = logging.getLogger(__name__)

PLAIN_INTERVAL_S = 10.0

# Drawing may take this share of the run at most: on a slow machine the panel is redrawn less often than asked.
_MAX_DRAWING_SHARE = 0.01


class TerminalView:
    """Shows a run as it goes on. Use as a context manager; records may come as fast as they like."""

    def __init__(
        self,
        title: str,
        total_timesteps: int,
        facts: Mapping[str, str],
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        min_interval_s: float = 0.25,
    ) -> None:
        self._progress = Progress(total_timesteps)
        self._clock = clock
        title = printable(title, is_one_line=True)
        facts = {name: printable(value, is_one_line=True) for name, value in facts.items()}
        self._screen: _Screen
        if _is_for_a_person(console):
            self._screen = _LivePanel(title, facts, self._progress, console, clock)
            self._interval_s = min_interval_s
        else:
            self._screen = _PlainLines(title, facts, self._progress, console.file if console else sys.stdout)
            self._interval_s = PLAIN_INTERVAL_S
        self._next_draw_s = -float("inf")
        self._has_undrawn = False
        self._is_gone = False

    def __enter__(self) -> Self:
        self._attempt(self._screen.open)
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._has_undrawn:
            self._draw()
        self._attempt(self._screen.close)

    def update(self, record: Record) -> None:
        self._progress.add(record)
        self._has_undrawn = True
        if self._clock() >= self._next_draw_s:
            self._draw()

    def message(self, text: str) -> None:
        """A line that stays: above the panel, or among the plain lines."""
        self._attempt(lambda: self._screen.message(printable(text)))

    def _draw(self) -> None:
        started_s = self._clock()
        self._attempt(self._screen.draw)
        self._has_undrawn = False
        cost_s = self._clock() - started_s
        self._next_draw_s = started_s + max(self._interval_s, cost_s / _MAX_DRAWING_SHARE)

    def _attempt(self, action: Callable[[], None]) -> None:
        if self._is_gone:
            return
        try:
            action()
        except Exception as error:
            self._is_gone = True
            logger.warning("the terminal view is gone, the run goes on: %s: %s", type(error).__name__, error)
            with suppress(Exception):
                self._screen.close()  # rich holds sys.stdout while its panel is up: give it back


class _Screen(Protocol):
    def open(self) -> None: ...

    def draw(self) -> None: ...

    def message(self, text: str) -> None: ...

    def close(self) -> None: ...


class _PlainLines:
    def __init__(self, title: str, facts: Mapping[str, str], progress: Progress, file: IO[str]) -> None:
        self._heading = "\n".join(f"{name:<12} {value}" for name, value in facts.items()) or title
        self._progress = progress
        self._file = file

    def open(self) -> None:
        self.message(self._heading)

    def draw(self) -> None:
        self.message(self._progress.plain_line())

    def message(self, text: str) -> None:
        print(encodable(text, getattr(self._file, "encoding", None)), file=self._file, flush=True)

    def close(self) -> None:
        pass


class _LivePanel:
    def __init__(
        self,
        title: str,
        facts: Mapping[str, str],
        progress: Progress,
        console: Console | None,
        clock: Callable[[], float],
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._facts = facts
        self._progress = progress
        self._clock = clock
        self._usage = ProcessUsage(clock)
        self._started_s = clock()
        self._console = console or Console()
        self._console.on_broken_pipe = _raise_broken_pipe  # type: ignore[method-assign]  # rich's own ends the process
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")

    def open(self) -> None:
        self._started_s = self._clock()
        self._live.start()

    def draw(self) -> None:
        self._live.update(self._panel(), refresh=True)

    def message(self, text: str) -> None:
        self._console.print(encodable(text, self._console.encoding), markup=False, highlight=False)

    def close(self) -> None:
        self._live.stop()

    def _panel(self) -> Text:
        return render_panel(
            self._title,
            self._facts,
            self._progress,
            self._usage.sample(),
            uptime_s=self._clock() - self._started_s,
            width=self._console.width,
            glyphs=ASCII if self._console.options.ascii_only else UNICODE,
        )


def _raise_broken_pipe() -> NoReturn:
    raise BrokenPipeError(errno.EPIPE, "nobody reads the terminal's output any more")


def _is_for_a_person(console: Console | None) -> bool:
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        return False
    if console is not None:
        return console.is_terminal and not console.is_dumb_terminal
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
