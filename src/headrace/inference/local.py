"""Local inference: the policy of this actor, on tiles, without gradients.

    obs [B, ...], noise [B, width] --tiles--> policy.act --> actions [B, ...]

A full tile is read in place; a short one is copied into a padded buffer. `self_test` proves at start-up, on this
machine and with this policy, that a row's action does not depend on its place or its neighbours.
Does not know where weights come from: it is handed a module and asked to load a vector into it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

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
        self._act_tile: Callable[[Tensor, Tensor | None], Tensor] = self._policy.act
        if isinstance(module, MlpPolicy) and supports(module):
            self._act_tile = PlainMlpAct(module, tile)
        self._tile = tile
        self._action = action
        self._observation = observation
        self._obs = np.zeros((tile, *shape_of(observation)), observation.dtype)
        self._noise = np.zeros((tile, self._policy.noise.width), np.float32)
        self._out = np.zeros((tile, *shape_of(action)), action.dtype)

    def act(self, obs: Array, noise: Array | None, out: Array) -> None:
        """Write the policy's actions for B observations; without noise, its mode."""
        with torch.inference_mode():
            if len(obs) == self._tile:
                self._act_whole_tile(obs, noise, out)
                return
            for start, stop in spans(len(obs), self._tile):
                count = stop - start
                if count == self._tile:
                    part = None if noise is None else noise[start:stop]
                    self._act_whole_tile(obs[start:stop], part, out[start:stop])
                    continue
                self._obs[:count] = obs[start:stop]
                if noise is not None:
                    self._noise[:count] = noise[start:stop]
                self._act_whole_tile(self._obs, None if noise is None else self._noise, self._out)
                out[start:stop] = self._out[:count]

    def _act_whole_tile(self, obs: Array, noise: Array | None, out: Array) -> None:
        actions = self._act_tile(torch.from_numpy(obs), None if noise is None else torch.from_numpy(noise)).numpy()
        out[...] = actions if actions.shape == out.shape else actions.reshape(out.shape)

    def self_test(self) -> None:
        """Raise unless rows come out bit for bit the same at any place in a tile and among any neighbours."""
        rng = np.random.default_rng(0)
        obs = _plausible(self._observation, rng, 2 * self._tile)
        noise = rng.standard_normal((2 * self._tile, self._policy.noise.width)).astype(np.float32)
        for probe in (noise, None):
            want = self._acted(obs, probe)
            order = rng.permutation(2 * self._tile)
            if not _same(self._acted(obs[order], None if probe is None else probe[order]), want[order]):
                raise HeadraceError(
                    f"{type(self._policy).__name__}: the same observation gave other actions at another place in a "
                    f"tile of {self._tile}; runs could not be repeated. Choose another tile size (4 to 64), and "
                    f"keep batch statistics and own randomness out of act()"
                )
            short = self._acted(obs[: self._tile - 1], None if probe is None else probe[: self._tile - 1])
            if not _same(short, want[: self._tile - 1]):
                raise HeadraceError(
                    f"{type(self._policy).__name__}: a padded tile of {self._tile} gave other actions than a full one"
                )

    def _acted(self, obs: Array, noise: Array | None) -> Array:
        out = np.zeros((len(obs), *shape_of(self._action)), self._action.dtype)
        self.act(obs, noise, out)
        return out


def _same(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


def _plausible(space: Space, rng: np.random.Generator, count: int) -> Array:
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
