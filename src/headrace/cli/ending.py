"""The end of a command's process, also where environments have left something that would keep it for ever.

    all is said and closed ──> Python's own end: waits for threads that are no daemons, then what atexit was given
                           ──> not over after a while: what is left is named, the rest of ours is done, the process ends

Only for a process that is headrace's as a whole.
"""

from __future__ import annotations

import logging
import multiprocessing.util
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from headrace.cli.printing import warn

_PATIENCE_S = 5.0  # for threads and handlers that end by themselves
_LAST_S = 2.0  # for what is ours


def end_in_time(code: int, patience_s: float = _PATIENCE_S) -> None:
    """From now on the process has that long to end by itself."""
    for wait_s, then in ((patience_s, _clean_up), (patience_s + _LAST_S, None)):
        threading.Thread(target=_end, args=(code, wait_s, then), name="command-end", daemon=True).start()


def exit_code(error: SystemExit) -> int:
    """As Python has it."""
    return error.code if isinstance(error.code, int) else int(error.code is not None)


def _end(code: int, wait_s: float, then: Callable[[], None] | None) -> None:
    time.sleep(wait_s)
    try:
        if then is not None:
            then()
    finally:
        os._exit(code)


def _clean_up() -> None:
    """What is said, and what atexit would have done for us: shared memory, temporary folders, logs."""
    names = [one.name for one in threading.enumerate() if not one.daemon and one is not threading.main_thread()]
    left = f"threads {', '.join(names)}" if names else "something that atexit was given"
    warn(f"ended what was still running {_PATIENCE_S:g} s after the command: {left}")
    ours: list[Any] = [weakref.finalize._exitfunc, multiprocessing.util._exit_function, logging.shutdown]  # type: ignore[attr-defined]
    ours += [stream.flush for stream in (sys.stdout, sys.stderr) if stream is not None]
    for one in ours:
        with suppress(Exception):
            one()
