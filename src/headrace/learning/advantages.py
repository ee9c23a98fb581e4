"""Advantages over rows in the normal form: generalised advantage estimation and V-trace. Pure numpy.

    delta_t = r_t + gamma * V(next) - V(o_t)        A_t = delta_t + gamma * lambda * A_{t+1}, cut where the episode ends

V(next) is 0 after a termination (also if the same step was truncated), the value of the episode's real final
observation after a truncation, the next row's value in the middle, and last_value at the rollout's edge. An invalid row
follows an end, so cutting there leaves it without influence; its own advantage is 0.

V-trace (for rows that older versions acted in) weighs every delta by rho = min(clip, pi / mu) and passes on by
c = lambda * min(1, pi / mu); its targets are v_t, its advantages rho_t (r_t + gamma * v_next - V(o_t)).
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
    next_value = _next(value_64, last_value, going_on, truncated & ~terminated, bootstrap_value)
    delta = np.where(valid, reward + gamma * next_value - value_64, 0.0)
    advantage = _accumulated(delta, (gamma * gae_lambda) * going_on)
    return advantage.astype(np.float32), (advantage + value_64).astype(np.float32)


def vtrace(
    reward: Array,
    value: Array,
    bootstrap_value: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    last_value: Array,
    gamma: float,
    gae_lambda: float,
    log_ratio: Array,
    clip: float,
) -> tuple[Array, Array]:
    """Advantages and returns, [T, N] float32; log_ratio is log pi - log mu, and values are the present weights'."""
    going_on = ~(terminated | truncated) & valid
    value_64 = value.astype(np.float64)
    ratio = np.exp(np.minimum(log_ratio.astype(np.float64), 50.0))
    rho, c = np.minimum(clip, ratio), gae_lambda * np.minimum(1.0, ratio)
    is_cut = truncated & ~terminated
    next_value = _next(value_64, last_value, going_on, is_cut, bootstrap_value)
    delta = np.where(valid, rho * (reward + gamma * next_value - value_64), 0.0)
    target = value_64 + _accumulated(delta, np.where(going_on, gamma * c, 0.0))
    next_target = _next(target, last_value, going_on, is_cut, bootstrap_value)
    advantage = np.where(valid, rho * (reward + gamma * next_target - value_64), 0.0)
    return advantage.astype(np.float32), target.astype(np.float32)


def _next(value: Array, last_value: Array, going_on: Array, is_cut: Array, bootstrap_value: Array) -> Array:
    """What follows each row, by value: the next row's, the edge's, a cut episode's final observation's, or 0."""
    following = np.concatenate([value[1:], last_value[None].astype(np.float64)])
    return np.where(going_on, following, np.where(is_cut, bootstrap_value, 0.0))


def _accumulated(delta: Array, decay: Array) -> Array:
    """x_t = delta_t + decay_t * x_{t+1}."""
    out = np.empty_like(delta)
    running = np.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        running = delta[t] + decay[t] * running
        out[t] = running
    return out
