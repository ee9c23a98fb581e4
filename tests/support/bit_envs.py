"""Small environments that show where bits could get lost. All are class A: a seed and actions bring them back.

    Noisy    draws np_random in every step: its state is nowhere but in the generator
    Pixels   uint8 images, either layout
    Frames   the same in grey, to be stacked
    LongWalk episodes over many slabs
    Hidden   an observation that tells nothing of the actions: only rewards, later, do
    Probe    any observation and action space, by name
    Cards    some actions are forbidden, by info; Hand: by a method

Named as support.bit_envs:X they can be found again by a fresh process that has tests/ on its path.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Step = tuple[Any, float, bool, bool, dict[str, Any]]


class Noisy(gym.Env[Any, Any]):
    """A walk pushed by the action and by fresh noise; it ends where it strays too far, or by a draw."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = spaces.Discrete(3)
        self._x = np.zeros(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._x = self.np_random.normal(size=4)
        return self._x.astype(np.float32), {}

    def step(self, action: Any) -> Step:
        self._x = 0.9 * self._x + 0.2 * (int(action) - 1) + 0.3 * self.np_random.normal(size=4)
        terminated = bool(np.abs(self._x).max() > 2.5 or self.np_random.random() < 0.02)
        return self._x.astype(np.float32), float(1 - np.abs(self._x).mean()), terminated, False, {}


class Pixels(gym.Env[Any, Any]):
    """A dot chases a target. Cheap to draw, 36 x 36: the smallest image the Nature CNN takes."""

    SIZE = 36

    def __init__(self, channels: int = 1, channels_last: bool = True, limit: int = 25) -> None:
        shape = (self.SIZE, self.SIZE, channels) if channels_last else (channels, self.SIZE, self.SIZE)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.action_space = spaces.Discrete(4)
        self._channels, self._channels_last, self._limit = channels, channels_last, limit
        self._dot, self._target, self._steps = np.zeros(2, int), np.zeros(2, int), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._dot, self._target = self.np_random.integers(0, self.SIZE - 4, (2, 2))
        self._steps = 0
        return self._drawn(), {}

    def step(self, action: Any) -> Step:
        axis, sign = divmod(int(action), 2)
        self._dot[axis] = np.clip(self._dot[axis] + 4 * (2 * sign - 1), 0, self.SIZE - 4)
        self._steps += 1
        distance = int(np.abs(self._dot - self._target).max())
        return self._drawn(), -distance / self.SIZE, distance < 4, self._steps >= self._limit, {}

    def _drawn(self) -> Any:
        image = np.zeros((self.SIZE, self.SIZE), np.uint8)
        for (y, x), colour in ((self._target, 100), (self._dot, 255)):
            image[y : y + 4, x : x + 4] = colour
        axis = -1 if self._channels_last else 0
        return np.stack([np.roll(image, channel, 0) for channel in range(self._channels)], axis)


class Frames(Pixels):
    """Grey images without a channel axis, to be stacked. Episodes are of 1 to `limit` steps; odd ones are cut."""

    def __init__(self, limit: int = 25) -> None:
        super().__init__(limit=limit)
        self.observation_space = spaces.Box(0, 255, (self.SIZE, self.SIZE), np.uint8)
        self._longest = limit

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed)
        self._limit = int(self.np_random.integers(1, self._longest + 1))
        return obs, info

    def step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = super().step(action)
        is_over = truncated and self._limit % 2 == 0
        return obs, reward, terminated or is_over, truncated and not is_over, info

    def _drawn(self) -> Any:
        return super()._drawn()[..., 0]


class LongWalk(gym.Env[Any, Any]):
    """Never terminates; cut at a limit that is many slabs away. Its heading is the sum of all actions so far."""

    def __init__(self, limit: int = 120) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(3)
        self._limit = limit
        self._angle, self._heading, self._steps = 0.0, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._angle, self._heading, self._steps = float(self.np_random.uniform(0, 2 * np.pi)), 0, 0
        return self._seen(), {}

    def step(self, action: Any) -> Step:
        self._heading += int(action) - 1
        self._angle += 0.05 * self._heading
        self._steps += 1
        return self._seen(), float(np.cos(self._angle)), False, self._steps >= self._limit, {}

    def _seen(self) -> Any:
        return np.array([np.cos(self._angle), np.sin(self._angle), 0.1 * self._heading], np.float32)


class Hidden(gym.Env[Any, Any]):
    """Always the same observation; the reward depends on all actions of the episode. Replaying wrongly shows late."""

    def __init__(self, limit: int = 60) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(3)
        self._limit, self._total, self._steps = limit, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._total = self._steps = 0
        return np.ones(2, np.float32), {}

    def step(self, action: Any) -> Step:
        self._total += int(action)
        self._steps += 1
        return np.ones(2, np.float32), float(np.sin(self._total)), False, self._steps >= self._limit, {}


OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-1, 1, (5,), np.float32),
    "wide": spaces.Box(-1, 1, (17,), np.float32),
    "float64": spaces.Box(-1, 1, (3,), np.float64),
    "image": spaces.Box(0, 255, (36, 36, 1), np.uint8),
    "image_chw": spaces.Box(0, 255, (2, 40, 40), np.uint8),
    "discrete": spaces.Discrete(7, start=-2),
    "multi_discrete": spaces.MultiDiscrete([3, 4], start=[0, 5]),
    "multi_binary": spaces.MultiBinary(6),
}
SEVERAL: dict[str, spaces.Space[Any]] = {
    "dict": spaces.Dict({"image": OBSERVATIONS["image"], "vector": OBSERVATIONS["vector"]}),
    "nested": spaces.Dict(
        {
            "a": spaces.Tuple((OBSERVATIONS["discrete"], OBSERVATIONS["float64"])),
            "b": spaces.Dict({"bits": OBSERVATIONS["multi_binary"], "choices": OBSERVATIONS["multi_discrete"]}),
        }
    ),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4),
    "discrete_from_3": spaces.Discrete(3, start=3),
    "multi_discrete": spaces.MultiDiscrete([3, 2, 4]),
    "multi_discrete_2d": spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[0, 1], [2, -1]]),
    "multi_binary": spaces.MultiBinary(3),
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "box_2d": spaces.Box(np.float32([[-1, -2], [0, -0.5]]), np.float32([[1, 2], [3, 0.5]])),
    "box_wide": spaces.Box(-1, 1, (17,), np.float32),
    "box_float64": spaces.Box(-2, 2, (2,), np.float64),
    "box_float16": spaces.Box(-2, 2, (2,), np.float16),
}


class Probe(gym.Env[Any, Any]):
    """Any pair of spaces: a little automaton mixes the actions in and every observation is drawn from its state."""

    def __init__(self, observation: str = "vector", action: str = "discrete", limit: int = 30) -> None:
        self.observation_space = (OBSERVATIONS | SEVERAL)[observation]
        self.action_space = ACTIONS[action]
        self._limit, self._state, self._steps = limit, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._state, self._steps = int(self.np_random.integers(9973)), 0
        return self._seen(), {}

    def step(self, action: Any) -> Step:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        flat = np.asarray(action, np.float64).reshape(-1)
        self._state = int(self._state * 31 + 7 + flat @ np.arange(1, 1 + flat.size) * 101) % 9973
        self._steps += 1
        return self._seen(), float(np.cos(self._state)), self._state % 29 == 0, self._steps >= self._limit, {}

    def _seen(self, space: spaces.Space[Any] | None = None) -> Any:
        space = self.observation_space if space is None else space
        if isinstance(space, spaces.Dict):
            return {name: self._seen(one) for name, one in space.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(map(self._seen, space))
        numbers = np.sin((self._state + 1) * np.arange(1.0, 1 + max(1, int(np.prod(space.shape)))))  # -1 to 1
        match space:
            case spaces.Box() if space.dtype == np.uint8:
                return ((numbers + 1) * 127).astype(np.uint8).reshape(space.shape)
            case spaces.Box():
                return numbers.astype(space.dtype).reshape(space.shape)
            case spaces.Discrete():
                return np.int64(space.start + self._state % space.n)
            case spaces.MultiDiscrete():
                return space.start + self._state % space.nvec
        return (numbers > 0).astype(np.int8).reshape(space.shape)


class Cards(gym.Env[Any, Any]):
    """Cards that may be played once each: allowed are those that are left. By info, or by a method (`Hand`).

    `pairs`: two cards of different hands at once (MultiDiscrete). A forbidden card raises.
    """

    def __init__(self, pairs: bool = False, limit: int = 9) -> None:
        counts = (5, 4) if pairs else (6,)
        self.observation_space = spaces.Box(-np.inf, np.inf, (sum(counts) + 1,), np.float32)
        self.action_space = spaces.MultiDiscrete(counts) if pairs else spaces.Discrete(6)
        self._starts, self._limit = np.cumsum([0, *counts[:-1]]), limit
        self._left, self._worth, self._steps = np.zeros(0, bool), np.zeros(0), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        size = self.observation_space.shape[0] - 1
        self._left, self._worth, self._steps = np.ones(size, bool), self.np_random.normal(size=size), 0
        return self._obs(), {"action_mask": self._left.copy()}

    def step(self, action: Any) -> Step:
        chosen = self._starts + np.asarray(action).reshape(-1)
        assert self._left[chosen].all(), "a forbidden card"
        self._left[chosen] = False
        self._steps += 1
        over = bool(min(map(np.sum, np.split(self._left, self._starts[1:]))) == 0)
        reward = float(self._worth[chosen].sum() / self._steps)
        cut = not over and self._steps >= self._limit
        return self._obs(), reward, over, cut, {} if over else {"action_mask": self._left.copy()}

    def _obs(self) -> Any:
        return np.append(self._worth * self._left, self._steps).astype(np.float32)


class Hand(Cards):
    """The same, as environments for sb3-contrib's MaskablePPO have it."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)[0], {}

    def step(self, action: Any) -> Step:
        return (*super().step(action)[:4], {})

    def action_masks(self) -> Any:
        return self._left.copy()
