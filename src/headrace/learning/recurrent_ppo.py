"""PPO for policies that remember: minibatches are chunks of successive rows of an environment, not single rows.

    batch [T, N] --> chunks of up to batch_size rows of one environment, with the state before each
                 --> minibatches of as many chunks as make batch_size rows; the rest is PPO

With n_steps up to batch_size a chunk is an environment's whole rollout. States at chunks' borders are those that
completion found, with the weights that acted; gradients end there. Does not know how a sequence is computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.learning.advantages import Targets
from headrace.learning.algorithm import Moment
from headrace.learning.batch import Array, Batch
from headrace.learning.config import PpoConfig
from headrace.learning.ppo import Ppo, valid_rows
from headrace.learning.ppo_loss import Rows
from headrace.learning.sequences import Chunks, starts_of
from headrace.memory.spaces import as_seen
from headrace.weights.flat import FlatParameters


class RecurrentPpo(Ppo):
    """PPO over sequences."""

    def __init__(self, flat: FlatParameters, config: PpoConfig, seed: int) -> None:
        super().__init__(flat, config, seed)
        self._picked_from = chunks_of

    def learn(self, batch: Batch, moment: Moment) -> dict[str, float]:
        """One update."""
        make_room(batch, self._config.batch_size)
        return super().learn(batch, moment)


build = RecurrentPpo


def make_room(batch: Batch, size: int) -> None:
    """Memory for the states at the borders of chunks, which completion fills."""
    assert batch.state is not None
    count = -(-batch.n_steps // min(batch.n_steps, size))
    batch.chunk_state = np.empty((count, *batch.state.shape), np.float32)


def chunks_of(batch: Batch, targets: Targets, size: int, device: torch.device) -> tuple[Chunks, Array, int]:
    """Chunks, the numbers of those that hold a step, and how many make a minibatch."""
    assert batch.chunk_state is not None
    valid_rows(batch)  # or it is refused
    count = len(batch.chunk_state)
    length = -(-batch.n_steps // count)

    def chunked(rows: Array, fill: Any = None) -> Array:
        missing = count * length - len(rows)
        if missing:
            more = np.repeat(rows[-1:], missing, 0) if fill is None else np.full((missing, *rows.shape[1:]), fill)
            rows = np.concatenate([rows, more])
        parts = rows.reshape(count, length, *rows.shape[1:]).swapaxes(0, 1)
        return np.ascontiguousarray(parts).reshape(length, -1, *rows.shape[2:])  # [C, K, ...]

    value = batch.value if targets.value is None else targets.value
    columns = batch.action, targets.log_prob, value, targets.advantage, targets.returns, targets.weight
    obs = as_seen({name: torch.from_numpy(chunked(leaf)).to(device) for name, leaf in batch.leaves.items()})
    valid = chunked(batch.valid, False)
    state = torch.from_numpy(batch.chunk_state.reshape(-1, batch.chunk_state.shape[-1])).to(device)
    rows = Rows(obs, *(torch.from_numpy(chunked(column)).to(device) for column in columns))
    chunks = Chunks(rows, state, chunked(starts_of(batch)), valid)
    return chunks, np.flatnonzero(valid.any(0)), max(1, size // length)
