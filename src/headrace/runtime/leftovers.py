"""What environments of this process have started and not closed, when the process is about to end.

    descendants of this process, in its own process group, no resource tracker ──> SIGTERM, a moment, SIGKILL

The same rule as in a worker (runtime/life): a process that left the group, by a session of its own, is left alone. Only
for a process that is headrace's as a whole, as a command is: in a user's own process nobody knows whose a child is.
What a shell had started before it became the command (exec) is not the command's. Where
the command is killed, runtime/guard does the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterator
from multiprocessing.connection import wait
from pathlib import Path

from headrace.clock import now_s

_GRACE_S = 1.0  # to end by itself, once it was asked to
_TRACKER = b"resource_tracker import main"  # multiprocessing's and joblib's: they remove shared memory, and end with us


def end_spawned(others: Collection[int] = ()) -> list[str]:
    """End what is left, but for children that are `others`, and theirs; returns what it was, in words."""
    ended, handles = [], []
    for pid in descendants(os.getpid(), others):
        with contextlib.suppress(OSError):  # it is gone meanwhile
            handle = os.pidfd_open(pid)  # from now on nobody else can be meant
            if not is_to_end(pid, os.getpgrp()):
                os.close(handle)
                continue
            ended.append(f"{Path(f'/proc/{pid}/comm').read_text().strip()} (process {pid})")
            handles.append(handle)
    end(handles)
    return ended


def is_to_end(pid: int, group: int) -> bool:
    """Whether a process is in this process group, has not ended (Z, X), and is no resource tracker."""
    state, _, its_group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
    return int(its_group) == group and state not in "ZX" and _TRACKER not in Path(f"/proc/{pid}/cmdline").read_bytes()


def end(handles: list[int]) -> None:
    """Have the processes of these pidfds end, and kill what has not after a moment. Closes the pidfds."""
    _send(handles, signal.SIGTERM)
    _send(handles, signal.SIGCONT)  # one that stands still could not end
    waiting, until_s = list(handles), now_s() + _GRACE_S
    with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: they get no more time
        while waiting and (gone := wait(waiting, max(0.0, until_s - now_s()))):
            waiting = [handle for handle in waiting if handle not in gone]
    _send(waiting, signal.SIGKILL)
    for handle in handles:
        os.close(handle)


def _send(handles: list[int], number: int) -> None:
    for handle in handles:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(handle, number)


def descendants(pid: int, others: Collection[int] = ()) -> Iterator[int]:
    """Children of every thread of a process, and theirs; not `others`."""
    for child in _children(pid):
        if child not in others:
            yield child
            yield from descendants(child, others)


def _children(pid: int) -> set[int]:
    """At least twice: a thread that ends meanwhile hands its children to one that may have been read before."""
    found, new = set(_read_children(pid)), True
    while new:
        again = set(_read_children(pid))
        new = not again <= found
        found |= again
    return found


def _read_children(pid: int) -> Iterator[int]:
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            yield from map(int, file.read_text().split())
