"""The line between a parent and its children: messages as bytes, and deaths noticed while waiting for them.

    parent: child.line.send(bytes) · wait_any(children) -> Message | Death | Woken      child: line.receive() · send

Nothing here can wait for ever. The parent waits on lines and process sentinels together, so a death wakes it, and it
reads what a dead child had still sent before it believes in the death. A child that hangs up and lives on can't be
spoken to any more, whatever it has become: it is ended, so that it neither keeps the parent busy nor is waited for.
Does not know how children are started, nor what is said over a line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from signal import Signals
from typing import Any, Protocol

_LEAVE_S = 0.2  # for a child that has hung up to end by itself: its line closes a moment before it is gone


class Peer(Protocol):
    """A child, as far as waiting for it goes."""

    name: str
    line: Line
    pid: int
    sentinel: int  # ready for reading once the process has ended

    @property
    def has_ended(self) -> bool: ...

    def end(self, timeout_s: float) -> int | None: ...


@dataclass(frozen=True)
class Message:
    """What a child said."""

    child: Peer
    data: bytes


@dataclass(frozen=True)
class Death:
    """A child is gone, and everything it said has been read."""

    child: Peer
    exit_code: int | None
    has_hung_up: bool = False
    """It lived and had closed its line, so it was ended."""

    @property
    def how(self) -> str:
        """In words."""
        if self.has_hung_up:
            return "closed its line to the learner or became another program, and was ended"
        return how_it_ended(self.exit_code)


@dataclass(frozen=True)
class Woken:
    """One of the other descriptors that were waited for is ready."""


def how_it_ended(exit_code: int | None) -> str:
    """In words."""
    if exit_code is None:
        return "exit code unknown, because the fork server that had started it was gone"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"killed by signal {-exit_code} ({Signals(-exit_code).name})"
    except ValueError:
        return f"killed by signal {-exit_code}"


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


def wait_any(children: Sequence[Peer], timeout_s: float, others: Sequence[int] = ()) -> list[Message | Death | Woken]:
    """What happened to children or other descriptors: at least one thing, or nothing within the time."""
    by_source: dict[Any, Peer] = {child.line.connection: child for child in children}
    by_source |= {child.sentinel: child for child in children}
    ready = wait([*by_source, *others], timeout_s)
    happened: list[Message | Death | Woken] = []
    dead = [by_source[source] for source in ready if isinstance(source, int) and source in by_source]
    for source in ready:
        child = by_source.get(source)
        if child is None:
            happened.append(Woken())
        elif isinstance(source, Connection) and child not in dead:
            data = child.line.receive_nowait()
            happened.append(_hung_up(child) if data is None else Message(child, data))
    for child in dead:
        while (data := child.line.receive_nowait()) is not None:
            happened.append(Message(child, data))
        happened.append(Death(child, child.end(1.0)))
    return happened


def _hung_up(child: Peer) -> Death:
    """The end of a line that closed first, nearly always because its process is ending."""
    wait([child.sentinel], _LEAVE_S)
    lives = not child.has_ended
    return Death(child, child.end(0.0 if lives else 1.0), has_hung_up=lives)
