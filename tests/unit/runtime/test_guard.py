"""The guard ends what carries the mark of a dead command, and nothing of a living one; commands may run commands."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.runtime import guard
from support.command import PATHS
from support.waiting import is_gone, wait_until

# Its own process group: what is left is looked for there. It says its process id, and that of what it has spawned.
COMMAND = """
import os, subprocess, sys
from headrace.runtime import guard

guard.command.expect()
guard.command.begin()
spawned = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
print(os.getpid(), spawned.pid, flush=True)
what = sys.argv[1]
if what == "runs a command":
    subprocess.run([sys.executable, sys.argv[0], "waits"], stdin=subprocess.DEVNULL)
elif what == "becomes another program":
    os.execv("/bin/sleep", ["sleep", "600"])
elif what == "leaves":
    guard.command.leave()
elif what == "waits for its children":
    spawned.kill()
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    print("done", flush=True)
sys.stdin.read() if what != "waits" else subprocess.run(["sleep", "600"])
"""


@pytest.fixture
def command(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SimpleNamespace]:
    program = tmp_path / "program.py"
    program.write_text(COMMAND)
    process = subprocess.Popen(
        [sys.executable, str(program), request.param],
        env={**os.environ, "PYTHONPATH": PATHS},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stdout is not None
    said = process.stdout

    def pids() -> list[int]:
        return list(map(int, said.readline().split()))

    yield SimpleNamespace(pids=pids, line=said.readline)
    with contextlib.suppress(ProcessLookupError):  # nothing is left
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def is_guarded(pid: int) -> bool:
    """Whether there is a guard of this command."""
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"end_marked({pid}, ".encode() in file.read_bytes():
                return True
        except OSError:
            continue  # gone, or another user's
    return False


@pytest.mark.parametrize("command", ["runs a command"], indirect=True)
@pytest.mark.parametrize("which", ["outer", "inner"])
def test_a_command_that_an_environment_runs(which: str, command: SimpleNamespace) -> None:
    """It has a guard of its own, and ends with the outer command."""
    outer, of_outer = command.pids()
    inner, of_inner = command.pids()
    gone, stay = ({inner, of_inner, of_outer}, set()) if which == "outer" else ({of_inner}, {outer, of_outer})
    os.kill(outer if which == "outer" else inner, signal.SIGKILL)
    wait_until(lambda: all(map(is_gone, gone)), 10.0)
    wait_until(lambda: not is_guarded(outer if which == "outer" else inner), 10.0)
    assert not any(map(is_gone, stay))


@pytest.mark.parametrize("command", ["becomes another program", "leaves"], indirect=True)
def test_what_lives_is_left_alone(command: SimpleNamespace) -> None:
    """Its pipe has ended, and it has not."""
    pid, spawned = command.pids()
    wait_until(lambda: not is_guarded(pid), 20.0)
    assert not is_gone(pid)
    assert not is_gone(spawned)


@pytest.mark.parametrize("command", ["waits for its children"], indirect=True)
def test_a_command_can_wait_for_all_its_children(command: SimpleNamespace) -> None:
    """The guard is none of them."""
    (pid, _), said = command.pids(), command.line()
    assert said == "done\n"
    assert is_guarded(pid)


def test_in_a_users_program_there_is_none() -> None:
    before = resource.getrlimit(guard._LOCKS)
    guard.Guard().begin()
    assert resource.getrlimit(guard._LOCKS) == before
    assert not is_guarded(os.getpid())


def test_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """An own one for every command; the outer command's stays; a limit that means something stays, too."""
    unlimited = resource.RLIM_INFINITY

    def limits(soft: int, hard: int) -> tuple[int, int] | None:
        monkeypatch.setattr(resource, "getrlimit", lambda number: (soft, hard))
        return guard._limits_with_a_mark()

    first, second = limits(unlimited, unlimited), limits(unlimited, unlimited)
    assert first is not None
    assert second is not None
    assert first[0] != second[0]
    assert first[1] == unlimited
    inner = limits(*first)
    assert inner is not None
    assert inner[1] == first[0]
    assert 0 < inner[0] < first[0]
    assert limits(*inner) is None
    assert limits(100, 100) is None
