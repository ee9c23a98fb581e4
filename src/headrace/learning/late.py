"""Rows that an older version acted in: what the present weights say of them, and the corrections of what they teach.

    batch, policy --seen_by--> the batch with the present weights' log-probabilities and values
    late=weight:  GAE, every row's loss times min(clip, pi / mu)
    late=vtrace:  delta times rho = min(clip, pi / mu), passed on by c = lambda * min(1, pi / mu); targets v_t,
                  advantages rho_t (r_t + gamma * v_next - V(o_t))

mu is the policy that acted, pi the present one. Does not know how late a row may be: that is the reader's pace.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.learning.advantages import Targets, accumulated, advantages, next_value
from headrace.learning.assembly import Device, complete
from headrace.learning.batch import Batch
from headrace.learning.config import PpoConfig
from headrace.policies.policy import Evaluator

Array = npt.NDArray[Any]


def late_targets(batch: Batch, policy: Evaluator, config: PpoConfig, device: Device = None) -> Targets:
    """What a completed batch with late rows teaches."""
    now = seen_by(batch, policy, device)
    log_ratio = now.log_prob - batch.log_prob
    if config.late == "weight":
        advantage, returns = advantages(batch, config)
        weight = np.exp(np.minimum(log_ratio, np.log(np.float32(config.late_clip))))
        return Targets(advantage, returns, now.log_prob, weight, now.value)
    values = (batch.reward, now.value, now.bootstrap_value, batch.terminated, batch.truncated, batch.valid)
    discounts = (config.gamma, config.gae_lambda)
    advantage, returns = vtrace(*values, now.last_value, *discounts, log_ratio, config.late_clip)
    return Targets(advantage, returns, now.log_prob, np.ones_like(batch.log_prob), now.value)


def seen_by(batch: Batch, policy: Evaluator, device: Device = None) -> Batch:
    """The batch as the present weights see it; the batch's own numbers stay."""
    fresh = {
        name: np.empty_like(getattr(batch, name)) for name in ("log_prob", "value", "bootstrap_value", "last_value")
    }
    seen = replace(batch, version=np.zeros_like(batch.version), **fresh)
    complete(seen, lambda version: policy, device)
    return seen


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
    following = next_value(value_64, last_value, going_on, is_cut, bootstrap_value)
    delta = np.where(valid, rho * (reward + gamma * following - value_64), 0.0)
    target = value_64 + accumulated(delta, np.where(going_on, gamma * c, 0.0))
    next_target = next_value(target, last_value, going_on, is_cut, bootstrap_value)
    advantage = np.where(valid, rho * (reward + gamma * next_target - value_64), 0.0)
    return advantage.astype(np.float32), target.astype(np.float32)
