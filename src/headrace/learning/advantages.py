"""Generalised advantage estimation over rows in the normal form. Pure numpy.

    delta_t = r_t + gamma * V(next) - V(o_t)        A_t = delta_t + gamma * lambda * A_{t+1}, cut where the episode ends

V(next) is 0 after a termination (also if the same step was truncated), the value of the episode's real final
observation after a truncation, the next row's value in the middle, and last_value at the rollout's edge. An invalid row
follows an end, so cutting there leaves it without influence; its own advantage is 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


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
    next_value = np.concatenate([value_64[1:], last_value[None]])
    next_value = np.where(going_on, next_value, np.where(truncated & ~terminated, bootstrap_value, 0.0))
    delta = np.where(valid, reward + gamma * next_value - value_64, 0.0)
    decay = (gamma * gae_lambda) * going_on
    advantage = np.empty_like(value_64)
    running = np.zeros_like(value_64[0])
    for t in range(len(reward) - 1, -1, -1):
        running = delta[t] + decay[t] * running
        advantage[t] = running
    return advantage.astype(np.float32), (advantage + value_64).astype(np.float32)
