"""What commands print: printable whatever it quotes, and never a traceback because nobody reads it.

say, warn ──> stderr        flush ──> stdout, at the end; a reader that went away (`| head`) is no error
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from headrace.plain_text import printable


def say(text: str) -> None:
    """A message."""
    with suppress(OSError):
        print(printable(text), file=sys.stderr)


def warn(text: str) -> None:
    """A warning, of one line."""
    say(f"headrace: warning: {printable(text, is_one_line=True)}")


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
