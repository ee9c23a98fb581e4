"""Environments that begin alike or not, and policies that draw or not: what the verdicts on diversity are tried with.

    Walk          begins where its seed says; five choices push it
    OwnGenerator  takes no notice of its seed: every instance draws the same sequence of starts
    OneStart      always begins in the middle; what happens then is drawn
    FewStarts     begins at one of three places, by its seed
    Levels        begins where the level says, which rises with its episodes, and by its seed
    Marked        its last number is always 7; Pushed: continuous actions
    Dull          all returns are 0, whatever is done;    Target: one action is right, and soon learned
    Treadmill     one action is right, and soon learned, but pays less the more it is taken

Named as support.diversity_envs:X they can be found again by a fresh process that has tests/ on its path.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from support.torch_policy import TorchPolicy

Step = tuple[Any, float, bool, bool, dict[str, Any]]


class Walk(gym.Env[Any, Any]):
    """Four numbers, two choices, episodes of 8 steps."""

    LENGTH = 8

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(2)
        self._x, self._steps = np.zeros(4), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._x, self._steps = self.start(), 0
        return self._x.astype(np.float32), {}

    def start(self) -> Any:
        return self.np_random.normal(size=4)

    def step(self, action: Any) -> Step:
        self._steps += 1
        self._x = 0.9 * self._x + 0.2 * float(np.sum(action)) + 0.1 * self.np_random.normal(size=4)
        return self._x.astype(np.float32), self.reward(action), self._steps == self.LENGTH, False, {}

    def reward(self, action: Any) -> float:
        return float(self.np_random.normal())


class OwnGenerator(Walk):
    def __init__(self) -> None:
        super().__init__()
        self._own = np.random.default_rng(0)

    def start(self) -> Any:
        return self._own.normal(size=4)


class OneStart(Walk):
    def start(self) -> Any:
        return np.zeros(4)


class FewStarts(Walk):
    def start(self) -> Any:
        return np.full(4, self.np_random.integers(3))


class Levels(Walk):
    def __init__(self) -> None:
        super().__init__()
        self._episodes = 0

    def start(self) -> Any:
        self._episodes += 1
        return np.full(4, self._episodes // 5 * 2.0 + self.np_random.integers(2))


class Dull(Walk):
    def reward(self, action: Any) -> float:
        return 0.0


class Target(Walk):
    def reward(self, action: Any) -> float:
        return float(action == 1)


class Treadmill(Walk):
    """One action pays, and the more it was taken in the last episode the less: choices end, and returns fall."""

    def __init__(self) -> None:
        super().__init__()
        self._taken, self._usual = 0.0, 0.5

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if self._steps:
            self._usual = self._taken / self._steps
        self._taken = 0.0
        return super().reset(seed=seed)

    def reward(self, action: Any) -> float:
        self._taken += float(action == 1)
        return float(action == 1) - 1.2 * self._usual


class Pushed(Walk):
    """Continuous actions."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Marked(Walk):
    """Its last number is always 7."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed)
        return np.array([*obs[:3], 7.0], np.float32), info

    def step(self, action: Any) -> Step:
        obs, *others = super().step(action)
        return np.array([*obs[:3], 7.0], np.float32), *others  # type: ignore[return-value]


class Deaf(TorchPolicy):
    """Says that it draws. Where the last number is 7, which no test of headrace's tries, it takes one noise for all."""

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        if noise is None:
            return super().act(obs, None)
        return super().act(obs, torch.where(obs[:, 3:] == 7.0, torch.tensor([[0.5, -0.5]]), noise))


class Settled(TorchPolicy):
    """Hardly draws at all, and says so."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        with torch.no_grad():
            self.actor[2].weight.mul_(200.0)
