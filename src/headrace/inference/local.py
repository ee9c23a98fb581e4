"""Local inference: the policy of this actor, on tiles, without gradients.

    obs [B, ...], noise [B, width] --tiles--> policy.act --> actions [B, ...]

A full tile is read in place; a short one is copied into a padded buffer. `self_test` proves at start-up, on this
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
from headrace.memory.spaces import Box, Discrete, MultiBinary, Space, bounds, shape_of
from headrace.policies.networks import as_policy
from headrace.policies.tiles import SMALLEST_TILE, spans

Array = npt.NDArray[Any]


class LocalInference:
    """One policy replica acting on tiles."""

    def __init__(self, module: nn.Module, observation: Space, action: Space, tile: int) -> None:
        if tile < SMALLEST_TILE:
            raise UsageError(f"tile: expected at least {SMALLEST_TILE} rows, got {tile}; smaller batches change bits")
        self._policy = as_policy(module)
        self._tile = tile
        self._action = action
        self._observation = observation
        self._obs = np.zeros((tile, *shape_of(observation)), observation.dtype)
        self._noise = np.zeros((tile, self._policy.noise.width), np.float32)

    def act(self, obs: Array, noise: Array | None, out: Array) -> None:
        """Write the policy's actions for B observations; without noise, its mode."""
        with torch.inference_mode():
            for start, stop in spans(len(obs), self._tile):
                tile_obs, tile_noise = obs[start:stop], None if noise is None else noise[start:stop]
                if stop - start < self._tile:
                    self._obs[: stop - start] = tile_obs
                    tile_obs = self._obs
                    if tile_noise is not None:
                        self._noise[: stop - start] = tile_noise
                        tile_noise = self._noise
                actions = self._policy.act(
                    torch.from_numpy(tile_obs), None if tile_noise is None else torch.from_numpy(tile_noise)
                )
                out[start:stop] = actions.numpy()[: stop - start]

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
