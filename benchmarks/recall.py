"""Recall, an environment that needs a memory: a cue is shown in the first step and asked for in the last one.

    observation: which of the cues is shown (the first step only), and whether it is asked for (the last step only)
    action:      the name of a cue                reward: 1 for the right one in the last step
    episode:     DELAY + 1 steps; deterministic given seed and actions

In the last step every episode looks the same, so a policy without a memory is right in one of CUES episodes at best.
learning.py trains on it, in headrace and in its peer's own virtual environment: it needs Gymnasium and numpy only.
"""

from typing import Any

import gymnasium as gym
import numpy as np

CUES, DELAY = 4, 8


class Recall(gym.Env[np.ndarray, int]):
    """One cue."""

    observation_space = gym.spaces.Box(0.0, 1.0, (CUES + 1,), np.float32)
    action_space = gym.spaces.Discrete(CUES)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.cue, self.time = int(self.np_random.integers(CUES)), 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        is_asked = self.time == DELAY
        self.time += 1
        return self._seen(), float(is_asked and int(action) == self.cue), is_asked, False, {}

    def _seen(self) -> np.ndarray:
        seen = np.zeros(CUES + 1, np.float32)
        seen[self.cue] = self.time == 0
        seen[CUES] = self.time == DELAY
        return seen
