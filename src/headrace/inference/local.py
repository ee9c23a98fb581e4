"""Local inference: the policy of this actor, on tiles, without gradients.

    obs [B, ...], noise [B, width] --tiles--> policy.act --> actions [B, ...]

Observations are copied into one aligned tile; a short one is padded. `self_test` proves at start-up, on this
machine and with this policy, that a row's action does not depend on its place or its neighbours.
Does not know where weights come from: it is handed a module and asked to load a vector into it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from headrace.errors import HeadraceError, UsageError
from headrace.inference.plain_mlp import PlainMlpAct, supports
from headrace.memory.spaces import Box, Discrete, MultiBinary, Space, bounds, shape_of
from headrace.policies.networks import MlpPolicy, as_policy
from headrace.policies.tiles import SMALLEST_TILE, spans

Array = npt.NDArray[Any]


class LocalInference:
    """One policy replica acting on tiles."""

    def __init__(self, module: nn.Module, observation: Space, action: Space, tile: int) -> None:
        if tile < SMALLEST_TILE:
            raise UsageError(f"tile: expected at least {SMALLEST_TILE} rows, got {tile}; smaller batches change bits")
        self._policy = as_policy(module)
        self._plain = PlainMlpAct(module) if isinstance(module, MlpPolicy) and supports(module) else None
        self._tile = tile
        self._action = action
        self._observation = observation
        # Torch aligns its memory to cache lines; rows of a slab may start anywhere, and rounding may depend on where.
        self._obs_tensor = torch.from_numpy(np.zeros((tile, *shape_of(observation)), observation.dtype)).clone()
        self._noise_tensor = torch.zeros(tile, self._policy.noise.width)
        self._obs, self._noise = self._obs_tensor.numpy(), self._noise_tensor.numpy()

    def act(self, obs: Array, noise: Array | None, out: Array) -> None:
        """Write the policy's actions for B observations; without noise, its mode."""
        if self._plain is not None:
            out[...] = self._plain(obs, noise).reshape(out.shape)
            return
        with torch.inference_mode():
            for start, stop in spans(len(obs), self._tile):
                count = stop - start
                self._obs[:count] = obs[start:stop]
                if noise is not None:
                    self._noise[:count] = noise[start:stop]
                if count < self._tile:
                    self._obs[count:] = obs[start]  # a real observation: zeros may lie outside the space
                actions = self._policy.act(self._obs_tensor, None if noise is None else self._noise_tensor).numpy()
                out[start:stop] = actions[:count].reshape(out[start:stop].shape)

    def self_test(self) -> None:
        """Raise unless rows come out bit for bit the same at any place in a tile and among any neighbours.

        Looked at are actions and the numbers behind them: rounding that another place changes may not show in an
        argmax today, and will in some later step of the run.
        """
        rng = np.random.default_rng(0)
        obs = plausible(self._observation, rng, 2 * self._tile)
        noise = rng.standard_normal((2 * self._tile, self._policy.noise.width)).astype(np.float32)
        order = rng.permutation(2 * self._tile)
        short = self._tile - 1
        whole, numbers = self._acted(obs, noise), self._numbers(obs)
        if not (
            _same(self._acted(obs[order], noise[order]), whole[order])
            and _same(self._acted(obs[:short], noise[:short]), whole[:short])
            and _same(self._numbers(obs[order]), numbers[order])
        ):
            raise HeadraceError(
                f"{type(self._policy).__name__}: the same observation gave other numbers at another place in a tile of "
                f"{self._tile}; runs could not be repeated. Choose another tile size (4 to 64), and keep batch "
                f"statistics and own randomness out of act()"
            )

    def _acted(self, obs: Array, noise: Array) -> Array:
        out = np.zeros((len(obs), *shape_of(self._action)), self._action.dtype)
        self.act(obs, noise, out)
        return out

    def _numbers(self, obs: Array) -> Array:
        """What lies behind the actions of whole tiles: the head's outputs, or log-probabilities of fixed actions."""
        if self._plain is not None:
            return self._plain.forward(obs).copy()
        parts = []
        no_action = np.zeros((self._tile, *shape_of(self._action)), self._action.dtype)
        with torch.inference_mode():
            for start in range(0, len(obs), self._tile):
                self._obs[:] = obs[start : start + self._tile]
                tile = self._obs_tensor
                parts.append(self._policy.evaluate(tile, torch.from_numpy(no_action)).log_prob.numpy().copy())
        return np.concatenate(parts)


def _same(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


def plausible(space: Space, rng: np.random.Generator, count: int) -> Array:
    """Made-up rows that lie in the space."""
    shape = (count, *shape_of(space))
    match space:
        case Box():
            low, high = (
                np.clip(bound.astype(np.float64), -3, 3) if space.dtype != "uint8" else bound for bound in bounds(space)
            )
            return rng.uniform(low, high, shape).astype(space.dtype)
        case Discrete():
            return rng.integers(space.start, space.start + space.n, shape).astype(space.dtype)
        case MultiBinary():
            return rng.integers(0, 2, shape).astype(space.dtype)
    start = np.asarray(space.start).reshape(space.shape)
    return (start + rng.integers(0, np.asarray(space.nvec).reshape(space.shape), shape)).astype(space.dtype)
