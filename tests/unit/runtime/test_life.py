"""Children end with their parent, and what they have spawned with them; while the parent lives, nobody is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.runtime import child as children
from headrace.runtime.child import Child
from support.children import PARENT, echo, leave, spawn_sleep
from support.command import PATHS
from support.waiting import family, is_gone, wait_until

AT_ONCE_S = 5.0  # the kernel takes less than a millisecond; the machine may be busy


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize(
    ("target", "forks"),
    [("hold_gil", ""), ("spawn_sleep", ""), ("hold_gil", "forks")],
    ids=["holds the GIL", "has spawned a process", "the parent had forked itself"],
)
def test_a_child_ends_with_its_parent(target: str, forks: str, method: str) -> None:
    """kill -9 of the parent: the child, what it has spawned and the fork server are gone."""
    command = [sys.executable, "-c", PARENT, method, target, forks]
    parent = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": PATHS}, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    copy = 0
    try:
        child, copy, spawned = map(int, parent.stdout.readline().split())
        members = family(parent.pid) - {copy}
        if copy:  # Python's resource tracker stays as long as anybody holds its pipe, and the copy does
            members = {pid for pid in members if "resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_text()}
        assert child in members
        assert (spawned in members) == (target == "spawn_sleep")
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    try:
        wait_until(lambda: all(map(is_gone, members)), AT_ONCE_S)
    finally:
        if copy:
            assert not is_gone(copy), "it should have outlived the parent, or nothing was shown"
            os.kill(copy, signal.SIGKILL)


def said(child: Child) -> str:
    data = child.line.receive()
    assert data is not None
    return data.decode()


@pytest.mark.parametrize("end", ["killed", "hung up on"])
def test_what_a_child_has_spawned_ends_with_it(end: str) -> None:
    child = Child.spawn("one")
    child.assign(spawn_sleep, "")
    pid = int(said(child))
    if end == "killed":
        os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: child.has_ended)
        assert not is_gone(pid), "its group is killed by the parent, not by itself"
    assert child.end(5.0) == (-signal.SIGKILL if end == "killed" else 0)
    wait_until(lambda: is_gone(pid), AT_ONCE_S)


def test_what_has_left_the_group_is_out_of_reach() -> None:
    """The documented limit: a daemon of its own session lives on."""
    child = Child.spawn("one")
    child.assign(spawn_sleep, "session")
    pid = int(said(child))
    child.end(5.0)
    time.sleep(0.1)
    assert not is_gone(pid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid))


def test_a_fork_of_the_parent_that_ends_kills_nobody() -> None:
    child = Child.spawn("one")
    try:
        copy = os.fork()
        if copy == 0:
            os._exit(0)
        os.waitpid(copy, 0)
        child.assign(echo, "here")
        assert said(child).endswith(" here")
    finally:
        assert child.end(5.0) == 0


def test_one_assignment_after_the_other() -> None:
    """Those that are not the last leave a child that waits; the last one ends it."""
    child = Child.spawn("one")
    for word in ("first", "second"):
        child.assign(echo, word, is_last=False)
        assert said(child).endswith(word)
        assert not child.has_ended
    child.assign(leave, 7)
    wait_until(lambda: child.has_ended)
    assert child.end(0.0) == child.end(0.0) == 7


def test_a_child_that_never_listens_is_killed() -> None:
    child = Child.spawn("one")
    child.assign(spawn_sleep, "")
    said(child)
    os.kill(child.pid, signal.SIGSTOP)
    assert child.end(0.1) == -signal.SIGKILL


def test_a_child_that_another_thread_reaps_meanwhile_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the question and the look, its descriptor is closed and may belong to somebody else: who never ends."""
    child = Child.spawn("child")
    real, stranger = children.wait, os.pipe()

    def look(objects: list[int], timeout: float | None = None) -> list[int]:
        monkeypatch.setattr(children, "wait", real)
        child.end(0.0)
        os.dup2(stranger[0], child.sentinel)
        return real(objects, timeout)

    monkeypatch.setattr(children, "wait", look)
    try:
        assert child.has_ended
    finally:
        for descriptor in (*stranger, child.sentinel):
            os.close(descriptor)


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_long_assignment_to_a_child_that_was_stopped_keeps_nobody_waiting(goes_on: bool) -> None:
    """It gets there when the child goes on; if it never does, the child can still be ended."""
    child = Child.spawn("one")
    child.assign(echo, "awake", is_last=False)
    assert said(child).endswith("awake")
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(lambda: child.is_stopped)
    child.assign(echo, "x" * (1 << 24), is_last=False)
    child.assign(echo, "and then")  # what is sent next does not overtake it
    if goes_on:
        os.kill(child.pid, signal.SIGCONT)
        assert len(said(child)) > 1 << 24
        assert said(child).endswith("and then")
        wait_until(lambda: child.has_ended)
    assert child.end(0.0) == (0 if goes_on else -signal.SIGKILL)
