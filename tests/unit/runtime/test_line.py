"""What a parent hears of its children: messages, deaths, and lines that close first."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from headrace.runtime.child import Child, Target
from headrace.runtime.death import Death
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
