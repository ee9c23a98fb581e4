"""The plain MLP's gradients, derived by hand: the fast path of `AutogradGradients`, proved equal to it by tests.

    x -> tower -> loss and dL/dhead in one compiled pass over the rows -> back through the tower -> flat gradient

First the actor, there and back, then the critic, in the same memory: what they touch stays in the cache. Small
minibatches spend more time in autograd's bookkeeping than in arithmetic, and a loss of a few dozen operations on n
numbers more on calls than on numbers. `ClosedFormEvaluator` is the same forward pass for completion, so an update's
first ratio is 1 to the last bits.
Takes MlpPolicy. The loss on its head is a function that comes in: of choices here, of numbers in `gaussian_form`.
Does not know who chooses it (fast_path).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from headrace.compiler import compiled
from headrace.learning.ppo_loss import Coefficients, Minibatch, Rows, Terms
from headrace.policies.networks import MlpPolicy, with_log_std
from headrace.policies.plain_mlp import Array, Tower, towers
from headrace.policies.policy import Evaluation
from headrace.weights.flat import FlatParameters

HeadLoss = Callable[..., None]
"""(head, actions, *numbers of `categorical`): the actor's head becomes dL/dhead, in place; sums are added to terms."""


class ClosedFormGradients:
    """Writes the same gradient as autograd would, up to rounding."""

    def __init__(self, flat: FlatParameters, loss_of: Callable[[MlpPolicy, Mapping[str, Tensor]], HeadLoss]) -> None:
        assert isinstance(flat.module, MlpPolicy)
        self._flat, self._encode, self._module, self._loss_of = flat, flat.module.encode, flat.module, loss_of
        self._bound: dict[int, tuple[Tower, Tower, HeadLoss]] = {}  # by the buffer that the gradient goes to

    def minibatch(self, rows: Rows, index: Tensor, coefficients: Coefficients) -> Minibatch:
        """The minibatch's advantages."""
        numbers = rows.advantage.numpy(), rows.weight.numpy(), index.numpy()
        advantage = _picked(*numbers, coefficients.normalize_advantage)
        return Minibatch(rows, index, torch.from_numpy(advantage), coefficients)

    @torch.no_grad()
    def __call__(self, minibatch: Minibatch, start: int, stop: int, out: Tensor) -> Terms:
        actor, critic, head_loss = self._bound.get(out.data_ptr()) or self._bind(out)
        rows, c, n = minibatch.rows, minibatch.coefficients, len(minibatch.picked)
        index = minibatch.picked[start:stop]
        x = self._encode(rows.obs.index_select(0, index))
        picked, advantage = index.numpy(), minibatch.advantage.numpy()[start:stop]

        head, terms = actor.forward(x), np.zeros(6)
        numbers = (picked, n, rows.log_prob.numpy(), advantage, c.clip_range, c.ent_coef, terms)
        head_loss(head, rows.action, *numbers)
        actor.backward(head)

        head = critic.forward(x)
        clip_range_vf = math.inf if c.clip_range_vf is None else c.clip_range_vf
        value_loss = _value(head, picked, n, rows.returns.numpy(), rows.value.numpy(), clip_range_vf, c.vf_coef)
        critic.backward(head)

        policy_loss, entropy_loss, *measures = terms.tolist()
        loss = policy_loss + c.ent_coef * entropy_loss + c.vf_coef * value_loss
        return Terms(loss, policy_loss, value_loss, entropy_loss, *measures)

    def _bind(self, out: Tensor) -> tuple[Tower, Tower, HeadLoss]:
        gradients = self._flat.views(out)
        head_loss = self._loss_of(self._module, gradients)
        bound = self._bound[out.data_ptr()] = *towers(self._module, gradients), head_loss
        return bound


class ClosedFormEvaluator:
    """Log-probabilities and values by the same forward pass that training takes. Reads parameters in place."""

    def __init__(self, module: MlpPolicy) -> None:
        self._encode, self._distribution, self._log_std = module.encode, module.distribution, module.log_std
        self._actor, self._critic = towers(module)

    def evaluate(self, obs: Tensor, actions: Tensor) -> Evaluation:
        """As the policy's own."""
        x = self._encode(obs)
        params = with_log_std(_aligned(self._actor.forward(x)), self._log_std)
        log_prob, entropy = self._distribution.evaluate(params, actions)
        return Evaluation(log_prob, entropy, _aligned(self._critic.forward(x)).squeeze(-1))

    def value(self, obs: Tensor) -> Tensor:
        """As the policy's own."""
        return _aligned(self._critic.forward(self._encode(obs))).squeeze(-1)


