"""Completion: log-probabilities and values of a whole batch, in one pass with the weights that acted.

    obs of every row, last observations, final observations of truncated rows --policy of that version-->
        log_prob, value [T, N] · last_value [N] · bootstrap_value [T, N] (0 but in truncated rows)

Actors run the actor's half of the network only; the rest is cheaper here, in large batches, and comes out the same
whoever acted. Does not know advantages.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headrace.errors import NumericsError
from headrace.learning.batch import Array, Batch
from headrace.policies.policy import Evaluator
from headrace.policies.tiles import SMALLEST_TILE, spans

_CHUNK_BYTES = 64 * 2**20  # of observations at once: bounds the memory a CNN's activations take


def complete(batch: Batch, policy: Evaluator) -> None:
    """Fill the completed fields of a batch; `policy` holds the weights of the version that acted."""
    n_rows = batch.n_steps * batch.n_envs
    obs = torch.from_numpy(batch.obs.reshape(n_rows, *batch.obs.shape[2:]))
    actions = torch.from_numpy(batch.action.reshape(n_rows, *batch.action.shape[2:]))
    log_prob, value = torch.empty(n_rows), torch.empty(n_rows)
    with torch.inference_mode():
        for start, stop in _chunks(obs):
            result = policy.evaluate(obs[start:stop], actions[start:stop])
            log_prob[start:stop], value[start:stop] = result.log_prob, result.value
        ends = np.concatenate([batch.last_obs, batch.final_obs])
        ends_value = _values(policy.value, ends)
    batch.log_prob[:] = log_prob.numpy().reshape(batch.log_prob.shape)
    batch.value[:] = value.numpy().reshape(batch.value.shape)
    batch.last_value[:] = ends_value[: batch.n_envs]
    batch.bootstrap_value.fill(0.0)
    batch.bootstrap_value.reshape(-1)[batch.final_row] = ends_value[batch.n_envs :]
    if not (np.isfinite(batch.log_prob).all() and np.isfinite(batch.value).all() and np.isfinite(ends_value).all()):
        raise NumericsError(
            "the policy's log-probabilities or values are not finite; the weights have diverged: lower learning_rate, "
            "set max_grad_norm, or resume from an earlier checkpoint"
        )


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
