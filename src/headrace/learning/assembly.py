"""How a batch is made: the slabs of one update side by side, in env order, never as they arrived; and its completion.

    slabs of all shards --assemble--> [T, N] arrays     (one shard: the slab's own memory, no copy)
    obs of every row, last observations, final observations of truncated rows --policy of each row's version-->
        complete: log_prob, value [T, N] · last_value [N] · bootstrap_value [T, N] (0 but in truncated rows)

Actors run the actor's half of the network only; the rest is cheaper here, in large batches, and comes out the same
wherever the actors ran. Does not know advantages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from headrace.learning.batch import Array, Batch
from headrace.learning.sequences import complete_sequences, require_finite
from headrace.memory.schema import ALIGNMENT, STATE
from headrace.memory.slab import Slab
from headrace.memory.spaces import Leaves, as_seen
from headrace.policies.policy import Evaluator
from headrace.policies.tiles import SMALLEST_TILE, spans

PolicyOf = Callable[[int], Evaluator]
Device = torch.device | None  # None: the CPU
_CHUNK_BYTES = 64 * 2**20  # of observations at once: bounds the memory a CNN's activations take
_COLUMNS = (
    "action", "reward", "terminated", "truncated", "valid", "episode", "step",
    "log_prob", "value", "bootstrap_value", "last_value",
)  # fmt: skip


def assemble(slabs: Sequence[Slab]) -> Batch:
    """Slabs in shard order to one batch in env order."""
    columns = {name: _side_by_side([slab.arrays[name] for slab in slabs], name != "last_value") for name in _COLUMNS}
    n_envs, offset, rows = columns["reward"].shape[1], 0, []
    for slab in slabs:
        t, b = np.divmod(slab.final_row, slab.schema.n_envs)
        rows.append(t * n_envs + offset + b)
        offset += slab.schema.n_envs
    final_row, leaves = np.concatenate(rows), slabs[0].schema.leaves
    order = np.argsort(final_row) if len(slabs) > 1 else slice(None)  # by row, then environment: as one shard has them
    obs, last, final = zip(*(slab.whole() for slab in slabs), strict=True)
    states = [slab.arrays[STATE] for slab in slabs if STATE in slab.arrays]
    return Batch(
        {name: _side_by_side([one[name] for one in obs], True) for name in leaves},
        {name: _side_by_side([one[name] for one in last], False) for name in leaves},
        {name: _side_by_side([one[name] for one in final], False)[order] for name in leaves},
        final_row=final_row[order],
        version=_side_by_side([np.broadcast_to(slab.version[:, None], slab.reward.shape) for slab in slabs], True),
        **columns,
        state=_side_by_side(states, False) if states else None,
    )


def complete(batch: Batch, policy_of: PolicyOf, device: Device = None) -> None:
    """Fill the completed fields of a batch; `policy_of(version)` holds the weights of a version that acted."""
    if batch.state is not None:
        complete_sequences(batch, policy_of, device)
        return
    n_rows = batch.n_steps * batch.n_envs
    obs = {name: as_rows(leaf, n_rows, device) for name, leaf in batch.leaves.items()}
    actions = as_rows(batch.action, n_rows, device)
    row_version = batch.version.reshape(-1)
    ends = {name: np.concatenate([leaf, batch.final_leaves[name]]) for name, leaf in batch.last_leaves.items()}
    ends_version = np.concatenate([batch.version[-1], row_version[batch.final_row]])
    log_prob, value, ends_value = (np.empty(n, np.float32) for n in (n_rows, n_rows, len(ends_version)))
    versions = np.unique(row_version)
    with torch.inference_mode():
        for version in versions.tolist():
            policy = policy_of(version)
            if len(versions) == 1:
                log_prob[:], value[:] = _evaluated(policy, obs, actions)
                ends_value[:] = _values(policy, ends, device)
                break
            rows, at_ends = np.flatnonzero(row_version == version), np.flatnonzero(ends_version == version)
            index = torch.from_numpy(_padded(rows)).to(device)
            some = {name: leaf.index_select(0, index) for name, leaf in obs.items()}
            parts = _evaluated(policy, some, actions.index_select(0, index))
            log_prob[rows], value[rows] = (part[: len(rows)] for part in parts)
            if len(at_ends):
                ends_value[at_ends] = _values(policy, {name: leaf[at_ends] for name, leaf in ends.items()}, device)
    batch.log_prob[:] = log_prob.reshape(batch.log_prob.shape)
    batch.value[:] = value.reshape(batch.value.shape)
    batch.last_value[:] = ends_value[: batch.n_envs]
    batch.bootstrap_value.fill(0.0)
    batch.bootstrap_value.reshape(-1)[batch.final_row] = ends_value[batch.n_envs :]
    require_finite(batch.log_prob, batch.value, ends_value)


def as_rows(array: Array, n_rows: int, device: Device) -> Tensor:
    """[T, N, ...] as one axis of rows; on the CPU it is the array's own memory."""
    return torch.from_numpy(array.reshape(n_rows, *array.shape[2:])).to(device)


def _side_by_side(parts: list[Array], has_rows: bool) -> Array:
    """Several in memory of their own, on a cache line as a slab's field is: rounding may depend on alignment."""
    if len(parts) == 1:
        return parts[0]
    axis, shape = int(has_rows), list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    size = math.prod(shape) * parts[0].itemsize
    block = np.empty(size + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    out = block[start : start + size].view(parts[0].dtype).reshape(shape)
    return np.concatenate(parts, axis, out=out)


def _evaluated(policy: Evaluator, obs: dict[str, Tensor], actions: Tensor) -> tuple[Array, Array]:
    """Log-probabilities and values, in pieces that bound memory."""
    parts = [
        policy.evaluate(as_seen({name: leaf[start:stop] for name, leaf in obs.items()}), actions[start:stop])
        for start, stop in _chunks(obs)
    ]
    return torch.cat([p.log_prob for p in parts]).cpu().numpy(), torch.cat([p.value for p in parts]).cpu().numpy()


def _padded(rows: Array) -> Array:
    """A few rows more, so that tiny batches do not change bits."""
    return np.concatenate([rows, np.repeat(rows[:1], -len(rows) % SMALLEST_TILE)])


def _values(policy: Evaluator, obs: Leaves, device: Device) -> Array:
    """Values of a varying number of observations, padded (with a real one) so that tiny batches do not change bits."""
    count = len(next(iter(obs.values())))
    index = _padded(np.arange(count))
    tensors = {name: torch.from_numpy(leaf[index]).clone().to(device) for name, leaf in obs.items()}  # clone: aligned
    parts = [
        policy.value(as_seen({name: leaf[start:stop] for name, leaf in tensors.items()}))
        for start, stop in _chunks(tensors)
    ]
    return np.asarray(torch.cat(parts)[:count].cpu().numpy())


def _chunks(obs: dict[str, Tensor]) -> list[tuple[int, int]]:
    row_bytes = max(1, sum(leaf[0].numel() * leaf.element_size() for leaf in obs.values()))
    rows = max(SMALLEST_TILE, _CHUNK_BYTES // row_bytes // SMALLEST_TILE * SMALLEST_TILE)
    return spans(len(next(iter(obs.values()))), rows)
