"""Local inference of a policy that remembers: what it remembers of every row goes in and comes out with the actions.

    obs [B, ...] and state [B, S], noise [B, width] --tiles--> policy.act --> actions [B, ...], state written in place

Which class acts is chosen once, by the policy (`inference_of`).
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from headrace.inference.local import LocalInference
from headrace.memory.schema import STATE
from headrace.memory.spaces import Leaves, ObservationSpace, Space
from headrace.policies.policy import state_size_of
from headrace.policies.tiles import spans

Array = npt.NDArray[Any]


class RecurrentInference(LocalInference):
    """One policy replica acting on tiles of observations and states."""

    def __init__(self, module: nn.Module, observation: ObservationSpace, action: Space, tile: int) -> None:
        super().__init__(module, observation, action, tile)
        state = torch.zeros(tile, state_size_of(module))
        self._obs[STATE] = state.numpy()  # filled with the observations, tile by tile
        self._remembering = _Remembering(module, state)
        self._policy = self._remembering  # type: ignore[assignment]  # of which tiles ask for act alone

    def act(self, obs: Leaves, noise: Array | None, out: Array) -> None:
        """Write the policy's actions for B observations and, in the place of the states, those after them."""
        for start, stop in spans(len(out), self._tile):
            part = {name: leaf[start:stop] for name, leaf in obs.items()}
            super().act(part, None if noise is None else noise[start:stop], out[start:stop])
            obs[STATE][start:stop] = self._remembering.after[: stop - start].numpy()


class _Remembering:
    """A policy as one that takes observations alone: a tile's state is in its place, that after it stays here."""

    after: Tensor

    def __init__(self, policy: Any, state: Tensor) -> None:
        self.noise, self._policy, self._state = policy.noise, policy, state

    def act(self, obs: Any, noise: Tensor | None) -> Tensor:
        """The actions of a tile."""
        actions: Tensor
        actions, self.after = self._policy.act(obs, noise, self._state)
        return actions


def inference_of(module: nn.Module, observation: ObservationSpace, action: Space, tile: int) -> LocalInference:
    """What acts with this policy."""
    kind = RecurrentInference if state_size_of(module) else LocalInference
    return kind(module, observation, action, tile)
