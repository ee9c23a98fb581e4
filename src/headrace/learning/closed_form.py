"""The plain MLP's gradients, derived by hand: the fast path of `AutogradGradients`, proved equal to it by tests.

    x -> tower -> head, loss and dL/dhead in one compiled pass over the rows -> back through the tower -> flat gradient

First the actor, there and back, then the critic, in the same memory: what they touch stays in the cache. Small
minibatches spend more time in autograd's bookkeeping than in arithmetic, and a loss of a few dozen operations on n
numbers more on calls than on numbers. `evaluator` is the same forward pass for completion, so an update's first ratio
is 1 to the last bits.
Takes MlpPolicy with tanh or relu and Categorical or DiagonalGaussian actions; `supports` says so, everything else goes
through autograd.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headrace.compiler import compiled
from headrace.learning.ppo_loss import Coefficients, Minibatch, Rows, Terms
from headrace.policies.distributions import HALF_LOG_2PI, Categorical, DiagonalGaussian
from headrace.policies.networks import MlpPolicy, as_policy
from headrace.policies.plain_mlp import Memory, Tower, head
from headrace.policies.policy import Evaluation, Evaluator
from headrace.weights.flat import FlatParameters

Array = npt.NDArray[Any]


def supports(module: nn.Module) -> bool:
    """Whether the closed form knows this policy. Subclasses may have changed anything, so they are not taken."""
    return type(module) is MlpPolicy and isinstance(module.distribution, Categorical | DiagonalGaussian)


class ClosedFormGradients:
    """Writes the same gradient as autograd would, up to rounding."""

    def __init__(self, flat: FlatParameters) -> None:
        assert isinstance(flat.module, MlpPolicy)
        self._flat, self._module = flat, flat.module
        self._bound: dict[int, _Passes] = {}  # by the buffer that the gradient goes to

    def minibatch(self, rows: Rows, index: Tensor, coefficients: Coefficients) -> Minibatch:
        """The minibatch's advantages."""
        numbers = rows.advantage.numpy(), rows.weight.numpy(), index.numpy()
        advantage = _picked(*numbers, coefficients.normalize_advantage)
        return Minibatch(rows, index, torch.from_numpy(advantage), coefficients)

    @torch.no_grad()
    def __call__(self, minibatch: Minibatch, start: int, stop: int, out: Tensor) -> Terms:
        passes = self._bound.get(out.data_ptr())
        if passes is None:
            passes = self._bound[out.data_ptr()] = _Passes(self._module, self._flat.views(out))
        return passes(minibatch, start, stop)


class _Passes:
    """Both towers there and back, into one buffer."""

    def __init__(self, module: MlpPolicy, gradients: dict[str, Tensor]) -> None:
        self._encode = module.encode
        memory = _memory(module)
        self._actor, self._critic = (
            Tower(
                layers,
                module.activation,
                memory,
                [(gradients[f"{name}.{i}.weight"], gradients[f"{name}.{i}.bias"]) for i in range(len(layers))],
            )
            for name, layers in (("actor", module.actor), ("critic", module.critic))
        )
        self._log_std = None if module.log_std is None else module.log_std.detach().numpy()
        self._d_log_std = None if module.log_std is None else gradients["log_std"].numpy()
        self._terms = np.zeros(8)

    def __call__(self, minibatch: Minibatch, start: int, stop: int) -> Terms:
        rows, c, n = minibatch.rows, minibatch.coefficients, len(minibatch.picked)
        index = minibatch.picked[start:stop]
        x = self._encode(rows.obs.index_select(0, index))
        picked, advantage = index.numpy(), minibatch.advantage.numpy()[start:stop]
        action, old_log_prob, old_value, _, returns, _ = (tensor.numpy() for tensor in rows[1:])
        actor, critic, terms = self._actor, self._critic, self._terms

        hidden = actor.forward(x)
        numbers = (picked, n, old_log_prob, advantage, c.clip_range, c.ent_coef)
        places = (actor.head_weight, actor.head_bias, actor.d_hidden(), actor.d_head_weight, actor.d_head_bias, terms)
        if self._log_std is None or self._d_log_std is None:
            _categorical(hidden, action, *numbers, *places)
        else:
            _gaussian(hidden, action.reshape(len(action), -1), self._log_std, self._d_log_std, *numbers, *places)
        actor.backward()

        hidden = critic.forward(x)
        clip_range_vf = math.inf if c.clip_range_vf is None else c.clip_range_vf
        value_loss = _value(
            hidden, picked, n, returns, old_value, clip_range_vf, c.vf_coef,
            critic.head_weight, critic.head_bias, critic.d_hidden(), critic.d_head_weight, critic.d_head_bias,
        )  # fmt: skip
        critic.backward()

        policy_loss, entropy_loss, *measures = terms[:6].tolist()
        loss = policy_loss + c.ent_coef * entropy_loss + c.vf_coef * value_loss
        return Terms(loss, policy_loss, value_loss, entropy_loss, *measures)


