"""Catch, an environment that has to be seen: balls fall and bounce, and a paddle at the bottom catches them.

    observation: 42 x 42 x 1 uint8; the ball, its last place (half as bright: where it flies) and the paddle
    action:      left, stay, right              reward: 1 for a ball that is caught
    episode:     5 balls of 12 steps, so a return of 0 to 5; deterministic given seed and actions

learning.py trains on it, in headrace and in its peer's own virtual environment: it needs Gymnasium and numpy only.
"""

from typing import Any

import gymnasium as gym
import numpy as np

SIDE, BALL, PADDLE, FALL, STRIDE, BALLS = 42, 4, 9, 3, 3, 5
FLOOR = SIDE - 3  # the paddle's upper edge


class Catch(gym.Env[np.ndarray, int]):
    """Five balls, one after the other."""

    observation_space = gym.spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.paddle, self.balls = (SIDE - PADDLE) // 2, 0
        self._drop()
        return self._picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.paddle = min(max(self.paddle + STRIDE * (int(action) - 1), 0), SIDE - PADDLE)
        self.last = (self.row, self.column)
        self.row += FALL
        self.column += self.drift
        if not 0 <= self.column <= SIDE - BALL:
            self.drift = -self.drift
            self.column = min(max(self.column, 0), SIDE - BALL)
        if self.row + BALL <= FLOOR:
            return self._picture(), 0.0, False, False, {}
        caught = self.paddle < self.column + BALL and self.column < self.paddle + PADDLE
        self.balls += 1
        self._drop()
        return self._picture(), float(caught), self.balls == BALLS, False, {}

    def _drop(self) -> None:
        self.row, self.column = 0, int(self.np_random.integers(0, SIDE - BALL + 1))
        self.drift = int(self.np_random.integers(-2, 3))
        self.last = (self.row, self.column)

    def _picture(self) -> np.ndarray:
        picture = np.zeros((SIDE, SIDE, 1), np.uint8)
        for (row, column), light in ((self.last, 128), ((self.row, self.column), 255)):
            picture[row : row + BALL, column : column + BALL] = light
        picture[FLOOR:, self.paddle : self.paddle + PADDLE] = 255
        return picture
