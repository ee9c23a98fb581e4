"""Advantages over rows in the normal form: generalised advantage estimation. Pure numpy.

    delta_t = r_t + gamma * V(next) - V(o_t)        A_t = delta_t + gamma * lambda * A_{t+1}, cut where the episode ends

V(next) is 0 after a termination (also if the same step was truncated), the value of the episode's real final
observation after a truncation, the next row's value in the middle, and last_value at the rollout's edge. An invalid row
follows an end, so cutting there leaves it without influence; its own advantage is 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.learning.batch import Batch
from headrace.learning.config import PpoConfig

Array = npt.NDArray[Any]


class Targets(NamedTuple):
    """What PPO trains on, [T, N]: advantages, value targets, and the policy that ratios are clipped against."""

    advantage: Array
    returns: Array
    log_prob: Array
    weight: Array
    value: Array | None = None  # what clip_range_vf clips around; None: the batch's own


def advantages(batch: Batch, config: PpoConfig) -> tuple[Array, Array]:
    """Advantages and returns of a completed batch."""
    arrays = (batch.reward, batch.value, batch.bootstrap_value, batch.terminated, batch.truncated, batch.valid)
    return gae(*arrays, batch.last_value, config.gamma, config.gae_lambda)


def gae(
    reward: Array,
    value: Array,
    bootstrap_value: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    last_value: Array,
    gamma: float,
    gae_lambda: float,
) -> tuple[Array, Array]:
    """Advantages and returns (the value targets), [T, N] float32."""
    going_on = ~(terminated | truncated) & valid
    value_64 = value.astype(np.float64)  # rounding once, at the end
    following = next_value(value_64, last_value, going_on, truncated & ~terminated, bootstrap_value)
    delta = np.where(valid, reward + gamma * following - value_64, 0.0)
    advantage = accumulated(delta, (gamma * gae_lambda) * going_on)
    return advantage.astype(np.float32), (advantage + value_64).astype(np.float32)


def next_value(value: Array, last_value: Array, going_on: Array, is_cut: Array, bootstrap_value: Array) -> Array:
    """What follows each row, by value: the next row's, the edge's, a cut episode's final observation's, or 0."""
    following = np.concatenate([value[1:], last_value[None].astype(np.float64)])
    return np.where(going_on, following, np.where(is_cut, bootstrap_value, 0.0))


def accumulated(delta: Array, decay: Array) -> Array:
    """x_t = delta_t + decay_t * x_{t+1}."""
    out = np.empty_like(delta)
    running = np.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        running = delta[t] + decay[t] * running
        out[t] = running
    return out
