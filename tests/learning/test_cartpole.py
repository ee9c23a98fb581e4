"""CartPole, the way a user goes: train with the repo's settings, evaluate, and ask for the reward that is due."""

from __future__ import annotations

import tomllib
from pathlib import Path

from support.command import end, result_of, start

CONFIG = Path(__file__).parents[2] / "configs" / "cartpole.toml"
MOST_STEPS = 150_000


def test_cartpole_reaches_475_within_150_000_steps(tmp_path: Path) -> None:
    settings = tomllib.loads(CONFIG.read_text())
    rollout = settings["n_envs"] * settings["n_steps"]
    steps = MOST_STEPS // rollout * rollout  # the last update is always finished, and must not go over
    options = ("--config", CONFIG, "--seed", "1", "--total-timesteps", str(steps), "--run-dir", "out")
    trained = end(start("train", "CartPole-v1", *options, cwd=tmp_path), 240.0)
    assert trained.code == 0, trained.err
    assert result_of(tmp_path / "out")["steps"] == steps <= MOST_STEPS
    evaluation = ("--n-eval-episodes", "100", "--reward-threshold", "475")
    evaluated = end(start("eval", "out", *evaluation, cwd=tmp_path), 120.0)
    assert evaluated.code == 0, evaluated.out
    assert "over 100 episodes" in evaluated.out
