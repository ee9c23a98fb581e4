"""What a parent hears of its children: messages, deaths, and lines that close first."""

from __future__ import annotations

import os
import signal
import struct
import time
from multiprocessing import Pipe
from typing import Any

import pytest

from headrace.runtime.child import Child, Target
from headrace.runtime.death import Death
from headrace.runtime.failures import failure_of
from headrace.runtime.line import Line, Message, Woken, wait_any


def hangs_up(line: Line, payload: Any) -> None:
    """Closes its line, and lives."""
    line.send(b"last words")
    line.connection.close()
    time.sleep(1000)


def talks(line: Line, payload: Any) -> None:
    line.send(b"last words")
    os.kill(os.getpid(), payload)


def started(name: str, target: Target, payload: Any) -> Child:
    child = Child.spawn(name)
    child.assign(target, payload)
    return child


def heard(child: Child, timeout_s: float = 60.0) -> list[Message | Death | Woken]:
    """Until its death, looking as a place does."""
    happened: list[Message | Death | Woken] = []
    deadline = time.monotonic() + timeout_s
    while not any(isinstance(one, Death) for one in happened):
        assert time.monotonic() < deadline
        happened += wait_any([child], 0.05)
    return happened


def test_a_child_that_hangs_up_and_lives_is_ended() -> None:
    child = started("hangs-up", hangs_up, None)
    message, death = heard(child)
    assert isinstance(message, Message)
    assert message.data == b"last words"
    assert isinstance(death, Death)
    assert (death.exit_code, death.has_hung_up) == (-signal.SIGKILL, True)
    assert death.how == "closed its line to the learner or became another program, and was ended"
    assert child.has_ended


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (signal.SIGKILL, "9 (SIGKILL)"),
        (signal.SIGSEGV, "11 (SIGSEGV)"),
        (signal.SIGRTMIN + 3, str(signal.SIGRTMIN + 3)),
    ],
)
def test_a_death_is_no_hanging_up(number: int, name: str) -> None:
    """Its line closes a moment before it is gone."""
    message, death = heard(started("talks", talks, int(number)))
    assert isinstance(message, Message)
    assert isinstance(death, Death)
    assert not death.has_hung_up
    assert death.how == f"killed by signal {name}"


def test_half_a_message_is_silence() -> None:
    """A child that was stopped in the middle of one, or whose environment writes to what is not its own."""
    ours, theirs = Pipe()
    with ours, theirs:
        line = Line(ours)
        for part in (b"\0\0", b"\0\x05", b"he"):
            os.write(theirs.fileno(), part)
            assert line.receive_nowait() == b""
        os.write(theirs.fileno(), b"llo" + struct.pack("!i", 1000))
        assert line.receive_nowait() == b"hello"
        assert line.receive_nowait() == b""
        os.write(theirs.fileno(), bytes(1000))
        assert line.receive_nowait() == bytes(1000)
        assert line.receive_nowait() is None


@pytest.mark.parametrize("size", [-1, 2**31 - 1])
def test_a_length_that_is_nonsense_ends_the_line(size: int) -> None:
    ours, theirs = Pipe()
    with ours, theirs:
        line = Line(ours)
        os.write(theirs.fileno(), struct.pack("!i", size) + b"x")
        assert line.receive_nowait() is None


def test_a_long_message_comes_whole() -> None:
    child = started("long", says_much, None)
    happened = heard(child)
    assert [len(one.data) for one in happened if isinstance(one, Message)] == [3_000_000]


def says_much(line: Line, payload: Any) -> None:
    line.send(bytes(3_000_000))


def says_half(line: Line, payload: Any) -> None:
    os.write(line.connection.fileno(), struct.pack("!i", 1000) + b"x")
    time.sleep(1000)


def test_waiting_goes_on_after_half_a_message() -> None:
    child = started("half", says_half, None)
    deadline = time.monotonic() + 60
    while not child.line._begun:
        assert wait_any([child], 0.05) == []
        assert time.monotonic() < deadline
    assert wait_any([child], 0.05) == []
    assert child.end(0.0) == -signal.SIGKILL


@pytest.mark.parametrize("junk", [b"junk\xff\0", b"[1]", b"{}", b"1", b'{"kind": []}'])
def test_a_failure_that_is_junk(junk: bytes) -> None:
    assert "worker 1 reported a failure that can't be read" in str(failure_of("worker 1", junk))
