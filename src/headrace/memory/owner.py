"""Whose a name in a shared place is: the process id and the moment that process started, in the name itself.

    this_process() --mark--> "4711-88213" in a name --owner_in--> Owner --is_alive--> True or False

The kernel gives a process id again, but not with the same start (in clock ticks since boot). A process id of another
container means nothing here: `orphans` asks for a lock as well. Linux only: it reads /proc.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_MARK = re.compile(r"(\d{1,10})-(\d{1,20})-")
_STATE, _STARTED = 0, 19  # fields of /proc/PID/stat, counted after the command


@dataclass(frozen=True)
class Owner:
    """A process, now and for good."""

    pid: int
    started: int
    """Clock ticks after boot."""

    @property
    def mark(self) -> str:
        """As it stands in a name."""
        return f"{self.pid}-{self.started}"

    def is_alive(self, proc: Path = Path("/proc")) -> bool:
        """Whether that very process runs; one that has ended and was not reaped yet does not."""
        fields = _fields(self.pid, proc)
        return fields is not None and fields[_STATE] not in "ZX" and int(fields[_STARTED]) == self.started


def this_process() -> Owner:
    """The process that asks; a fork of it is another one."""
    fields = _fields(os.getpid(), Path("/proc"))
    return Owner(os.getpid(), 0 if fields is None else int(fields[_STARTED]))


def owner_in(name: str, prefix: str) -> Owner | None:
    """The owner that a name of ours carries behind its prefix; None if it carries none."""
    found = _MARK.match(name.removeprefix(prefix)) if name.startswith(prefix) else None
    return None if found is None else Owner(int(found[1]), int(found[2]))


def _fields(pid: int, proc: Path) -> list[str] | None:
    """State, start and others of a process; None if there is none."""
    try:
        return (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