class Evaluators:
    """How a module's log-probabilities are computed for completion: as training does, so that the first ratio is 1."""

    def __init__(self, is_closed_form: bool = True) -> None:
        self._is_closed_form = is_closed_form
        self._made: dict[int, tuple[nn.Module, Evaluator]] = {}

    def of(self, module: nn.Module) -> Evaluator:
        """The evaluator of a module; made once, it reads parameters in place."""
        if id(module) not in self._made:
            is_closed = self._is_closed_form and supports(module)
            evaluator = ClosedFormEvaluator(module) if is_closed else as_policy(module)  # type: ignore[arg-type]
            self._made[id(module)] = (module, evaluator)
        return self._made[id(module)][1]


class ClosedFormEvaluator:
    """Log-probabilities and values by the same forward pass that training takes. Reads parameters in place."""

    def __init__(self, module: MlpPolicy) -> None:
        self._encode = module.encode
        self._distribution = module.distribution
        memory = _memory(module)
        self._actor, self._critic = (Tower(t, module.activation, memory) for t in (module.actor, module.critic))
        self._log_std = module.log_std

    def evaluate(self, obs: Tensor, actions: Tensor) -> Evaluation:
        """As the policy's own."""
        x = self._encode(obs)
        params = _headed(self._actor, x)
        if self._log_std is not None:
            params = torch.cat([params, self._log_std.expand_as(params)], -1)
        log_prob, entropy = self._distribution.evaluate(params, actions)
        return Evaluation(log_prob, entropy, _headed(self._critic, x).squeeze(-1))

    def value(self, obs: Tensor) -> Tensor:
        """As the policy's own."""
        return _headed(self._critic, self._encode(obs)).squeeze(-1)


def _memory(module: MlpPolicy) -> Memory:
    return Memory([layer.out_features for layer in list(module.actor)[:-1] if isinstance(layer, nn.Linear)])


def _headed(tower: Tower, x: Tensor) -> Tensor:
    hidden = tower.forward(x)
    out = torch.empty(len(x), len(tower.head_bias))
    head(hidden, tower.head_weight, tower.head_bias, out.numpy())
    return out


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
def _surrogate(log_prob: float, old: float, advantage: float, clip_range: float, terms: Array) -> float:
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


@compiled
def _back_through_head(r: int, d: Array, hidden: Array, weight: Array, d_hidden: Array, d_weight: Array) -> None:
    """One row's dL/dhead [P] into dL/dhidden and the head's gradient."""
    if len(d_hidden):
        d_hidden[r] = 0
    for i in range(len(d)):
        d_i = d[i]
        for k in range(hidden.shape[1]):
            d_weight[i, k] += d_i * hidden[r, k]
        if len(d_hidden):
            for k in range(hidden.shape[1]):
                d_hidden[r, k] += d_i * weight[i, k]


