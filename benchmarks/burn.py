"""An environment whose step burns a given CPU time in pure Python: it holds the GIL and never sleeps.

Imported by headrace, by Gymnasium and by the peers, in their own venvs; so it needs gymnasium and numpy only.
"""

import time

import gymnasium as gym
import numpy as np

EPISODE = 200
_LOOPS_PER_US: list[float] = []


def loops_per_us() -> float:
    """How many turns of the burning loop a microsecond takes here; measured once per process, best of several."""
    if not _LOOPS_PER_US:
        best = 0.0
        for _ in range(20):
            start = time.perf_counter()
            burn(20_000)
            best = max(best, 20_000 / ((time.perf_counter() - start) * 1e6))
        _LOOPS_PER_US.append(best)
    return _LOOPS_PER_US[0]


def burn(turns: int) -> int:
    x = 1
    for _ in range(turns):
        x = (x * 5 + 1) & 0xFFFF
    return x


def wait(seconds: float) -> None:
    """Holds neither a core nor the GIL."""
    time.sleep(seconds)


class BurnEnv(gym.Env):
    """Deterministic, four numbers in, two choices out. `turns` fixes the work; a step takes about 200 us."""

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._obs(), {}

    def step(self, action):
        burn(self.turns)
        self.count += 1
        return self._obs(), 1.0, False, self.count >= EPISODE, {}

    def _obs(self) -> np.ndarray:
        return np.full(4, self.count / EPISODE, np.float32)
