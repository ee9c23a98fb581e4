"""PPO's loss, and how its gradients reach the flat vector. Pure: tensors in, tensors out.

    rows, index --minibatch--> Minibatch (advantages normalised over all of it)
    Minibatch, start, stop --policy.evaluate, ppo_loss, autograd--> that range's share of the gradient, in `out`; Terms

Shares of a minibatch add up to the whole: every mean is a sum over the range, divided by the minibatch's size.
`AutogradGradients` is the reference and takes any policy; `learning/closed_form` is the same for the plain MLP, faster.
Does not know epochs, optimisers or schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from headrace.policies.networks import as_policy
from headrace.policies.policy import Evaluation
from headrace.weights.flat import FlatParameters


class Rows(NamedTuple):
    """What acting and completion left behind, and what advantages made of it: a whole batch, or a minibatch of it."""

    obs: Any  # a tensor, or tensors by name
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor
    weight: Tensor  # of a row in the policy's loss: 1, or less where another policy than the clipped one acted

    def pick(self, index: Tensor) -> Rows:
        """Some of them."""
        return self._each(lambda column: column.index_select(0, index))

    def part(self, start: int, stop: int) -> Rows:
        """A range of them, in the same memory."""
        return self._each(lambda column: column[start:stop])

    def _each(self, function: Callable[[Tensor], Tensor]) -> Rows:
        obs, *others = self
        is_one = not isinstance(obs, dict)
        seen = function(obs) if is_one else {name: function(leaf) for name, leaf in obs.items()}
        return Rows(seen, *map(function, others))


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


class Minibatch(NamedTuple):
    """Rows that are learned from together."""

    rows: Rows  # the batch's, or, of autograd, those that were picked
    picked: Tensor  # which of the batch's rows, by index
    advantage: Tensor  # theirs, normalised over all of them if asked for, times their weights
    coefficients: Coefficients


class Gradients(Protocol):
    """How a minibatch becomes a gradient."""

    def minibatch(self, rows: Rows, index: Tensor, coefficients: Coefficients) -> Minibatch:
        """What all ranges of a minibatch have in common."""

    def __call__(self, minibatch: Minibatch, start: int, stop: int, out: Tensor, /) -> Terms:
        """Write the share of rows start to stop of the minibatch's gradient into `out`, a flat vector."""


def normalized(advantage: Tensor) -> Tensor:
    """Zero mean, unit variance; a single row stays as it is."""
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8) if len(advantage) > 1 else advantage


def ppo_loss(now: Evaluation, rows: Rows, advantage: Tensor, n: int, c: Coefficients) -> tuple[Tensor, Terms]:
    """The clipped surrogate, SB3's value loss (no factor one half) and the entropy bonus; with what to report.

    `rows` and `advantage` are some rows of a minibatch of n.
    """
    log_ratio = now.log_prob - rows.log_prob
    ratio = log_ratio.exp()
    gain = torch.min(advantage * ratio, advantage * ratio.clamp(1 - c.clip_range, 1 + c.clip_range))
    policy_loss = -_share(gain, n)
    value = now.value
    if c.clip_range_vf is not None:
        value = rows.value + (value - rows.value).clamp(-c.clip_range_vf, c.clip_range_vf)
    value_loss = _share((rows.returns - value).square(), n)
    entropy_loss = -_share(now.entropy, n)
    loss = policy_loss + c.ent_coef * entropy_loss if c.ent_coef else policy_loss  # no way back through it for nothing
    loss = loss + c.vf_coef * value_loss
    with torch.no_grad():
        excess = ratio - 1
        change = excess.abs()
        reported = (
            loss,
            policy_loss,
            value_loss,
            entropy_loss,
            _share(excess - log_ratio, n),
            -_share(log_ratio, n),
            _share((change > c.clip_range).float(), n),
            change.max(),
        )
        return loss, Terms(*torch.stack(reported).tolist())


def _share(rows: Tensor, n: int) -> Tensor:
    """Of some rows in the mean over n; all of them are one operation less, with the same bits."""
    return rows.mean() if len(rows) == n else rows.sum() / n


class AutogradGradients:
    """The general path: any policy."""

    def __init__(self, flat: FlatParameters) -> None:
        self._flat = flat
        self._policy = as_policy(flat.module)

    def minibatch(self, rows: Rows, index: Tensor, coefficients: Coefficients) -> Minibatch:
        """Its rows, each picked once, and their advantages. `index` is on the CPU."""
        rows = rows.pick(index.to(rows.advantage.device))
        advantage = normalized(rows.advantage) if coefficients.normalize_advantage else rows.advantage
        return Minibatch(rows, index, advantage * rows.weight, coefficients)

    def __call__(self, minibatch: Minibatch, start: int, stop: int, out: Tensor) -> Terms:
        self._flat.attach_gradients(out)
        out.zero_()
        rows, advantage, n = minibatch.rows, minibatch.advantage, len(minibatch.picked)
        if stop - start < n:
            rows, advantage = rows.part(start, stop), advantage[start:stop]
        now = self._policy.evaluate(rows.obs, rows.action)
        loss, terms = ppo_loss(now, rows, advantage, n, minibatch.coefficients)
        loss.backward()
        return terms
