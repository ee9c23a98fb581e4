"""Local inference: the policy of this host, on tiles, without gradients.

    obs [B, ...], noise [B, width] --tiles--> policy.act --> actions [B, ...]

Observations are copied into one aligned tile; a short one is padded. A plain MLP acts through one compiled call
instead. `inference/self_test` proves at start-up, on this machine and with this policy, that a row's action does not
depend on its place or its neighbours. `LocalInference` reads the module it was given; which version of the weights that
holds is up to who follows the store (weights/store).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from headrace.errors import UsageError
from headrace.inference.device_names import Device
from headrace.memory.segment import SharedSegment
from headrace.memory.spaces import Leaves, ObservationSpace, Space, as_seen, leaves_of, shape_of
from headrace.policies.distributions import Categorical, DiagonalGaussian
from headrace.policies.networks import MlpPolicy, as_policy
from headrace.policies.normalization import compiled_act
from headrace.policies.plain_mlp import KINDS, PlainMlpAct
from headrace.policies.tiles import SMALLEST_TILE, spans
from headrace.weights.flat import FlatParameters
from headrace.weights.store import Following, Replica, WeightStore

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


class Planned(Protocol):
    """What a plan of hosts says about acting."""

    @property
    def module(self) -> nn.Module | None: ...
    @property
    def observation(self) -> ObservationSpace: ...
    @property
    def action(self) -> Space: ...
    @property
    def tile(self) -> int: ...
    @property
    def pick_up_rows(self) -> int: ...
    @property
    def devices(self) -> tuple[Device | None, ...]: ...


def following(plan: Planned, store: WeightStore) -> Following:
    """A replica of the plan's policy that acts for a host and follows the store."""
    from headrace.inference.recurrent import inference_of  # which knows this file

    assert plan.module is not None
    flat = FlatParameters(copy.deepcopy(plan.module))
    replica, seen = Replica(flat), (plan.observation, plan.action, plan.tile)
    device = plan.devices[0]  # only servers have several, and what replays them
    infers = inference_of(flat.module, *seen) if device is None else device.inference(replica, *seen)
    return Following(replica, store, infers.act, plan.pick_up_rows)


@dataclass(frozen=True)
class OwnInference:
    """All that a worker process needs to act by itself."""

    plan: Planned
    segment: str
    size: int
    capacity: int

    def open(self, waits: Callable[[int], None]) -> Following:
        """Attach to the weights. From now on this process runs torch on one thread."""
        torch.set_num_threads(1)
        store = WeightStore(self.size, self.capacity, SharedSegment.attach(self.segment), create=False)
        return following(self.plan, store)


def _compiled(module: nn.Module) -> PlainMlpAct | None:
    """The compiled loop, if it knows the policy. Subclasses may have changed anything, so they are not taken."""
    if (
        type(module) is MlpPolicy
        and module.activation in KINDS
        and isinstance(module.distribution, Categorical | DiagonalGaussian)
        and sum(parameter.numel() for parameter in module.actor.parameters()) <= _MANY_WEIGHTS
    ):
        return compiled_act(module)
    return None
