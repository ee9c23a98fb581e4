"""What environments of a command's own process have started and not closed ends with the command, however that ends.

At an end of the command's own it is named; after kill -9 the guard ends it. As in a worker: also what ignores SIGTERM,
and not what has made a session of its own. What runs beside the command, in its process group, is left alone.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command import PATHS, TINY, WITHOUT_REPORT, end, start
from support.waiting import is_gone, wait_until

OURS = ("plain", "stubborn", "bare", "forked")
CODES = {"the end": 0, "Ctrl-C": 130, "SIGTERM": 143}
SIGNALS = {"Ctrl-C": signal.SIGINT, "SIGTERM": signal.SIGTERM}
BESIDE = '"$@" | tee log & sleep 600 & echo $!; wait; sleep 600'  # a script that runs a command, and more


class Started:
    """What an environment has started, from the files by which it says so."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    def pids(self, *kinds: str) -> set[int]:
        return {int(self._name(file)) for kind in kinds for file in self._folder.glob(f"{kind}-*")}

    def memory(self) -> set[Path]:
        return {Path("/dev/shm", self._name(file)) for file in self._folder.glob("memory-*")}

    def options(self, env: str, place: str, steps: int) -> tuple[str, ...]:
        kwargs = json.dumps({"folder": str(self._folder)})
        length = ("--total-timesteps", str(steps), "--run-dir", "out", "--check-episodes", "0")
        return ("train", f"support.worker_envs:{env}", "--env-kwargs", kwargs, *TINY, "--topology", place, *length)

    def _name(self, file: Path) -> str:
        return file.name.partition("-")[2]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    started = Started(tmp_path / "started")
    yield started
    for pid in started.pids(*OURS, "session", "command"):
        if not is_gone(pid):
            os.kill(pid, signal.SIGKILL)


def guards(command: int) -> set[int]:
    """Processes that are there to end what this command leaves."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"end_marked({command}, ".encode() in file.read_bytes():
                found.add(int(file.parent.name))
        except OSError:
            continue  # gone, or another user's
    return found


@pytest.mark.parametrize(
    ("how", "place"),
    [(how, place) for how in ("the end", "Ctrl-C") for place in ("inline", "threads")] + [("SIGTERM", "inline")],
)
def test_what_environments_started_ends_with_the_command(
    how: str, place: str, started: Started, tmp_path: Path
) -> None:
    steps = 16 if how == "the end" else 100_000_000
    command = start(*started.options("forgets", place, steps), cwd=tmp_path, has_report=False)
    try:
        if how in SIGNALS:
            metrics = tmp_path / "out" / "metrics.jsonl"
            wait_until(lambda: command.poll() is not None or (metrics.exists() and b"\n" in metrics.read_bytes()))
            assert len(guards(command.pid)) == 1
            command.send_signal(SIGNALS[how])
        outcome = end(command, timeout_s=100.0)
        assert outcome.code == CODES[how], outcome.err
        ours = started.pids(*OURS)
        assert len(ours) >= 8
        wait_until(lambda: all(map(is_gone, ours)), 10.0)
        assert not any(map(is_gone, started.pids("session")))
        (warning,) = re.findall(
            "headrace: warning: ended what environments had started and not closed: (.*)", outcome.err
        )
        assert {int(pid) for pid in re.findall(r"\(process (\d+)\)", warning)} >= ours
        wait_until(lambda: not guards(command.pid), 1.0)
    finally:
        command.kill()


@pytest.mark.parametrize("place", ["inline", "threads"])
def test_what_environments_started_ends_after_a_kill(place: str, started: Started, tmp_path: Path) -> None:
    """Within 10 s, and nothing else of the script that runs the command."""
    command = (sys.executable, "-c", WITHOUT_REPORT, *started.options("forgets", place, 100_000_000))
    script = subprocess.Popen(
        ["bash", "-c", BESIDE, "bash", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PATHS},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert script.stdout is not None
        beside = {int(script.stdout.readline()), script.pid}
        metrics = tmp_path / "out" / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and b"\n" in metrics.read_bytes())
        (pid,) = started.pids("command")
        ours = started.pids(*OURS)
        assert len(ours) >= 8
        assert {os.getpgid(one) for one in ours | beside} == {script.pid}
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: all(map(is_gone, ours)), 10.0)
        wait_until(lambda: not guards(pid), 10.0)
        assert not any(map(is_gone, started.pids("session") | beside))
    finally:
        os.killpg(script.pid, signal.SIGKILL)
        script.communicate()


def test_shared_memory_of_a_killed_command_is_removed(started: Started, tmp_path: Path) -> None:
    """The resource tracker gets the time for it, although a fork holds its pipe until that one is killed."""
    command = start(*started.options("shares", "inline", 100_000_000), cwd=tmp_path, has_report=False)
    try:
        metrics = tmp_path / "out" / "metrics.jsonl"
        wait_until(lambda: command.poll() is not None or (metrics.exists() and b"\n" in metrics.read_bytes()))
        memory = started.memory()
        assert memory
        assert all(path.exists() for path in memory)
    finally:
        command.kill()
    wait_until(lambda: all(map(is_gone, started.pids("forked"))), 10.0)
    wait_until(lambda: not any(path.exists() for path in memory), 10.0)
    end(command)


def test_what_was_there_before_the_command_is_left_alone() -> None:
    """A shell starts something, and becomes the command: so it is the command's child."""
    script = f"sleep 100 >/dev/null 2>&1 & echo $!; exec {sys.executable} -m headrace --version"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": PATHS}, check=True
    )
    other = int(done.stdout.split()[0])
    try:
        assert not is_gone(other)
        assert done.stderr == ""
    finally:
        if not is_gone(other):
            os.kill(other, signal.SIGKILL)


NO_GUARD = """
import sys
from headrace.cli.main import main
from headrace.runtime import guard
def refuses(mark):
    raise RuntimeError("a guard")
guard._start = refuses
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("line", "has_guard"),
    [
        ("--help", False),
        ("train --help", False),
        ("plan --batch 512 --update-ms 8 --actor-sps 1000", False),
        ("sweep CartPole-v1", True),
    ],
)
def test_commands_without_environments_have_no_guard(line: str, has_guard: bool, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_GUARD, *line.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ("RuntimeError: a guard" in done.stderr) == has_guard, done.stderr
    assert (done.returncode == 0) != has_guard
