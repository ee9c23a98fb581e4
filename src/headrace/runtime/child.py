"""A child process with a line to its parent: started, given work, ended.

    parent: Child.spawn(name) -> assign(target, payload) -> line.send(bytes) · hang_up · end
    child:  import -> target(line, payload) -> the end, or the next assignment

A child that has imported everything and has no assignment yet is a warm spare (runtime/standby). It ends with its
parent, and with it what it has spawned (runtime/life). Ctrl-C reaches the parent alone; children end when it hangs up.
A process is watched by a pidfd: nothing but its own end makes that ready. Does not know what is said over the line
(runtime/line waits for that), nor the fork server (runtime/fork_server makes a Child of what that has forked).
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import multiprocessing
import multiprocessing.util
import os
import signal
import socket
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle

from headrace.memory.segment import keep_names_registered
from headrace.runtime.descriptors import receive_memory, send_memory
from headrace.runtime.life import Life, bind, keep_from_forks
from headrace.runtime.line import Line
from headrace.safe_path import VARIABLE as SAFE_PATH
from headrace.safe_path import safe_path, starting

Target = Callable[[Line, Any], None]

_AT_ONCE = 1 << 15  # bytes that fit into a line which nobody reads
_IN_MEMORY = b"memory"  # the assignment comes as a file
_spawned: weakref.WeakSet[Child] = weakref.WeakSet()


class Child:
    """The parent's end: one process and the line to it."""

    def __init__(self, name: str, pid: int, pidfd: int, reap: Callable[[], int | None], line: Line, life: Life) -> None:
        self.name, self.pid, self.line = name, pid, line
        self.sentinel = pidfd
        self._reap = reap  # called once the process has ended; its exit code, None if that is lost
        self._life = life
        self._has_ended = False
        self._exit_code: int | None = None
        keep_from_forks(line.connection)

    @classmethod
    def spawn(cls, name: str, preload: Sequence[str] = ()) -> Child:
        """A new interpreter, which then imports `preload`. Does not wait for it.

        The caller's script is not run again in the child, so it needs no `if __name__ == "__main__"`.
        """
        keep_names_registered()  # the child is given the resource tracker's pipe, which has to be that of a living one
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        life = Life()
        with starting:  # else the variable may be that of another thread that starts a process
            keeps_safe_path = bool(os.environ.get(SAFE_PATH))
        arguments = (theirs, life.read_end, tuple(preload), keeps_safe_path)
        process = context.Process(target=run, args=arguments, name=name, daemon=True)
        try:
            with starting, _another_main(), _may_have_children(), _beginning():
                process.start()
            assert process.pid is not None
            pidfd = os.pidfd_open(process.pid)
        except BaseException:
            ours.close()
            life.end()
            raise
        finally:
            theirs.close()

        def reap() -> int | None:
            process.join()
            exit_code = process.exitcode
            if exit_code is None:  # somebody else has waited for it: a handler of SIGCHLD, or the kernel (SIG_IGN)
                process._popen.returncode = 0  # type: ignore[attr-defined]  # else Python believes that it runs
            process.close()
            return exit_code

        child = cls(name, process.pid, pidfd, reap, Line(ours), life)
        _spawned.add(child)
        return child

    def assign(self, target: Target, payload: Any, is_last: bool = True) -> None:
        """Have it run target(line, payload) when it is done with what it does now, and then end, if that is the last.

        The payload may hold lambdas and closures, and what it takes from the caller's script goes along by value.
        Does not wait until it was read: a child that was stopped would never read it.
        """
        data = cloudpickle.dumps((target, payload, is_last))
        if len(data) <= _AT_ONCE:
            self.line.send(data)
            return
        self.line.send(_IN_MEMORY)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # hung up, as the next receive or wait says
            send_memory(self.line.connection, data)

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped (SIGSTOP), or stands in a debugger: it does not move, and has not ended."""
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] in "tT"
        except OSError:
            return False

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone. Any thread may ask."""
        if self._has_ended:
            return True
        is_ready = bool(wait([self.sentinel], 0))
        return is_ready or self._has_ended  # another thread may have reaped it meanwhile: the descriptor is another's

    def hang_up(self) -> None:
        """Say no more: the child receives None when it has read the rest, and ends. What it still says can be read."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.line.connection.fileno())) as end:
            end.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """SIGKILL, if it is not gone yet; does not wait for its end."""
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send it a signal, and nobody else: a process that is gone gets none."""
        with contextlib.suppress(ProcessLookupError):
            if not self._has_ended:
                signal.pidfd_send_signal(self.sentinel, number)

    def end(self, timeout_s: float) -> int | None:
        """See that it ends, and all that it has spawned: wait, then SIGKILL. Its exit code; None if that is lost."""
        if not self._has_ended:
            self.line.connection.close()
            if not wait([self.sentinel], timeout_s):
                self.kill()
                wait([self.sentinel])
            self._life.end()
            self._has_ended, self._exit_code = True, self._reap()
            os.close(self.sentinel)
        return self._exit_code


def _kill_spawned() -> None:
    for child in list(_spawned):
        child.kill()


# At its exit Python asks its children to end, and waits for them: one that was stopped (SIGSTOP) would never come.
multiprocessing.util.Finalize(None, _kill_spawned, exitpriority=0)


@contextlib.contextmanager
def _another_main() -> Iterator[None]:
    """multiprocessing runs the file of __main__ again in every child; a module without a file leaves nothing to run."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextlib.contextmanager
def _may_have_children() -> Iterator[None]:
    """Python refuses those of a daemon, as workers of multiprocessing.Pool are: they would outlive it. Ours do not."""
    this = multiprocessing.current_process()
    was_daemon, this.daemon = this.daemon, False
    try:
        yield
    finally:
        this.daemon = was_daemon


@contextlib.contextmanager
def _beginning() -> Iterator[None]:
    """What Python starts now does not search the working directory, and begins with SIGINT blocked.

    A Ctrl-C in its first moments would be a traceback.
    """
    with safe_path():
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def run(
    connection: Connection[Any, Any], read_end: Connection[Any, Any], preload: Sequence[str], keeps_safe_path: bool
) -> None:
    """The child's first function: bound to its parent before anything else is done."""
    bind(read_end)
    os.set_inheritable(connection.fileno(), False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who ignores it gets no exit codes of children
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if not keeps_safe_path:
        os.environ.pop(SAFE_PATH, None)  # what an environment starts finds its modules as ever
    with contextlib.suppress(OSError, RuntimeError):  # there is no stderr
        faulthandler.enable()
    multiprocessing.current_process().daemon = False  # environments may have children
    for name in preload:
        importlib.import_module(name)
    line, is_last = Line(connection), False
    while not is_last and (blob := line.receive()) is not None:
        assignment = receive_memory(connection) if blob == _IN_MEMORY else blob
        target, payload, is_last = cloudpickle.loads(assignment)
        target(line, payload)
