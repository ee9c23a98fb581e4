"""The line between a parent and its children: messages as bytes, and deaths noticed while waiting for them.

    parent: child.line.send(bytes) · wait_any(children) -> Message | Death | Woken      child: line.receive() · send

Nothing here can wait for ever. The parent waits on lines and process sentinels together, so a death wakes it, and it
reads what a dead child had still sent before it believes in the death.
Does not know how children are started, what is said over a line, or what becomes of a child that hangs up (death).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from headrace.runtime.death import Death, Mortal, hung_up


class Peer(Mortal, Protocol):
    """A child with a line to it."""

    line: Line


@dataclass(frozen=True)
class Message:
    """What a child said."""

    child: Peer
    data: bytes


@dataclass(frozen=True)
class Woken:
    """One of the other descriptors that were waited for is ready."""


class Line:
    """One end of the line."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.connection = connection
        self._begun = b""  # of a message that is not whole yet

    def receive(self) -> bytes | None:
        """The next message; None once the other side has hung up."""
        with contextlib.suppress(EOFError, OSError):
            return self.connection.recv_bytes()
        return None

    def receive_nowait(self) -> bytes | None:
        """A message that is already there, b"" if only a part of it is; None if there is none, or no more to come."""
        with contextlib.suppress(OSError):
            while self.connection.poll(0):
                end = 4 + (int.from_bytes(self._begun[:4]) if len(self._begun) >= 4 else 0)
                if end > 1 << 30 or not (part := os.read(self.connection.fileno(), end - len(self._begun))):
                    return None  # so long: nonsense
                self._begun += part
                if 4 < end == len(self._begun):
                    whole, self._begun = self._begun[4:], b""
                    return whole
        return b"" if self._begun else None

    def send(self, data: bytes) -> None:
        """Say something; what was written to shared memory before is visible to the reader of it."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # hung up: the next receive or wait says so
            self.connection.send_bytes(data)


def wait_any(children: Sequence[Peer], timeout_s: float, others: Sequence[int] = ()) -> list[Message | Death | Woken]:
    """What happened to children or other descriptors: at least one thing, or nothing within the time."""
    by_source: dict[Any, Peer] = {one: child for child in children for one in (child.line.connection, child.sentinel)}
    ready = wait([*by_source, *others], timeout_s)
    happened: list[Message | Death | Woken] = []
    dead = [by_source[source] for source in ready if isinstance(source, int) and source in by_source]
    for source in ready:
        child = by_source.get(source)
        if child is None:
            happened.append(Woken())
        elif isinstance(source, Connection) and child not in dead:
            data = child.line.receive_nowait()
            if data or data is None:  # a part of a message is silence
                happened.append(hung_up(child) if data is None else Message(child, data))
    for child in dead:
        while data := child.line.receive_nowait():
            happened.append(Message(child, data))
        happened.append(Death(child, child.end(1.0)))
    return happened
