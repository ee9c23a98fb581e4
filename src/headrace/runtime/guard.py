"""The guard: what environments of a command's own process have spawned ends also when the command is killed.

    command ──pipe──> sh, in a session of its own: reads until the pipe ends
        a word was said (`leave`)      it ends, and nothing else
        none: the command was killed   it becomes Python: `end_marked` ends what carries the mark (runtime/leftovers)

The mark is a random number in a resource limit that no kernel since 2.4.25 looks at, that of file locks. What the
command forks or executes from then on inherits it, whatever becomes of its variables, descriptors and parents. Nothing
else has it: neither the shell that ran the command, nor what that shell runs beside it. Names and descriptors would not
do: an environment may start its simulator with variables of its own, and a fork may close all that it has.

The guard is no child of the command: an environment that waits for all its children would wait for it. Its command line
names neither Python nor us, so who kills by name does not kill it, too. Does not know what an environment is.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from headrace.clock import now_s
from headrace.runtime.leftovers import end, is_to_end
from headrace.runtime.life import keep_from_forks

# The shell forks the guard and ends, so the guard is somebody else's child. (A fork in the background reads no stdin.)
_GUARD = 'exec 3<&0; { read -r word <&3; [ -n "$word" ] || exec "$GUARD_PYTHON" -I -S -c "$GUARD_PROGRAM"; } &'
_PROGRAM = "import sys; sys.path.insert(0, {!r}); from headrace.runtime.guard import end_marked; end_marked{!r}"
_LOCKS = 10  # RLIMIT_LOCKS, everywhere; the resource module does not name it
_MARK_BITS = 61
_DEATH_S = 2.0  # from the end of a dying process's pipe to its own end: microseconds, if the machine is not busy
_ENDING_S = 8.0  # what spawns faster than it can be ended is given up
_PAUSE_S = 0.05


class Guard:
    """The command's side."""

    def __init__(self) -> None:
        self._is_command = False
        self._owner: Connection[Any, Any] | None = None

    def expect(self) -> None:
        """This process is headrace's as a whole. In a user's own process nobody knows whose a child is: no guard."""
        self._is_command = True

    def begin(self) -> None:
        """From now on: environments are about to be made. Without a shell, or room for a mark, there is no guard."""
        if not self._is_command or self._owner is not None:
            return
        with contextlib.suppress(OSError, ValueError):  # ValueError: a limit that was never Linux's
            limits = _limits_with_a_mark()
            if limits is not None:
                self._owner = _start(limits[0])
                resource.setrlimit(_LOCKS, limits)

    def leave(self) -> None:
        """The command ends by itself, and has ended what was left."""
        if self._owner is not None:
            with contextlib.suppress(OSError):  # the guard was killed; or this is a fork of the command
                os.write(self._owner.fileno(), b"end\n")
            self._owner.close()


command = Guard()


def _limits_with_a_mark() -> tuple[int, int] | None:
    """The limit of file locks, soft and hard, with a new mark; None if somebody has limited it.

    In a command that an environment of another command runs, that one's mark stays, as the hard limit. Two are room
    enough: deeper commands are ended by the guards of the outer ones.
    """
    soft, hard = resource.getrlimit(_LOCKS)
    if hard != resource.RLIM_INFINITY:
        return None
    is_within = soft >> _MARK_BITS > 0
    mark = int.from_bytes(os.urandom(8), "little") >> (64 - _MARK_BITS) | 1 << (_MARK_BITS + (not is_within))
    return (mark, soft if is_within else hard)


def _start(mark: int) -> Connection[Any, Any]:
    reader, owner = Pipe(duplex=False)
    keep_from_forks(owner)
    program = _PROGRAM.format(str(Path(__file__).parents[2]), (os.getpid(), os.getpgrp(), mark))
    variables = {**os.environ, "GUARD_PYTHON": sys.executable, "GUARD_PROGRAM": program}
    try:
        subprocess.run(
            ["/bin/sh", "-c", _GUARD], stdin=reader.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, cwd="/", env=variables, check=False,
        )  # fmt: skip
    finally:
        reader.close()
    return owner


# ----------------------------------------------------------------------------------------------------- the guard's side


def end_marked(pid: int, group: int, mark: int) -> None:
    """End what the command `pid` has left in its process group. Twice nothing: nobody was forking meanwhile."""
    until_s, nothing = now_s() + _ENDING_S, 0
    while nothing < 2 and now_s() < until_s and not _lives_on(pid, mark):
        found = _left(group, mark)
        end(found)
        nothing = 0 if found else nothing + 1
        time.sleep(_PAUSE_S)


def _lives_on(pid: int, mark: int) -> bool:
    """The pipe has ended, and the command has not: it became another program (exec), which is not ours to end."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            return mark in resource.prlimit(pid, _LOCKS) and not wait([handle], _DEATH_S)
        finally:
            os.close(handle)
    return False


def _left(group: int, mark: int) -> list[int]:
    """Pidfds of all that is to be ended."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if _is_left(pid, group, mark):
            with contextlib.suppress(OSError):  # it is gone meanwhile
                handle = os.pidfd_open(pid)  # from now on nobody else can be meant
                if _is_left(pid, group, mark):
                    found.append(handle)
                else:
                    os.close(handle)
    return found


def _is_left(pid: int, group: int, mark: int) -> bool:
    with contextlib.suppress(OSError):  # it is gone, or another user's
        return mark in resource.prlimit(pid, _LOCKS) and is_to_end(pid, group)
    return False
