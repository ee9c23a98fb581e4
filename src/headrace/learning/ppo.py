"""PPO's loss, and how its gradients reach the flat vector. Pure: tensors in, tensors out.

    Rows (a minibatch) --policy.evaluate--> ppo_loss --autograd--> flat gradient, Terms

`AutogradGradients` is the reference and takes any policy; `learning/closed_form` is the same for the plain MLP, faster.
Does not know epochs, optimisers or schedules.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from headrace.policies.networks import as_policy
from headrace.policies.policy import Evaluation
from headrace.weights.flat import FlatParameters


class Rows(NamedTuple):
    """What acting and completion left behind, and what advantages made of it: a whole batch, or a minibatch of it."""

    obs: Tensor
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor
    weight: Tensor  # of a row in the policy's loss: 1, or less where another policy than the clipped one acted


class Coefficients(NamedTuple):
    """The loss's numbers for one update."""

    clip_range: float
    clip_range_vf: float | None
    ent_coef: float
    vf_coef: float
    normalize_advantage: bool


class Terms(NamedTuple):
    """What is reported of a minibatch."""

    loss: float
    policy_gradient_loss: float
    value_loss: float
    entropy_loss: float
    approx_kl: float
    old_approx_kl: float
    clip_fraction: float
    ratio_error: float  # max |ratio - 1|: 0 up to rounding in an update's first minibatch


class Gradients(Protocol):
    """Fills the flat gradient for one minibatch: the rows that `index` picks."""

    def __call__(self, rows: Rows, index: Tensor, coefficients: Coefficients, /) -> Terms: ...


def normalized(advantage: Tensor) -> Tensor:
    """Zero mean, unit variance; a single row stays as it is."""
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8) if len(advantage) > 1 else advantage


def ppo_loss(now: Evaluation, rows: Rows, c: Coefficients) -> tuple[Tensor, Terms]:
    """The clipped surrogate, SB3's value loss (no factor one half) and the entropy bonus; with what to report."""
    advantage = normalized(rows.advantage) if c.normalize_advantage else rows.advantage
    advantage = advantage * rows.weight
    log_ratio = now.log_prob - rows.log_prob
    ratio = log_ratio.exp()
    policy_loss = -torch.min(advantage * ratio, advantage * ratio.clamp(1 - c.clip_range, 1 + c.clip_range)).mean()
    value = now.value
    if c.clip_range_vf is not None:
        value = rows.value + (value - rows.value).clamp(-c.clip_range_vf, c.clip_range_vf)
    value_loss = (rows.returns - value).square().mean()
    entropy_loss = -now.entropy.mean()
    loss = policy_loss + c.ent_coef * entropy_loss + c.vf_coef * value_loss
    with torch.no_grad():
        change = (ratio - 1).abs()
        reported = (
            loss,
            policy_loss,
            value_loss,
            entropy_loss,
            ((ratio - 1) - log_ratio).mean(),
            -log_ratio.mean(),
            (change > c.clip_range).float().mean(),
            change.max(),
        )
        return loss, Terms(*torch.stack(reported).tolist())


class AutogradGradients:
    """The general path: any policy."""

    def __init__(self, flat: FlatParameters) -> None:
        self._flat = flat
        self._policy = as_policy(flat.module)

    def __call__(self, rows: Rows, index: Tensor, coefficients: Coefficients) -> Terms:
        self._flat.gradient.zero_()
        rows = Rows(*(tensor.index_select(0, index) for tensor in rows))
        loss, terms = ppo_loss(self._policy.evaluate(rows.obs, rows.action), rows, coefficients)
        loss.backward()
        return terms
