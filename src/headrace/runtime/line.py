"""The line between a parent and its children: messages as bytes, and deaths noticed while waiting for them.

    parent: child.line.send(bytes) · wait_any(children) -> Message | Death      child: line.receive() · line.send(bytes)

Nothing here can wait for ever. The parent waits on lines and process sentinels together, so a death wakes it, and it
reads what a dead child had still sent before it believes in the death. Does not know how children are started, nor what
is said over a line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol


class Peer(Protocol):
    """A child, as far as waiting for it goes."""

    name: str
    line: Line
    pid: int
    sentinel: int  # ready for reading once the process has ended

    @property
    def has_ended(self) -> bool: ...

    def end(self, timeout_s: float) -> int: ...


@dataclass(frozen=True)
class Message:
    """What a child said."""

    child: Peer
    data: bytes


@dataclass(frozen=True)
class Death:
    """A child is gone, and everything it said has been read."""

    child: Peer
    exit_code: int

    @property
    def how(self) -> str:
        """In words."""
        return f"killed by signal {-self.exit_code}" if self.exit_code < 0 else f"exit code {self.exit_code}"


class Line:
    """One end of the line."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.connection = connection

    def receive(self) -> bytes | None:
        """The next message; None once the other side has hung up."""
        try:
            return self.connection.recv_bytes()
        except (EOFError, OSError):
            return None

    def receive_nowait(self) -> bytes | None:
        """A message that is already there; None if there is none."""
        try:
            return self.connection.recv_bytes() if self.connection.poll(0) else None
        except (EOFError, OSError):
            return None

    def send(self, data: bytes) -> None:
        """Say something; what was written to shared memory before is visible to the reader of it."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # hung up: the next receive or wait says so
            self.connection.send_bytes(data)


def wait_any(children: Sequence[Peer], timeout_s: float) -> list[Message | Death]:
    """What happened: at least one thing, or nothing within the time."""
    by_source: dict[Any, Peer] = {child.line.connection: child for child in children}
    by_source |= {child.sentinel: child for child in children}
    ready = wait(list(by_source), timeout_s)
    happened: list[Message | Death] = []
    dead = [by_source[source] for source in ready if isinstance(source, int)]
    for source in ready:
        child = by_source[source]
        if isinstance(source, Connection) and child not in dead:
            data = child.line.receive_nowait()
            if data is not None:  # the end of the line is told by the sentinel, a moment later
                happened.append(Message(child, data))
    if not happened:
        dead += [child for child in children if child not in dead and child.has_ended]
    for child in dead:
        while (data := child.line.receive_nowait()) is not None:
            happened.append(Message(child, data))
        happened.append(Death(child, child.end(1.0)))
    return happened
