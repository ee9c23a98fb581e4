"""stdout or stderr closed, as a daemon has them: commands and models work, and nothing goes to another file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.command import PATHS, TINY, result_of

TRAIN = ("train", "support.faulty_envs:Steady", *TINY, "--check-episodes", "0", "--total-timesteps", "16")
MODEL = """
import headrace as hr
from support.faulty_envs import Steady
with hr.PPO("MlpPolicy", Steady, n_envs=2, n_steps=8, batch_size=8, n_epochs=1, topology="{}", workers={}) as model:
    model.learn(32, run_dir="out")
"""


def ended(command: list[str], closed: str, folder: Path) -> subprocess.CompletedProcess[str]:
    shell = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *command]
    env = {**os.environ, "PYTHONPATH": PATHS}
    return subprocess.run(shell, cwd=folder, env=env, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 1>&- 2>&-"])
def test_train(closed: str, tmp_path: Path) -> None:
    where = (*TRAIN, "--topology", "processes", "--workers", "1", "--run-dir", "out")
    done = ended([sys.executable, "-m", "headrace", *where], closed, tmp_path)
    assert done.returncode == 0
    assert result_of(tmp_path / "out")["exit_reason"] == "done"
    assert ("results in out" in done.stdout) == (closed == "2>&-")
    assert done.stderr == ""


def test_an_error_is_not_for_stdout(tmp_path: Path) -> None:
    done = ended([sys.executable, "-m", "headrace", "train", "NoSuchEnv-v0"], "2>&-", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(("topology", "workers"), [("inline", '"auto"'), ("processes", "1")])
def test_a_model(topology: str, workers: str, tmp_path: Path) -> None:
    done = ended([sys.executable, "-c", MODEL.format(topology, workers)], "2>&-", tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert result_of(tmp_path / "out")["exit_reason"] == "done"
