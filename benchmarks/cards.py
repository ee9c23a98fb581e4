"""Cards: a small task with action masks, for learning.py; headrace and sb3-contrib both play this class.

Ten cards of different worth in random places, each of which may be played once; a card counts for its worth over the
number of its turn. So the best come first: 1 for the best order, 0 on average for a random one.
"""

from typing import Any

import gymnasium as gym
import numpy as np

CARDS = 10
WORTH = np.linspace(1, -1, CARDS)
BEST = float((WORTH / np.arange(1, CARDS + 1)).sum())


class Cards(gym.Env[Any, Any]):
    """Allowed are the cards that are left."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (CARDS,), np.float32)
        self.action_space = gym.spaces.Discrete(CARDS)
        self._worth, self._is_left = np.zeros(CARDS), np.ones(CARDS, bool)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._worth, self._is_left = self.np_random.permutation(WORTH), np.ones(CARDS, bool)
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self._is_left[action], "a card that was played already"
        turn = 1 + CARDS - int(self._is_left.sum())
        self._is_left[action] = False
        return self._seen(), float(self._worth[action] / turn / BEST), not self._is_left.any(), False, {}

    def action_masks(self) -> Any:
        """As sb3-contrib's MaskablePPO asks for them."""
        return self._is_left.copy()

    def _seen(self) -> Any:
        return (self._worth * self._is_left).astype(np.float32)
