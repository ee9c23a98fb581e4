"""Environments whose observations are several arrays.

    Signpost  a line of cells: a position, and a small image of where to go. Neither alone says which way that is
    Nested    every kind of leaf, in a Dict in a Dict and in a Tuple; names that are fields of the schema as well
    Strange   Signpost whose observations go wrong in one step, as told

Both are class A. Named as support.dict_envs:X they can be found again by a fresh process that has tests/ on its path.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Step = tuple[Any, float, bool, bool, dict[str, Any]]


class Signpost(gym.Env[Any, Any]):
    """One point for every step that goes the right way, or stays where the goal is; cut after LIMIT steps."""

    CELLS, LIMIT = 7, 8

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {"position": spaces.Box(-1, 1, (2,), np.float32), "goal": spaces.Box(0, 255, (1, self.CELLS, 1), np.uint8)}
        )
        self.action_space = spaces.Discrete(3)
        self._cell = self._goal = self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._cell, self._goal = (int(cell) for cell in self.np_random.integers(0, self.CELLS, 2))
        return self._seen(), {}

    def step(self, action: Any) -> Step:
        wanted = int(np.sign(self._goal - self._cell))
        way = int(action) - 1
        self._cell = int(np.clip(self._cell + way, 0, self.CELLS - 1))
        self._steps += 1
        return self._seen(), float(way == wanted), False, self._steps >= self.LIMIT, {}

    def _seen(self) -> Any:
        image = np.zeros((1, self.CELLS, 1), np.uint8)
        image[0, self._goal] = 255
        where = 2 * self._cell / (self.CELLS - 1) - 1
        return {"position": np.array([where, self._steps / self.LIMIT], np.float32), "goal": image}


class Masked(gym.ObservationWrapper[Any, Any, Any]):
    """One leaf of every observation is empty."""

    def __init__(self, env: gym.Env[Any, Any], leaf: str) -> None:
        super().__init__(env)
        self._leaf = leaf

    def observation(self, observation: Any) -> Any:
        return observation | {self._leaf: np.zeros_like(observation[self._leaf])}


class Nested(gym.Env[Any, Any]):
    """Draws every leaf anew in every step, from the generator that the actions push on."""

    def __init__(self, side: int = 36, limit: int = 11) -> None:
        self.observation_space = spaces.Dict(
            {
                "arm": spaces.Dict({"row": spaces.Box(-5, 5, (3,), np.float64), "mode": spaces.Discrete(3, start=1)}),
                "action": spaces.MultiBinary(4),
                "pair": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Box(0, 255, (side, side, 1), np.uint8))),
                "reward": spaces.Box(-1, 1, (), np.float32),
            }
        )
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self._side, self._limit, self._steps = side, limit, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> Step:
        self.np_random.random(1 + int(abs(action[0]) * 3))
        self._steps += 1
        obs = self._seen()
        reward = float(obs["arm"]["row"].sum() - obs["arm"]["mode"])
        return obs, reward, bool(self.np_random.random() < 0.05), self._steps >= self._limit, {}

    def _seen(self) -> Any:
        draw = self.np_random
        return {
            "arm": {"row": draw.normal(size=3).clip(-5, 5), "mode": int(draw.integers(1, 4))},
            "action": draw.integers(0, 2, 4).astype(np.int8),
            "pair": (draw.integers(0, [2, 3]), draw.integers(0, 256, (self._side, self._side, 1)).astype(np.uint8)),
            "reward": np.float32(draw.uniform(-1, 1)),
        }


FAULTS: dict[str, tuple[Any, str]] = {
    "missing": (lambda obs: {"goal": obs["goal"]}, "an observation without 'position', expected goal, position"),
    "extra": (lambda obs: obs | {"speed": 1.0}, "an observation with 'speed', expected goal, position"),
    "shape": (
        lambda obs: obs | {"goal": obs["goal"][:, 1:]},
        r"an observation/goal of shape \(1, 6, 1\), expected \(1, 7, 1\)",
    ),
    "dtype": (
        lambda obs: obs | {"goal": obs["goal"] / 255},
        "an observation/goal of dtype float64, expected uint8",
    ),
    "no dict": (lambda obs: obs["position"], "an observation of type ndarray, expected a dict of goal, position"),
    "a dict too many": (lambda obs: obs | {"goal": {"x": 1}}, r"the observation/goal {'x': 1}, which is no array"),
    "ragged": (
        lambda obs: obs | {"position": [[1.0], [1.0, 2.0]]},
        r"the observation/position \[\[1.0\], \[1.0, 2.0\]\], which is no array",
    ),
    "raises": (lambda obs: Sour(obs), r"an observation that can't be read \(ZeroDivisionError: sour\)"),
    "renamed": (lambda obs: {"goal": obs["goal"], "where": obs["position"]}, "an observation without 'position'"),
}


class Sour(dict[str, Any]):
    """Can't be read."""

    def __getitem__(self, name: str) -> Any:
        raise ZeroDivisionError("sour")


class Strange(Signpost):
    """Its observations go wrong in one step of every episode, or of the one with that seed: 0 is the reset's."""

    def __init__(self, fault: str, at: int, only: int | None = None) -> None:
        super().__init__()
        self._fault, self._at, self._only, self._seed = FAULTS[fault][0], at, only, only

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._seed = seed
        return super().reset(seed=seed)

    def _seen(self) -> Any:
        obs = super()._seen()
        is_it = self._only in (None, self._seed) and self._steps == self._at
        return self._fault(obs) if is_it else obs
