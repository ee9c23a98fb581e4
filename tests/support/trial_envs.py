"""Environments for measurements: Switches has its action mask in its Dict, and forbids action 0 for MultiBinary."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Step = tuple[Any, float, bool, bool, dict[str, Any]]


class Switches(gym.Env[Any, Any]):
    """Three switches; the one whose turn it is must be on."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {"turn": spaces.Box(0, 1, (3,), np.float32), "action_mask": spaces.MultiBinary(6)}
        )
        self.action_space = spaces.MultiBinary(3)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> Step:
        assert action[self._steps % 3] == 1, "a forbidden switch"
        self._steps += 1
        return self._seen(), float(np.sum(action)), False, self._steps >= 10, {}

    def _seen(self) -> Any:
        turn = np.eye(3, dtype=np.float32)[self._steps % 3]
        mask = np.ones((3, 2), np.int8)
        mask[self._steps % 3, 0] = 0
        return {"turn": turn, "action_mask": mask.reshape(-1)}
