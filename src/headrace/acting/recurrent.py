"""The actor of a policy that remembers: its state goes from row to row, and starts anew with every episode.

    state before the first row -> slab · row: act(obs and state) -> the state after it, 0 where an episode ended
    state after the last row -> slab, so the journal knows where the shard goes on

Chosen when an actor is built (collecting/plan). Does not know what acts, nor what a state means.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from headrace.acting.actor import Actor
from headrace.acting.stacked import Act
from headrace.memory.schema import STATE
from headrace.memory.slab import Slab
from headrace.memory.spaces import Leaves

Array = npt.NDArray[Any]


class RecurrentActor(Actor):
    """One shard's environments, the noise they are driven with, and what the policy remembers of them [B, S]."""

    def __init__(self, *parts: Any, state: Array) -> None:
        super().__init__(*parts)
        self._state = state

    def fill(self, slab: Slab, act: Act) -> None:
        """One rollout into a leased slab. The caller commits it."""
        slab.arrays[STATE][...] = self._state
        super().fill(slab, remembering(slab, self._state, act))
        forget(self._state, slab, slab.schema.n_steps - 1)
        slab.arrays[f"last_{STATE}"][...] = self._state


def remembering(slab: Slab, state: Array, act: Act) -> Act:
    """Acts on observations and state; whoever acts writes the state after the row in its place."""

    def act_and_remember(row: int, obs: Leaves, noise: Array, out: Array) -> int:
        if row:
            forget(state, slab, row - 1)
        return act(row, {**obs, STATE: state}, noise, out)

    return act_and_remember


def forget(state: Array, slab: Slab, t: int) -> None:
    """Begin anew where an episode ended with row t, or where the row was a reset and no step."""
    state[slab.terminated[t] | slab.truncated[t] | ~slab.valid[t]] = 0.0
