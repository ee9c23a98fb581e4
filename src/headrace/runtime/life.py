"""The life line: a pipe that never carries anything. When its write end closes, the kernel kills a process group.

    parent: Life() ──read end──> child: bind(read end), first of all        parent: end(), or it dies, however it dies

`bind` makes the child the leader of a process group of its own and asks the kernel to send SIGKILL to that group when
something happens on the read end. Only one thing ever does: the last write end closes. No thread and no GIL has a part
in it, and it does not matter who forked the child. So a child in a C call of minutes dies as soon as its parent, and
what an environment has spawned dies with it. The parent keeps the read end, too: for a group whose leader is gone.
Two things are out of reach: a process that left the group (setsid), and a child before `bind`, which notices there.
Does not know what a child does.
"""

from __future__ import annotations

import fcntl
import os
import signal
import weakref
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

_PARENT_DIED = 87  # exit code of a child whose parent was gone before it could bind
_COPY = 88  # exit code of a copy of a process that an environment has forked
_bound: list[Connection[Any, Any]] = []  # a child's read end stays open as long as the child lives
_not_for_forks: weakref.WeakSet[Connection[Any, Any]] = weakref.WeakSet()


class Life:
    """The parent's side: both ends. A forked copy of the parent holds neither."""

    def __init__(self) -> None:
        # The read end comes first: of a dying process the kernel closes it last, when the write end has done its work.
        self.read_end, self._write_end = Pipe(duplex=False)
        keep_from_forks(self.read_end)
        keep_from_forks(self._write_end)

    def for_many(self) -> Connection[Any, Any]:
        """A read end that forks of the parent keep, for children that somebody else starts."""
        return Connection(os.dup(self.read_end.fileno()), writable=False)

    def end(self) -> None:
        """Kill what is left of the child's process group."""
        self._write_end.close()
        self.read_end.close()


def bind(read_end: Connection[Any, Any]) -> None:
    """The child's side: from now on this process, and what it spawns, ends with its parent."""
    os.setpgid(0, 0)
    descriptor = read_end.fileno()
    os.set_inheritable(descriptor, False)
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, -os.getpid())  # minus: the whole group
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    _bound.append(read_end)
    if read_end.poll(0):  # the end of the pipe: it was closed before
        os._exit(_PARENT_DIED)


def bind_one_of_many(read_end: Connection[Any, Any]) -> None:
    """As `bind`, where several children were given the same read end: each needs a way of its own to the pipe."""
    own = os.open(f"/proc/self/fd/{read_end.fileno()}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    bind(Connection(own, writable=False))


def keep_from_forks(connection: Connection[Any, Any]) -> None:
    """See that a plain fork of this process, by anybody, does not hold it open."""
    _not_for_forks.add(connection)


def end_copy_of(pid: int) -> None:
    """End this process if it is not that one but a copy: it would go on as a second learner."""
    if os.getpid() != pid:
        os._exit(_COPY)


def _close_in_fork() -> None:
    for connection in list(_not_for_forks):
        connection.close()


os.register_at_fork(after_in_child=_close_in_fork)