def _aligned(array: Array) -> Tensor:
    return torch.from_numpy(array).clone()  # torch aligns it, and rounding may depend on that


@compiled
def _picked(advantage: Array, weight: Array, index: Array, normalize: bool) -> Array:
    """The minibatch's advantages times weights, with zero mean and unit variance before if asked for (and possible)."""
    n = len(index)
    out = np.empty(n, np.float32)
    total = 0.0
    for r in range(n):
        out[r] = advantage[index[r]]
        total += out[r]
    if normalize and n > 1:
        mean, squares = total / n, 0.0
        for r in range(n):
            squares += (out[r] - mean) ** 2
        scale = 1 / (math.sqrt(squares / (n - 1)) + 1e-8)
        for r in range(n):
            out[r] = (out[r] - mean) * scale
    for r in range(n):
        out[r] *= weight[index[r]]
    return out


@compiled
def surrogate(log_prob: float, old: float, advantage: float, clip_range: float, terms: Array) -> float:
    """One row's clipped gain into the sums of `terms`; returns dgain/dlog_prob: 0 where clipped, NaN where NaN."""
    log_ratio = log_prob - old
    ratio = np.exp(log_ratio)
    gain = advantage * ratio
    clipped = advantage * min(max(ratio, 1 - clip_range), 1 + clip_range)
    change = ratio - 1
    terms[0] -= min(gain, clipped) if clipped == clipped else gain
    terms[2] += change - log_ratio
    terms[3] -= log_ratio
    terms[4] += abs(change) > clip_range
    terms[5] = max(terms[5], abs(change))
    return 0.0 if gain > clipped else gain


def categorical(module: MlpPolicy, gradients: Mapping[str, Tensor]) -> HeadLoss:
    """Logits of one choice."""
    return lambda head, action, *numbers: _categorical(head, action.numpy(), *numbers)


@compiled
def _categorical(
    head: Array, action: Array, index: Array, n: int, old_log_prob: Array, advantage: Array, clip_range: float,
    ent_coef: float, terms: Array,
) -> None:  # fmt: skip
    """Logits become dL/dlogits, in place: d log p(a) = onehot(a) - p and dH = -p (log p + H)."""
    rows, choices = head.shape
    log_p, p = np.empty(choices), np.empty(choices)
    for r in range(rows):
        largest = head[r, 0]
        for i in range(1, choices):
            largest = max(largest, head[r, i])
        total = 0.0
        for i in range(choices):
            p[i] = np.exp(head[r, i] - largest)
            total += p[i]
        log_total, entropy = np.log(total), 0.0
        for i in range(choices):
            p[i] /= total
            log_p[i] = head[r, i] - largest - log_total
            entropy -= p[i] * log_p[i]
        chosen = action[index[r]]
        gain = surrogate(log_p[chosen], old_log_prob[index[r]], advantage[r], clip_range, terms)
        terms[1] -= entropy
        for i in range(choices):
            onehot = 1.0 if i == chosen else 0.0
            head[r, i] = (gain * (p[i] - onehot) + ent_coef * p[i] * (log_p[i] + entropy)) / n
    terms[:5] /= n


@compiled
def _value(
    head: Array, index: Array, n: int, returns: Array, old_value: Array, clip_range_vf: float, vf_coef: float
) -> float:
    """Values become dL/dvalue, in place: SB3's loss (no factor one half). One that moved too far has no gradient."""
    total = 0.0
    for r in range(len(index)):
        value, old = head[r, 0], old_value[index[r]]
        moved = value - old
        is_clipped = abs(moved) > clip_range_vf
        if is_clipped:
            value = old + min(max(moved, -clip_range_vf), clip_range_vf)
        error = value - returns[index[r]]
        total += error * error
        head[r, 0] = 0.0 if is_clipped else 2 * vf_coef * error / n
    return total / n
