"""Environments with NaN and infinities in known places, and what nan_policy=drop and clamp must make of them.

Spotty: an episode's seed decides how long it is, how it ends, and whether something in it is bad: an observation,
        a reward, the first observation, or the last one
lived(env index, rows) -> the rows that a slab must hold, one by one, slowly
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from support.chains import seed_of
from support.slabs import action_of

KINDS = ("nothing", "nothing", "nothing", "obs", "reward", "first", "last", "both")
BAD_VALUES = (np.nan, np.inf, -np.inf)


class Spotty(gym.Env[Any, Any]):
    """A walk; in some episodes one number is not finite."""

    def __init__(self, longest: int = 9, kinds: tuple[str, ...] = KINDS) -> None:
        self.observation_space = spaces.Box(-4.0, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(4)
        self._longest, self._kinds = longest, tuple(kinds)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        rng = self.np_random
        self._length = int(rng.integers(1, self._longest + 1))
        self._is_terminated = bool(rng.integers(2))
        self._kind = str(rng.choice(self._kinds))
        self._bad_step = int(rng.integers(self._length))
        self._bad = BAD_VALUES[int(rng.integers(3))]
        self._step = 0
        return self._seen(self._kind == "first"), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        is_bad, is_over = self._step == self._bad_step, self._step + 1 >= self._length
        self._step += 1
        is_bad_obs = (is_bad and self._kind in ("obs", "both")) or (is_over and self._kind == "last")
        reward = float(self._bad) if is_bad and self._kind in ("reward", "both") else float(action) + 0.5
        return self._seen(is_bad_obs), reward, is_over and self._is_terminated, is_over and not self._is_terminated, {}

    def _seen(self, is_bad: bool) -> Any:
        obs = self.np_random.normal(size=2).astype(np.float32)
        if is_bad:
            obs[1] = self._bad
        return obs


@dataclass
class Lived:
    """One row of one environment, as it happened: before anything was dropped."""

    episode: int
    step: int
    obs: list[float]
    reward: float
    ended: str  # "", "terminated", "truncated"
    final: list[float] | None
    is_bad: bool  # something that this step returned, or its episode's first observation, is not finite


@dataclass
class Life:
    """An environment that is driven by its noise, row by row; a bad row ends its episode."""

    env_index: int
    env: gym.Env[Any, Any] = field(default_factory=Spotty)
    episode: int = 0

    def rows(self, count: int) -> tuple[list[Lived], list[float]]:
        """So many rows, and the observation after them."""
        lived: list[Lived] = []
        obs, is_doomed, step = self._reset()
        for row in range(count):
            seen, reward, terminated, truncated, _ = self.env.step(action_of(self.env_index, row))
            is_cut = truncated and not terminated
            is_bad = is_doomed or not np.isfinite(reward) or (not terminated and not np.isfinite(seen).all())
            ended = "terminated" if terminated else "truncated" if truncated else ""
            final = seen.tolist() if is_cut else None
            lived.append(Lived(self.episode, step, obs, float(reward), ended, final, is_bad))
            obs, step = seen.tolist(), step + 1
            if ended or is_bad:
                self.episode += 1
                obs, is_doomed, step = self._reset()
        return lived, obs

    def _reset(self) -> tuple[list[float], bool, int]:
        obs, _ = self.env.reset(seed=seed_of(self.env_index, self.episode))
        return clamped(obs), not np.isfinite(obs).all(), 0


def clamped(obs: Any) -> list[float]:
    """By hand: NaN is 0, infinities are the bounds -4 and (there is none) 1e6."""
    return [0.0 if x != x else 1e6 if x == np.inf else -4.0 if x == -np.inf else x for x in np.asarray(obs).tolist()]


class AlwaysBad(Spotty):
    """No episode is sound."""

    def __init__(self) -> None:
        super().__init__(kinds=("obs",))


class Healthy(Spotty):
    """Every episode is."""

    def __init__(self) -> None:
        super().__init__(kinds=("nothing",))


def spotty_pool(num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    return gym.vector.SyncVectorEnv([Spotty] * num_envs)
