"""An environment changes the working directory of the learner's process: the run's files are where they were meant."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.checkpoints.proof import KEY_VARIABLE
from support.command import TINY, end, result_of, run, start
from support.faulty_envs import Steady, Step

MODULE = """
import os
from support.faulty_envs import Steady
class Moves(Steady):
    steps = 0
    def step(self, action):
        Moves.steps += 1
        if Moves.steps == 60:
            os.chdir("elsewhere")
        return super().step(action)
"""
OPTIONS: dict[str, Any] = {"n_envs": 2, "n_steps": 8, "batch_size": 8, "n_epochs": 1, "seed": 3, "topology": "inline"}


class Moves(Steady):
    """After some steps, into a folder beside."""

    steps = 0

    def step(self, action: Any) -> Step:
        Moves.steps += 1
        if Moves.steps == 60:
            os.chdir("elsewhere")
        return super().step(action)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(KEY_VARIABLE, "key")
    Moves.steps = 0
    return tmp_path


def test_a_run_of_python(here: Path) -> None:
    with hr.PPO("MlpPolicy", Moves, **OPTIONS) as model:
        model.learn(160, run_dir="out")
        assert Path.cwd() == here / "elsewhere"
        model.learn(16, run_dir="out")
        model.save("saved")
        hr.PPO.load("saved", Moves, weights_only=True, topology="inline").close()
        assert hr.recorded_episodes("out")
        hr.evaluate_policy(model, n_eval_episodes=1)
        model.get_env()
        model.save("again")
        os.chdir(here)
        (here / "own").mkdir()
        os.chdir(here / "own")  # the caller moves
        model.learn(16, run_dir="another")
    assert result_of(here / "out")["steps"] == 176
    assert len(list((here / "out" / "checkpoints").glob("step_*"))) > 1
    assert (here / "saved" / "manifest.json").exists()
    assert (here / "again" / "manifest.json").exists()
    assert (here / "key").exists()
    assert (here / "own" / "another" / "result.json").exists()
    assert not list((here / "elsewhere").iterdir())


def test_callbacks_keep_their_folders(here: Path) -> None:
    kept = hr.CheckpointCallback(save_freq=16, save_path="kept")
    with hr.PPO("MlpPolicy", Moves, **OPTIONS) as model:
        model.learn(160, callback=kept)
        kept.save_path = Path("later")
        model.learn(32, callback=kept)
    assert len(list((here / "kept").iterdir())) > 3
    assert list((here / "later").iterdir())
    assert not list((here / "elsewhere").iterdir())


@pytest.mark.parametrize("arguments", [(), ("--run-dir", "out")], ids=["default", "given"])
def test_a_run_of_the_command(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "moving.py").write_text(MODULE)
    where = ("moving:Moves", *TINY, "--topology", "inline", "--check-episodes", "0", "--total-timesteps", "160")
    done = end(start("train", *where, *arguments, cwd=tmp_path, has_report=False))
    assert done.code == 0, done.err
    (folder,) = [tmp_path / "out"] if arguments else (tmp_path / "runs").iterdir()
    assert f"results in {folder.relative_to(tmp_path)}/" in done.out
    assert result_of(folder)["exit_reason"] == "done"
    assert list((folder / "checkpoints").iterdir())
    assert not list((tmp_path / "elsewhere").iterdir())
    again = run("train", "--resume", folder.relative_to(tmp_path), "--dry-run", cwd=tmp_path)
    assert "at 160 of 160 steps" in again.out


def test_answers_of_commands(tmp_path: Path) -> None:
    """What is measured may move the process; files are where they were asked for."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "moving.py").write_text(MODULE)
    done = run("sweep", "moving:Moves", "--n-envs", "1", "--repetitions", "1", "--json", "found.json", cwd=tmp_path)
    assert done.code == 0, done.err
    assert (tmp_path / "found.json").exists()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_rollouts_of_a_run(here: Path) -> None:
    with hr.PPO("MlpPolicy", Moves, **OPTIONS) as model:
        model.learn(32, run_dir="out")
        Moves.steps = 0
        hr.export_rollouts("out", "all.parquet", env=Moves)
    assert (here / "all.parquet").exists()
