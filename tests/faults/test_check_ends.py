"""`headrace check`: an environment that hangs is named, and nothing outlives the command, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import EnvError
from support.faulty_envs import Steady
from support.waiting import family, is_gone, wait_until

SPAWNS = """
import os, subprocess, time
from support.faulty_envs import Steady
class Spawns(Steady):
    def __init__(self, is_hanging=False):
        super().__init__()
        self.is_hanging = is_hanging
        with open("spawned", "a") as file:
            print(subprocess.Popen(["sleep", "1000"]).pid, file=file, flush=True)
    def step(self, action):
        if self.is_hanging and os.path.exists("hang"):
            time.sleep(1000)
        return super().step(action)
"""


def test_a_hang_in_a_fresh_process_is_named() -> None:
    def make() -> Any:
        return Steady() if "pytest" in sys.modules else hangs()

    def hangs() -> None:
        time.sleep(1000)

    with pytest.raises(
        EnvError, match=r"(?s)in a fresh process .*in hangs.*make: hung in make\(\): no progress for 1 s"
    ):
        hr.check_env(make, hang_ceiling_s=1.0)


def test_a_hang_in_this_process_is_named() -> None:
    class Hangs(Steady):
        def step(self, action: Any) -> Any:
            time.sleep(1000)

    with pytest.raises(EnvError, match=r"Hangs: hung in step\(\): no progress for 1 s"):
        hr.check_env(Hangs, hang_ceiling_s=1.0)


def started(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    (folder / "spawning.py").write_text(SPAWNS)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "headrace", "check", "spawning:Spawns", *arguments]
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL)


def spawned(folder: Path) -> list[int]:
    file = folder / "spawned"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def test_nothing_is_left_after_a_check(tmp_path: Path) -> None:
    assert started(tmp_path).wait(200) == 0
    pids = spawned(tmp_path)
    assert len(pids) > 3
    wait_until(lambda: all(map(is_gone, pids)), 10)


def test_nothing_is_left_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "hang").touch()
    command = started(tmp_path, "--env-kwargs", '{"is_hanging": true}')
    wait_until(lambda: len(spawned(tmp_path)) > 3)
    pids = [*family(command.pid), *spawned(tmp_path)]
    command.send_signal(signal.SIGKILL)
    command.wait()
    wait_until(lambda: all(map(is_gone, pids)), 10)
