"""Environments by what a step costs, without arguments, so that a command line can name them: timed_envs:Burns.

Burns     some 200 us of pure Python: it holds the GIL and a core
Waits     5 ms of waiting, as for a simulator elsewhere: it holds neither
HeavyTail some 200 us of pure Python on average, most of it in few steps (Pareto, at most 100 times the usual)
"""

from typing import Any

import gymnasium as gym
import numpy as np
from burn import EPISODE, BurnEnv, burn, wait

TURNS = 2_500  # of the burning loop: a fixed amount of work, whatever else the machine does meanwhile


class Burns(BurnEnv):
    """Some 200 us."""

    def __init__(self) -> None:
        super().__init__(TURNS)


class Waits(BurnEnv):
    """5 ms."""

    def __init__(self) -> None:
        super().__init__(0)

    def step(self, action: Any) -> Any:
        wait(5e-3)
        return super().step(action)


class HeavyTail(gym.Env):
    """Its steps are drawn from the seed, so a run repeats."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        burn(int(TURNS / 3 * min(1.0 + self.np_random.pareto(1.5), 100.0)))  # 3 is its mean
        self.count += 1
        return self._obs(), 1.0, False, self.count >= EPISODE, {}

    def _obs(self) -> np.ndarray:
        return np.full(4, self.count / EPISODE, np.float32)
