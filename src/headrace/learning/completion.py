"""Completion: log-probabilities and values of a whole batch, in one pass with the weights that acted.

    obs of every row, last observations, final observations of truncated rows --policy of each row's version-->
        log_prob, value [T, N] · last_value [N] · bootstrap_value [T, N] (0 but in truncated rows)

Actors run the actor's half of the network only; the rest is cheaper here, in large batches, and comes out the same
whoever acted. Does not know advantages.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from headrace.errors import NumericsError
from headrace.learning.batch import Array, Batch
from headrace.policies.policy import Evaluator
from headrace.policies.tiles import SMALLEST_TILE, spans

PolicyOf = Callable[[int], Evaluator]
_CHUNK_BYTES = 64 * 2**20  # of observations at once: bounds the memory a CNN's activations take


def complete(batch: Batch, policy_of: PolicyOf) -> None:
    """Fill the completed fields of a batch; `policy_of(version)` holds the weights of a version that acted."""
    n_rows = batch.n_steps * batch.n_envs
    obs = torch.from_numpy(batch.obs.reshape(n_rows, *batch.obs.shape[2:]))
    actions = torch.from_numpy(batch.action.reshape(n_rows, *batch.action.shape[2:]))
    row_version = batch.version.reshape(-1)
    ends = np.concatenate([batch.last_obs, batch.final_obs])
    ends_version = np.concatenate([batch.version[-1], row_version[batch.final_row]])
    log_prob, value = np.empty(n_rows, np.float32), np.empty(n_rows, np.float32)
    ends_value = np.empty(len(ends), np.float32)
    versions = np.unique(row_version)
    with torch.inference_mode():
        for version in versions.tolist():
            policy = policy_of(version)
            if len(versions) == 1:
                log_prob[:], value[:] = _evaluated(policy, obs, actions)
                ends_value[:] = _values(policy.value, ends)
                break
            rows, at_ends = np.flatnonzero(row_version == version), np.flatnonzero(ends_version == version)
            index = torch.from_numpy(_padded(rows))
            some = _evaluated(policy, obs.index_select(0, index), actions.index_select(0, index))
            log_prob[rows], value[rows] = (part[: len(rows)] for part in some)
            if len(at_ends):
                ends_value[at_ends] = _values(policy.value, ends[at_ends])
    batch.log_prob[:] = log_prob.reshape(batch.log_prob.shape)
    batch.value[:] = value.reshape(batch.value.shape)
    batch.last_value[:] = ends_value[: batch.n_envs]
    batch.bootstrap_value.fill(0.0)
    batch.bootstrap_value.reshape(-1)[batch.final_row] = ends_value[batch.n_envs :]
    if not (np.isfinite(batch.log_prob).all() and np.isfinite(batch.value).all() and np.isfinite(ends_value).all()):
        raise NumericsError(
            "the policy's log-probabilities or values are not finite; the weights have diverged: lower learning_rate, "
            "set max_grad_norm, or resume from an earlier checkpoint"
        )


def _evaluated(policy: Evaluator, obs: Tensor, actions: Tensor) -> tuple[Array, Array]:
    """Log-probabilities and values, in pieces that bound memory."""
    parts = [policy.evaluate(obs[start:stop], actions[start:stop]) for start, stop in _chunks(obs)]
    return torch.cat([one.log_prob for one in parts]).numpy(), torch.cat([one.value for one in parts]).numpy()


def _padded(rows: Array) -> Array:
    """A few rows more, so that tiny batches do not change bits."""
    return np.concatenate([rows, np.repeat(rows[:1], -len(rows) % SMALLEST_TILE)])


def _values(value: object, obs: Array) -> Array:
    """Values of a varying number of observations, padded so that tiny batches do not change bits."""
    count = len(obs)
    padding = -count % SMALLEST_TILE
    if padding:
        obs = np.concatenate([obs, np.repeat(obs[:1], padding, 0)])  # a real one: zeros may lie outside the space
    tensor = torch.from_numpy(obs).clone()  # torch aligns it, wherever numpy had put it
    parts: list[Tensor] = [value(tensor[start:stop]) for start, stop in _chunks(tensor)]  # type: ignore[operator]
    return np.asarray(torch.cat(parts)[:count].numpy())


def _chunks(obs: Tensor) -> list[tuple[int, int]]:
    row_bytes = max(1, obs[0].numel() * obs.element_size())
    rows = max(SMALLEST_TILE, _CHUNK_BYTES // row_bytes // SMALLEST_TILE * SMALLEST_TILE)
    return spans(len(obs), rows)