@compiled
def _categorical(
    hidden: Array, action: Array, index: Array, n: int, old_log_prob: Array, advantage: Array, clip_range: float,
    ent_coef: float, weight: Array, bias: Array, d_hidden: Array, d_weight: Array, d_bias: Array, terms: Array,
) -> None:  # fmt: skip
    """d log p(a) = onehot(a) - p and dH = -p (log p + H), row by row from the hidden activations."""
    rows, choices = len(index), len(bias)
    logits = np.empty((rows, choices), np.float32)
    head(hidden, weight, bias, logits)
    log_p, p = np.empty(choices), np.empty(choices)
    d = np.empty(choices, np.float32)
    d_weight[:] = 0
    d_bias[:] = 0
    terms[:] = 0
    for r in range(rows):
        largest = logits[r, 0]
        for i in range(1, choices):
            largest = max(largest, logits[r, i])
        total = 0.0
        for i in range(choices):
            p[i] = np.exp(logits[r, i] - largest)
            total += p[i]
        log_total, entropy = np.log(total), 0.0
        for i in range(choices):
            p[i] /= total
            log_p[i] = logits[r, i] - largest - log_total
            entropy -= p[i] * log_p[i]
        chosen = action[index[r]]
        gain = _surrogate(log_p[chosen], old_log_prob[index[r]], advantage[r], clip_range, terms)
        terms[1] -= entropy
        for i in range(choices):
            onehot = 1.0 if i == chosen else 0.0
            d[i] = (gain * (p[i] - onehot) + ent_coef * p[i] * (log_p[i] + entropy)) / n
            d_bias[i] += d[i]
        _back_through_head(r, d, hidden, weight, d_hidden, d_weight)
    terms[:5] /= n


@compiled
def _gaussian(
    hidden: Array, action: Array, log_std: Array, d_log_std: Array, index: Array, n: int, old_log_prob: Array,
    advantage: Array, clip_range: float, ent_coef: float, weight: Array, bias: Array, d_hidden: Array,
    d_weight: Array, d_bias: Array, terms: Array,
) -> None:  # fmt: skip
    """d log p(a) = (a - mean) / std² by the mean and ((a - mean) / std)² - 1 by log_std; the entropy is in log_std."""
    rows, size = len(index), len(bias)
    means = np.empty((rows, size), np.float32)
    head(hidden, weight, bias, means)
    scaled, inverse_std = np.empty(size), np.exp(-log_std.astype(np.float64))
    d, sums = np.empty(size, np.float32), np.zeros(size)
    constant = (log_std.astype(np.float64) + HALF_LOG_2PI).sum()
    d_weight[:] = 0
    d_bias[:] = 0
    terms[:] = 0
    for r in range(rows):
        squares = 0.0
        for i in range(size):
            scaled[i] = (action[index[r], i] - means[r, i]) * inverse_std[i]
            squares += scaled[i] * scaled[i]
        gain = _surrogate(-0.5 * squares - constant, old_log_prob[index[r]], advantage[r], clip_range, terms)
        for i in range(size):
            d[i] = -gain * scaled[i] * inverse_std[i] / n
            d_bias[i] += d[i]
            sums[i] -= gain * (scaled[i] * scaled[i] - 1)
        _back_through_head(r, d, hidden, weight, d_hidden, d_weight)
    for i in range(size):
        d_log_std[i] = sums[i] / n - ent_coef * (rows / n)
    terms[:5] /= n
    terms[1] = -(constant + 0.5 * size) * (rows / n)


@compiled
def _value(
    hidden: Array, index: Array, n: int, returns: Array, old_value: Array, clip_range_vf: float, vf_coef: float,
    weight: Array, bias: Array, d_hidden: Array, d_weight: Array, d_bias: Array,
) -> float:  # fmt: skip
    """SB3's value loss (no factor one half); a value that moved too far counts as clipped and has no gradient."""
    rows = len(index)
    values = np.empty((rows, 1), np.float32)
    head(hidden, weight, bias, values)
    d = np.empty(1, np.float32)
    d_weight[:] = 0
    d_bias[:] = 0
    total = 0.0
    for r in range(rows):
        value, old = values[r, 0], old_value[index[r]]
        moved = value - old
        is_clipped = abs(moved) > clip_range_vf
        if is_clipped:
            value = old + min(max(moved, -clip_range_vf), clip_range_vf)
        error = value - returns[index[r]]
        total += error * error
        d[0] = 0.0 if is_clipped else 2 * vf_coef * error / n
        d_bias[0] += d[0]
        _back_through_head(r, d, hidden, weight, d_hidden, d_weight)
    return total / n
