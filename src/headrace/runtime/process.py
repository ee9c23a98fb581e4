"""A child process with a line to its parent: started, listened to, noticed when it dies, ended.

    parent: Child.start(name, target, payload) -> send(bytes) · wait_any(children) -> Message | Death · hang_up · end
    child:  target(line, payload): line.receive() until None (the parent hung up) · line.send(bytes)

Nothing here can wait for ever. The parent waits on lines and process sentinels together, so a death wakes it, and it
reads a dead child's last words before it believes in the death. The child watches a second pipe that never carries
anything: it closes when the parent dies, however it dies, and with a fork server getppid() would not tell.
Ctrl-C reaches the parent alone; children end when it hangs up. Does not know what is said over a line.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle

Target = Callable[["Line", Any], None]
START_METHODS = ("forkserver", "spawn")
_PARENT_DIED = 87  # exit code of a child whose parent is gone


@dataclass(frozen=True)
class Message:
    """What a child said."""

    child: Child
    data: bytes


@dataclass(frozen=True)
class Death:
    """A child is gone, and everything it said has been read."""

    child: Child
    exit_code: int


class Line:
    """One end of a line: a child's, or either end of a connection between processes that were not started here."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection

    def receive(self) -> bytes | None:
        """The next message; None once the other end has hung up."""
        try:
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            return None

    def has_more(self) -> bool:
        """Whether `receive` would return at once."""
        return self._connection.poll(0)

    def send(self, data: bytes) -> None:
        """Say something; what was written to shared memory before is visible to whoever reads it."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # hung up: the next receive tells
            self._connection.send_bytes(data)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


class Child:
    """The parent's end: one process and the line to it."""

    def __init__(self, name: str, process: Any, connection: Connection[Any, Any], life: Connection[Any, Any]) -> None:
        self.name = name
        self._process = process
        self.connection = connection
        self._life = life
        self._exit_code: int | None = None

    @classmethod
    def start(
        cls, name: str, target: Target, payload: Any, method: str = "forkserver", preload: Sequence[str] = ()
    ) -> Child:
        """Start a process that runs target(line, payload); the payload may hold lambdas and closures.

        A fork server has imported `preload` before its first child. The caller's script is not run again in the child,
        so it needs no `if __name__ == "__main__"`: what the payload takes from it goes along by value.
        """
        context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload(list(preload))
        ours, theirs = context.Pipe()
        watched, life = context.Pipe(duplex=False)
        blob = cloudpickle.dumps((target, payload))
        process = context.Process(target=_run, args=(theirs, watched, blob), name=name, daemon=True)
        try:
            with _another_main():
                process.start()
        except BaseException:
            for connection in (ours, life):
                connection.close()
            raise
        finally:
            theirs.close()
            watched.close()
        return cls(name, process, ours, life)

    @property
    def pid(self) -> int:
        """Its process id."""
        return int(self._process.pid)

    @property
    def sentinel(self) -> int:
        """Ready for reading once the process has ended."""
        return int(self._process.sentinel)

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone, also if somebody who inherited its sentinel lives on."""
        return self._exit_code is not None or self._process.exitcode is not None

    def send(self, data: bytes) -> None:
        """Say something; whether it arrives is another matter, a death will be noticed by `wait_any`."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send_bytes(data)

    def hang_up(self) -> None:
        """Close the line: the child ends when it next listens."""
        self.connection.close()

    def end(self, timeout_s: float) -> int:
        """See that it ends: wait, then SIGKILL. Returns its exit code."""
        if self._exit_code is not None:
            return self._exit_code
        self.connection.close()
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            self._process.kill()
        self._process.join()
        self._exit_code = int(self._process.exitcode)
        self._process.close()
        self._life.close()
        return self._exit_code


def wait_any(children: Sequence[Child], timeout_s: float) -> list[Message | Death]:
    """What happened: at least one thing, or nothing within the time."""
    by_source: dict[Any, Child] = {child.connection: child for child in children}
    by_source |= {child.sentinel: child for child in children}
    ready = wait(list(by_source), timeout_s)
    happened: list[Message | Death] = []
    dead = [by_source[source] for source in ready if isinstance(source, int)]
    for source in ready:
        child = by_source[source]
        if isinstance(source, Connection) and child not in dead:
            data = _read(child)
            if data is not None:  # the end of the line is told by the sentinel, a moment later
                happened.append(Message(child, data))
    if not happened:
        dead += [child for child in children if child not in dead and child.has_ended]
    for child in dead:
        while (data := _read(child)) is not None:
            happened.append(Message(child, data))
        happened.append(Death(child, child.end(1.0)))
    return happened


@contextlib.contextmanager
def _another_main() -> Iterator[None]:
    """multiprocessing runs the file of __main__ again in every child; a module without a file leaves nothing to run."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _read(child: Child) -> bytes | None:
    try:
        return child.connection.recv_bytes() if child.connection.poll(0) else None
    except (EOFError, OSError):
        return None


def _run(connection: Connection[Any, Any], watched: Connection[Any, Any], blob: bytes) -> None:
    """The child's first function."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.enable()
    threading.Thread(target=_end_with_parent, args=(watched,), name="parent-watch", daemon=True).start()
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # envs may have children
    target, payload = cloudpickle.loads(blob)
    target(Line(connection), payload)


def _end_with_parent(watched: Connection[Any, Any]) -> None:
    with contextlib.suppress(EOFError, OSError):
        watched.recv_bytes()
    os._exit(_PARENT_DIED)
