"""Waiting for other processes, by looking: never longer than needed, and never for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def wait_until(reached: Callable[[], bool], timeout_s: float = 200.0) -> float:
    """Poll; returns the seconds it took."""
    begun = time.monotonic()
    while not reached():
        assert time.monotonic() < begun + timeout_s, "never got there"
        time.sleep(0.002)
    return time.monotonic() - begun


def is_gone(pid: int) -> bool:
    """Ended, even if nobody has reaped it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def family(pid: int) -> set[int]:
    """A process's children and theirs."""
    children: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        children |= {int(child) for child in task.read_text().split()}
    return children.union(*map(family, children))


def segments_of_processes(pids: set[int]) -> set[Path]:
    """The shared memory of headrace that any of these processes has mapped."""
    found: set[Path] = set()
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:
            continue  # gone meanwhile
        found |= {Path(line.split()[5]) for line in lines if "/dev/shm/headrace-" in line}
    return found


def idle(pid: int) -> bool:
    """Whether a process uses no processor time for a moment."""

    def used() -> int:
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))

    before = used()
    time.sleep(0.2)
    return used() == before
