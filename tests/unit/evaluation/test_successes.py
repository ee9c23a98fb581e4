"""eval/success_rate: what environments say in info["is_success"] at the end of an episode, as SB3 reads it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import headrace as hr
from headrace.envs.successes import success
from support.faulty_envs import Steady

SMALL: dict[str, Any] = {"n_envs": 4, "n_steps": 16, "batch_size": 32, "n_epochs": 1, "seed": 1, "topology": "inline"}
ROLLOUT = 64


class Reaches(Steady):
    """Says at the end of an episode whether it was a success: every second one is; info before the end is no answer."""

    def __init__(self, is_saying: bool = True) -> None:
        super().__init__()
        self.episodes, self.is_saying = 0, is_saying

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, _ = super().step(action)
        self.episodes += terminated or truncated
        said = {"is_success": bool(self.episodes % 2) if terminated or truncated else True} if self.is_saying else {}
        return obs, 1.0, terminated, truncated, said


def reaching_pool(num_envs: int, mode: AutoresetMode) -> gym.vector.VectorEnv[Any, Any, Any]:
    return gym.vector.SyncVectorEnv([Reaches] * num_envs, autoreset_mode=mode)


def _pools(mode: AutoresetMode) -> Callable[..., Any]:
    def make(num_envs: int) -> Any:
        return reaching_pool(num_envs, mode)

    return make


@pytest.mark.parametrize(
    ("where", "rate"),
    [
        ("own", 0.5), ("instance", 0.5), ("get_env", 0.5), ("silent", None),
        *[(mode, 0.5) for mode in AutoresetMode],
    ],
    ids=str,
)  # fmt: skip
def test_evaluations_log_the_rate_of_success(where: Any, rate: float | None, tmp_path: Path) -> None:
    env: Any = _pools(where) if isinstance(where, AutoresetMode) else Reaches
    if where == "silent":
        env = functools.partial(Reaches, is_saying=False)
    records: list[dict[str, float]] = []
    with hr.PPO("MlpPolicy", env, **SMALL) as model:
        eval_env = {"instance": Reaches, "get_env": model.get_env}.get(where, lambda: None)()
        evaluations = hr.EvalCallback(
            eval_env, eval_freq=16, n_eval_episodes=8 if where == "get_env" else 32, log_path=str(tmp_path), verbose=0
        )
        model.learn(ROLLOUT, callback=[evaluations, records.append])
    logged = records[-1]
    assert logged["eval/mean_reward"] == 5.0
    assert logged.get("eval/success_rate") == rate
    stored = np.load(tmp_path / "evaluations.npz")
    assert ("successes" in stored) == (rate is not None)
    if rate is not None:
        assert stored["successes"].mean() == rate


def test_what_is_neither_yes_nor_no_is_no_answer() -> None:
    assert success({"is_success": np.array([True])}) is True
    assert success({"is_success": np.array([True, False])}) is None
