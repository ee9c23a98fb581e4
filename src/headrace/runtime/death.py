"""The end of a child process: how it came about, and what becomes of a child that hangs up.

    exit code --how_it_ended--> words      line closed --hung_up--> Death, of a process that is gone for certain

A child that hangs up and lives on can't be spoken to any more, whatever it has become: it is ended, so that it neither
keeps the parent busy nor is waited for. Does not know what the child did, nor whether it is replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.connection import wait
from signal import Signals
from typing import Protocol

_LEAVE_S = 0.2  # for a child that has hung up to end by itself: its line closes a moment before it is gone


class Mortal(Protocol):
    """A child process, as far as its end goes."""

    name: str
    pid: int
    sentinel: int  # ready for reading once the process has ended

    @property
    def has_ended(self) -> bool: ...

    def end(self, timeout_s: float) -> int | None: ...


@dataclass(frozen=True)
class Death:
    """A child is gone, and everything it said has been read."""

    child: Mortal
    exit_code: int | None
    has_hung_up: bool = False
    """It lived and had closed its line, so it was ended."""

    @property
    def how(self) -> str:
        """In words."""
        if self.has_hung_up:
            return "closed its line to the learner or became another program, and was ended"
        return how_it_ended(self.exit_code)


def how_it_ended(exit_code: int | None) -> str:
    """In words."""
    if exit_code is None:
        return "exit code unknown, because the fork server that had started it was gone, or another had waited for it"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"killed by signal {-exit_code} ({Signals(-exit_code).name})"
    except ValueError:
        return f"killed by signal {-exit_code}"


def hung_up(child: Mortal) -> Death:
    """The end of a child whose line closed first, nearly always because its process is ending."""
    wait([child.sentinel], _LEAVE_S)
    lives = not child.has_ended
    return Death(child, child.end(0.0 if lives else 1.0), has_hung_up=lives)
