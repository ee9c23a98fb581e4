"""Advantages over rows in the normal form: generalised advantage estimation. Pure numpy.

    delta_t = r_t + gamma * V(next) - V(o_t)        A_t = delta_t + gamma * lambda * A_{t+1}, cut where the episode ends

V(next) is 0 after a termination (also if the same step was truncated), the value of the episode's real final
observation after a truncation, the next row's value in the middle, and last_value at the rollout's edge. An invalid row
follows an end, so cutting there leaves it without influence; its own advantage is 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.learning.batch import Array, Batch
from headrace.learning.config import PpoConfig


class Targets(NamedTuple):
    """What PPO trains on, [T, N]: advantages, value targets, and the policy that ratios are clipped against."""

    advantage: Array
    returns: Array
    log_prob: Array
    weight: Array
    value: Array | None = None  # what clip_range_vf clips around; None: the batch's own


def advantages(batch: Batch, config: PpoConfig) -> tuple[Array, Array]:
    """Advantages and returns (the value targets) of a completed batch, [T, N] float32."""
    going_on = ~(batch.terminated | batch.truncated) & batch.valid
    is_cut = batch.truncated & ~batch.terminated
    value = batch.value.astype(np.float64)  # rounding once, at the end
    following = next_value(value, batch.last_value, going_on, is_cut, batch.bootstrap_value)
    delta = np.where(batch.valid, batch.reward + config.gamma * following - value, 0.0)
    advantage = accumulated(delta, (config.gamma * config.gae_lambda) * going_on)
    return advantage.astype(np.float32), (advantage + value).astype(np.float32)


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
