"""Tasks that need a memory: what was shown at the start of an episode is asked for at its end."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Recall(gym.Env[Any, Any]):
    """A cue of `choices` is shown in the first step; the action in step `delay` must name it, for a reward of 1.

    What is seen in the last step is the same for every cue, so without a memory no policy has more than 1 / choices.
    `is_cut` ends episodes by truncation.
    """

    def __init__(self, delay: int = 4, choices: int = 2, is_cut: bool = False) -> None:
        self.delay, self.choices, self.is_cut = delay, choices, is_cut
        self.observation_space = gym.spaces.Box(0.0, 1.0, (choices + 1,), np.float32)
        self.action_space = gym.spaces.Discrete(choices)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._cue, self._step = int(self.np_random.integers(self.choices)), 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        is_last = self._step == self.delay
        reward = float(is_last and int(action) == self._cue)
        self._step += 1
        return self._seen(), reward, is_last and not self.is_cut, is_last and self.is_cut, {}

    def _seen(self) -> Any:
        obs = np.zeros(self.choices + 1, np.float32)
        if self._step == 0:
            obs[self._cue] = 1.0
        obs[-1] = self._step == self.delay
        return obs
