"""What environments of a command's own process have started and not closed ends with the command, and is named.

As in a worker: also what ignores SIGTERM, and not what has made a session of its own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.command import PATHS, TINY, end, start
from support.waiting import is_gone, wait_until


@pytest.mark.parametrize("place", ["inline", "threads"])
@pytest.mark.parametrize("how", ["the end", "Ctrl-C"])
def test_what_environments_started_ends_with_the_command(how: str, place: str, tmp_path: Path) -> None:
    folder = tmp_path / "started"
    folder.mkdir()

    def started(kind: str) -> set[int]:
        return {int(file.name.rpartition("-")[2]) for file in folder.glob(f"{kind}-*")}

    steps = "16" if how == "the end" else "100000000"
    options = (*TINY, "--topology", place, "--total-timesteps", steps, "--run-dir", "out", "--check-episodes", "0")
    kwargs = json.dumps({"folder": str(folder)})
    command = start(
        "train", "support.worker_envs:forgets", "--env-kwargs", kwargs, *options, cwd=tmp_path, has_report=False
    )
    try:
        if how == "Ctrl-C":
            metrics = tmp_path / "out" / "metrics.jsonl"
            wait_until(lambda: command.poll() is not None or (metrics.exists() and b"\n" in metrics.read_bytes()))
            command.send_signal(signal.SIGINT)
        outcome = end(command, timeout_s=100.0)
        assert outcome.code == (0 if how == "the end" else 130), outcome.err
        ours = started("plain") | started("stubborn") | started("forked")
        assert len(ours) >= 6
        wait_until(lambda: all(map(is_gone, ours)), 10.0)
        assert not any(map(is_gone, started("session")))
        (warning,) = re.findall(
            "headrace: warning: ended what environments had started and not closed: (.*)", outcome.err
        )
        assert {int(pid) for pid in re.findall(r"\(process (\d+)\)", warning)} >= ours
    finally:
        for pid in started("*"):
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)
        command.kill()


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
