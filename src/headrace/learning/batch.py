"""A batch: the rollouts of one update, side by side in the order of environments. What learners read.

Named arrays [T, N]; observations by leaf, final ones with the row they belong to. A batch of one shard is the slab's
own memory. Does not know how it was put together and completed (assembly).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields
from typing import Any

import numpy.typing as npt

from headrace.memory.spaces import Leaves, as_seen

Array = npt.NDArray[Any]


@dataclass(repr=False)
class Batch:
    """[T, N] arrays of all environments; final observations with their flat row index t * N + n."""

    leaves: Leaves
    last_leaves: Leaves
    final_leaves: Leaves
    final_row: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    version: Array
    episode: Array
    step: Array
    log_prob: Array
    value: Array
    bootstrap_value: Array
    last_value: Array
    state: Array | None = None
    """[N, S], what a recurrent policy remembered at the first row (learning/sequences)."""
    chunk_state: Array | None = None
    """[chunks, N, S], the same at the first row of every chunk; completion fills it."""

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {leaf.shape}" for name, leaf in {**self.leaves, "action": self.action}.items())
        return f"Batch(n_steps={self.n_steps}, n_envs={self.n_envs}, {shapes})"

    @property
    def obs(self) -> Any:
        """Observations [T, N, ...]: one array, or arrays by name."""
        return as_seen(self.leaves)

    @property
    def last_obs(self) -> Any:
        """The observations after the last row, [N, ...]."""
        return as_seen(self.last_leaves)

    @property
    def final_obs(self) -> Any:
        """The observations in which episodes were truncated, in the order of `final_row`."""
        return as_seen(self.final_leaves)

    @property
    def n_steps(self) -> int:
        """T."""
        return int(self.reward.shape[0])

    @property
    def n_envs(self) -> int:
        """N."""
        return int(self.reward.shape[1])

    @property
    def actions(self) -> Array:
        """The actions, by the name that users know."""
        return self.action

    @property
    def rewards(self) -> Array:
        """The rewards, by the name that users know."""
        return self.reward

    @property
    def steps(self) -> int:
        """Real transitions."""
        return int(self.valid.sum())

    def copy(self) -> Batch:
        """The same in memory of its own, to keep."""
        return Batch(**{field.name: copy.deepcopy(getattr(self, field.name)) for field in fields(self)})
