"""A batch: the slabs of one update side by side, in env order, never in the order of arrival.

    slabs of all shards --assemble--> [T, N] arrays     (one shard: the slab's own memory, no copy)

`write_back` puts what completion computed into the slabs, which then hold every field of the schema.
Does not know what is computed from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.memory.schema import ALIGNMENT
from headrace.memory.slab import Slab

Array = npt.NDArray[Any]


@dataclass
class Batch:
    """[T, N] arrays of all environments; final observations with their flat row index t * N + n."""

    obs: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    version: Array
    episode: Array
    step: Array
    last_obs: Array
    final_row: Array
    final_obs: Array
    log_prob: Array
    value: Array
    bootstrap_value: Array
    last_value: Array

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


def assemble(slabs: Sequence[Slab]) -> Batch:
    """Slabs in shard order to one batch in env order."""
    if len(slabs) == 1:
        slab = slabs[0]
        arrays = {name: slab.arrays[name] for name in Batch.__dataclass_fields__ if not name.startswith("final")}
        arrays["version"] = _per_env(slab)
        return Batch(**arrays, final_row=slab.final_row, final_obs=slab.final_obs)
    arrays = {}
    for field in slabs[0].schema.fields:
        if field.name in Batch.__dataclass_fields__ and field.axes in ("TB", "B"):
            parts, axis = [slab.arrays[field.name] for slab in slabs], field.axes.index("B")
            arrays[field.name] = np.concatenate(parts, axis, out=_aligned_like(parts, axis))
    arrays["version"] = np.concatenate([_per_env(slab) for slab in slabs], 1)
    n_envs, offset, rows = arrays["reward"].shape[1], 0, []
    for slab in slabs:
        t, b = np.divmod(slab.final_row, slab.schema.n_envs)
        rows.append(t * n_envs + offset + b)
        offset += slab.schema.n_envs
    final_row = np.concatenate(rows)
    order = np.argsort(final_row)  # by row, then environment: as one shard would have recorded them
    return Batch(**arrays, final_row=final_row[order], final_obs=np.concatenate([s.final_obs for s in slabs])[order])


def _per_env(slab: Slab) -> Array:
    return np.broadcast_to(slab.version[:, None], slab.reward.shape)


def _aligned_like(parts: list[Array], axis: int) -> Array:
    """Memory for the parts side by side, on a cache line as a slab's field is: rounding may depend on alignment."""
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    size = math.prod(shape) * parts[0].itemsize
    block = np.empty(size + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + size].view(parts[0].dtype).reshape(shape)


def write_back(batch: Batch, slabs: Sequence[Slab]) -> None:
    """Put the completed fields into the slabs they belong to; nothing to do where the batch is the slab."""
    if len(slabs) == 1:
        return
    start = 0
    for slab in slabs:
        stop = start + slab.schema.n_envs
        for name in ("log_prob", "value", "bootstrap_value"):
            slab.arrays[name][:] = getattr(batch, name)[:, start:stop]
        slab.last_value[:] = batch.last_value[start:stop]
        start = stop
