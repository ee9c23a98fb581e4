"""An environment that ends badly at one step of its process: it takes the process with it, hangs, or says odd things.

    Ending(how, at)     Steady, until the at-th step that any instance of this process takes; `how` names what happens

What an environment raises may hold anything: lone surrogates, control characters, 50 MB, or a message that can't be
shown. Named as support.ending_envs:Ending it can be found by a fresh process that has tests/ on its path.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import Any, ClassVar

from support.faulty_envs import Steady, Step

ODD = "fell over \ud800 \U0001f600 \x1b[31mred\x1b[0m é"  # a lone surrogate, an emoji, terminal codes
ODD_SHOWN = "fell over \\ud800 \U0001f600 \\x1b[31mred\\x1b[0m é"
LONG_BYTES = 50_000_000


class Unspeakable(Exception):
    """Its message can't be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Ending(Steady):
    """See the module docstring."""

    steps: ClassVar[int] = 0

    def __init__(self, how: str, at: int, seconds: float = 0.0) -> None:
        super().__init__()
        self._how, self._at, self._seconds = how, at, seconds

    def step(self, action: Any) -> Step:
        Ending.steps += 1
        if Ending.steps == self._at and "HEADRACE_TEST_MENDED" not in os.environ:
            self._end()
        return super().step(action)

    def close(self) -> None:
        if self._how == "raises, and close raises" and Ending.steps >= self._at:
            raise RuntimeError("can't be closed, either")

    def _end(self) -> None:
        match self._how:
            case "SIGSEGV":
                ctypes.string_at(0)
            case "os._exit":
                os._exit(0)
            case "sys.exit":
                sys.exit(0)
            case "odd":
                raise RuntimeError(ODD)
            case "long":
                raise RuntimeError("begin " + "x" * LONG_BYTES + " end")
            case "unspeakable":
                raise Unspeakable
            case "raises, and close raises":
                raise RuntimeError("the first thing that went wrong")
            case "hangs":
                time.sleep(self._seconds)
            case "signals itself":
                signal.raise_signal(signal.SIGINT)
