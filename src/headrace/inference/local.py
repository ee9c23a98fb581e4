"""Local inference: the policy of this host, on tiles, without gradients.

    obs [B, ...], noise [B, width] --tiles--> policy.act --> actions [B, ...]

Observations are copied into one aligned tile; a short one is padded. A plain MLP acts through one compiled call
instead. `inference/self_test` proves at start-up, on this machine and with this policy, that a row's action does not
depend on its place or its neighbours. Does not know where weights come from: it reads the module it was given.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from headrace.errors import UsageError
from headrace.memory.spaces import Leaves, ObservationSpace, Space, as_seen, leaves_of, shape_of
from headrace.policies.distributions import Categorical, DiagonalGaussian
from headrace.policies.networks import MlpPolicy, as_policy
from headrace.policies.plain_mlp import PlainMlpAct
from headrace.policies.tiles import SMALLEST_TILE, spans

Array = npt.NDArray[Any]
_MANY_WEIGHTS = 2**15  # beyond, a tuned matrix product makes up for its calls


class LocalInference:
    """One policy replica acting on tiles."""

    def __init__(self, module: nn.Module, observation: ObservationSpace, action: Space, tile: int) -> None:
        if tile < SMALLEST_TILE:
            raise UsageError(f"tile: expected at least {SMALLEST_TILE} rows, got {tile}; smaller batches change bits")
        self._policy = as_policy(module)
        self.plain = _compiled(module)
        self._tile = tile
        # Torch aligns its memory to cache lines; rows of a slab may start anywhere, and rounding may depend on where.
        self._tensors = {
            name: torch.from_numpy(np.zeros((tile, *shape_of(leaf)), leaf.dtype)).clone()
            for name, leaf in leaves_of(observation).items()
        }
        self._noise_tensor = torch.zeros(tile, self._policy.noise.width)
        self._obs = {name: tensor.numpy() for name, tensor in self._tensors.items()}
        self._noise = self._noise_tensor.numpy()

    def act(self, obs: Leaves, noise: Array | None, out: Array) -> None:
        """Write the policy's actions for B observations; without noise, its mode."""
        if self.plain is not None:
            out[...] = self.plain(as_seen(obs), noise).reshape(out.shape)
            return
        with torch.inference_mode():
            for start, stop in spans(len(out), self._tile):
                count = stop - start
                for name, leaf in obs.items():
                    self._obs[name][:count] = leaf[start:stop]
                    self._obs[name][count:] = leaf[
                        start
                    ]  # pads with a real observation: zeros may lie outside the space
                if noise is not None:
                    self._noise[:count] = noise[start:stop]
                seen = as_seen(self._tensors)
                actions = self._policy.act(seen, None if noise is None else self._noise_tensor).numpy()
                out[start:stop] = actions[:count].reshape(out[start:stop].shape)


def _compiled(module: nn.Module) -> PlainMlpAct | None:
    """The compiled loop, if it knows the policy. Subclasses may have changed anything, so they are not taken."""
    if (
        type(module) is MlpPolicy
        and module.encode.is_vector
        and isinstance(module.distribution, Categorical | DiagonalGaussian)
        and sum(parameter.numel() for parameter in module.actor.parameters()) <= _MANY_WEIGHTS
    ):
        return PlainMlpAct(module)
    return None
