"""What commands print: printable whatever it quotes, and never a traceback because nobody reads it.

say, warn ──> stderr    passing ──> a terminal's last line, for a while    flush ──> stdout, at the end

A reader that went away (`| head`) is no error.
"""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from contextlib import suppress

from headrace.errors import EnvError, HeadraceError
from headrace.plain_text import MAX_TRACEBACK, printable, shortened


def say(text: str) -> None:
    """A message."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(printable(text), file=sys.stderr)


def warn(text: str) -> None:
    """A warning, of one line."""
    say(f"headrace: warning: {printable(text, is_one_line=True)}")


def explain(error: HeadraceError, kind: str = "error") -> None:
    """One clear message; where somebody else's code raised, its whole traceback above it."""
    if isinstance(error, EnvError) and error.__cause__ is not None and not _is_ours(error.__cause__):
        say(shortened("".join(traceback.format_exception(error.__cause__)), MAX_TRACEBACK).rstrip())
    for note in getattr(error, "__notes__", ()):  # a worker's traceback
        say(note)
    say(f"headrace: {kind}: {error}")


def _is_ours(cause: BaseException) -> bool:
    """A complaint of our own about what an environment returned: its message says it all."""
    return type(cause).__module__.startswith("headrace.")


def passing(text: str) -> None:
    """What a command is at, on a terminal alone; the next text takes its place, an empty one leaves nothing."""
    with suppress(OSError):
        if sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[K{printable(text, is_one_line=True)[:width]}")
            sys.stderr.flush()


def open_closed_streams() -> None:
    """What was closed by who ran the command (2>&-, a daemon): else the next file that is opened has its number."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            stream = open(descriptor, "r" if descriptor == 0 else "w", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def flush(code: int) -> int:
    """Nothing more will be printed; returns the exit code. Output that could not be written is an error."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
    except OSError as error:
        drop_stdout()
        say(f"headrace: error: not all could be printed: {error}")
        return code or 1
    return code


def drop_stdout() -> None:
    """What is left in the buffer goes nowhere: Python would complain about it when the process ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
