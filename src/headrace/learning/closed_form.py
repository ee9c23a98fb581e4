"""The plain MLP's gradients, derived by hand: the fast path of `ppo.AutogradGradients`, proved equal to it by tests.

    x -> two towers -> heads [P, n] -> dL/dheads in closed form (numpy) -> back through the towers -> flat gradient

Small minibatches spend more time in autograd's bookkeeping than in arithmetic. So matrices go through torch into memory
that is kept between calls, tanh is 2 * sigmoid(2x) - 1 with the first doubling done by the matrix product, and the
loss, a few dozen operations on n numbers, is numpy: a call costs it a third of what it costs torch.
Takes MlpPolicy with tanh or relu and Categorical or DiagonalGaussian actions; `supports` says so, everything else goes
through autograd.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headrace.learning.ppo import Coefficients, Rows, Terms
from headrace.policies.distributions import HALF_LOG_2PI, Categorical, DiagonalGaussian
from headrace.policies.networks import MlpPolicy
from headrace.weights.flat import FlatParameters

Array = npt.NDArray[Any]
# Rows -> activations of the hidden layers, and what flows back to them. At most two sizes are kept.
Memory = dict[int, tuple[list[Tensor], list[Tensor]]]


def supports(module: nn.Module) -> bool:
    """Whether the closed form knows this policy. Subclasses may have changed anything, so they are not taken."""
    return type(module) is MlpPolicy and isinstance(module.distribution, Categorical | DiagonalGaussian)


class ClosedFormGradients:
    """Writes the same gradient as autograd would, up to rounding."""

    def __init__(self, flat: FlatParameters) -> None:
        module = flat.module
        assert isinstance(module, MlpPolicy)
        self._encode = module.encode
        memory: Memory = {}
        self._actor = _Tower(module.actor, "actor", flat, module.activation, memory)
        self._critic = _Tower(module.critic, "critic", flat, module.activation, memory)
        self._log_std = None if module.log_std is None else module.log_std.detach().numpy()
        self._d_log_std = None if module.log_std is None else flat.gradients["log_std"].numpy()

    @torch.no_grad()
    def __call__(self, rows: Rows, c: Coefficients) -> Terms:
        x = self._encode(rows.obs)
        action, old_log_prob, old_value, advantage, returns = (tensor.numpy() for tensor in rows[1:])
        n = len(advantage)
        if c.normalize_advantage and n > 1:
            advantage = advantage - _mean(advantage)
            advantage /= np.sqrt(np.add.reduce(np.square(advantage)) / (n - 1)) + 1e-8

        # First the actor, there and back, then the critic, in the same memory: what they touch stays in the cache.
        out = self._actor.forward(x)
        head = self._categorical(out, action) if self._log_std is None else self._gaussian(out, action)
        log_ratio = head.log_prob - old_log_prob
        ratio = np.exp(log_ratio)
        change = ratio - 1
        gain = advantage * ratio
        clipped = advantage * np.clip(ratio, 1 - c.clip_range, 1 + c.clip_range)
        d_log_prob = np.where(gain > clipped, 0, gain) * (-1 / n)  # a clipped row has no gradient; a NaN stays one
        self._actor.backward(head.backward(d_log_prob, -c.ent_coef / n))

        value = self._critic.forward(x)[0]
        error = value - returns
        d_value = error
        if c.clip_range_vf is not None:
            moved = value - old_value
            error = old_value + np.clip(moved, -c.clip_range_vf, c.clip_range_vf) - returns
            d_value = np.where(np.abs(moved) <= c.clip_range_vf, error, 0)
        self._critic.backward((d_value * (2 * c.vf_coef / n))[None])

        policy_loss = -_mean(np.minimum(gain, clipped))
        value_loss, entropy_loss = _mean(np.square(error)), -_mean(head.entropy)
        distance = np.abs(change)
        return Terms(
            policy_loss + c.ent_coef * entropy_loss + c.vf_coef * value_loss,
            policy_loss,
            value_loss,
            entropy_loss,
            _mean(change - log_ratio),
            -_mean(log_ratio),
            _mean(distance > c.clip_range),
            float(distance.max()),
        )

    def _categorical(self, out: Array, action: Array) -> _CategoricalHead:
        return _CategoricalHead(out, action)

    def _gaussian(self, out: Array, action: Array) -> _GaussianHead:
        assert self._log_std is not None
        assert self._d_log_std is not None
        return _GaussianHead(out, action.reshape(len(action), -1).T, self._log_std, self._d_log_std)


class _CategoricalHead:
    """log p(action) and the entropy from logits [P, n], and their gradients."""

    def __init__(self, logits: Array, action: Array) -> None:
        shifted = logits - logits.max(0)
        e = np.exp(shifted)
        total = np.add.reduce(e, 0)
        self._log_p = shifted - np.log(total)
        self._p = e / total
        self._chosen = (action, np.arange(len(action)))
        self.log_prob = self._log_p[self._chosen]
        self.entropy = -np.add.reduce(self._p * self._log_p, 0)

    def backward(self, d_log_prob: Array, d_entropy: float) -> Array:
        """dL/dlogits: d log p(a) = onehot(a) - p, dH = -p (log p + H)."""
        d: Array = self._p * -d_log_prob
        d[self._chosen] += d_log_prob
        if d_entropy:
            d -= d_entropy * self._p * (self._log_p + self.entropy)
        return d


class _GaussianHead:
    """log p(action) and the entropy from means [P, n] and log_std [P], and their gradients."""

    def __init__(self, mean: Array, action: Array, log_std: Array, d_log_std: Array) -> None:
        self._inverse_std = np.exp(-log_std)[:, None]
        self._scaled = (action - mean) * self._inverse_std
        self._d_log_std = d_log_std
        self.log_prob = -0.5 * np.add.reduce(np.square(self._scaled), 0) - np.add.reduce(log_std + HALF_LOG_2PI)
        self.entropy = np.broadcast_to(np.add.reduce(log_std + (0.5 + HALF_LOG_2PI)), action.shape[1:])

    def backward(self, d_log_prob: Array, d_entropy: float) -> Array:
        """dL/dmean; dL/dlog_std goes straight into the flat gradient."""
        d_log_std = np.add.reduce(d_log_prob * (np.square(self._scaled) - 1), 1)
        self._d_log_std[:] = d_log_std + d_entropy * len(d_log_prob)
        d_mean: Array = d_log_prob * self._scaled * self._inverse_std
        return d_mean


class _Tower:
    """One MLP: forward keeps its activations, backward turns dL/dhead into the flat gradient's views."""

    def __init__(self, layers: nn.ModuleList, name: str, flat: FlatParameters, activation: str, memory: Memory) -> None:
        *hidden, head = [layer for layer in layers if isinstance(layer, nn.Linear)]
        self._weights: list[Tensor] = [layer.weight.data for layer in hidden]
        self._biases: list[Tensor] = [layer.bias.data for layer in hidden]
        self._head_weight, self._head_bias = head.weight.data, head.bias.data.unsqueeze(1)
        self._d_weights = [flat.gradients[f"{name}.{i}.weight"] for i in range(len(layers))]
        self._d_biases = [flat.gradients[f"{name}.{i}.bias"] for i in range(len(layers))]
        self._is_tanh = activation == "tanh"
        self._memory = memory
        self._inputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Array:
        """The head's output [P, n]; activations are kept for backward."""
        n = len(x)
        if n not in self._memory:
            if len(self._memory) > 1:  # sources that skip rows make last minibatches of every size
                self._memory.clear()
            widths = [len(bias) for bias in self._biases]
            self._memory[n] = ([torch.empty(n, width) for width in widths], [torch.empty(n, width) for width in widths])
        hidden, _ = self._memory[n]
        self._inputs = [x, *hidden]
        scale = 2.0 if self._is_tanh else 1.0
        for weight, bias, before, out in zip(self._weights, self._biases, self._inputs, hidden, strict=False):
            torch.addmm(bias, before, weight.t(), beta=scale, alpha=scale, out=out)
            if self._is_tanh:
                torch.add(_MINUS_ONE, out.sigmoid_(), alpha=2.0, out=out)
            else:
                out.relu_()
        output: Array = torch.addmm(self._head_bias, self._head_weight, self._inputs[-1].t()).numpy()
        return output

    def backward(self, d_head: Array) -> None:
        """Fill the gradients of every layer from dL/dhead [P, n]."""
        d_out = torch.from_numpy(np.ascontiguousarray(d_head, np.float32))
        torch.mm(d_out, self._inputs[-1], out=self._d_weights[-1])
        torch.sum(d_out, 1, out=self._d_biases[-1])
        if not self._weights:
            return
        _, scratch = self._memory[d_out.shape[1]]
        d_in = torch.mm(d_out.t(), self._head_weight, out=scratch[-1])
        for i in range(len(self._weights) - 1, -1, -1):
            if self._is_tanh:
                d_out = torch.ops.aten.tanh_backward.grad_input(d_in, self._inputs[i + 1], grad_input=d_in)
            else:
                d_out = torch.ops.aten.threshold_backward.grad_input(d_in, self._inputs[i + 1], 0, grad_input=d_in)
            torch.sum(d_out, 0, out=self._d_biases[i])
            if i > 0:
                torch.mm(d_out.t(), self._inputs[i], out=self._d_weights[i])
                d_in = torch.mm(d_out, self._weights[i], out=scratch[i - 1])
            else:  # few columns: this order of the product is several times faster
                self._d_weights[0].copy_(torch.mm(self._inputs[0].t(), d_out).t())


_MINUS_ONE = torch.tensor(-1.0)


def _mean(values: Array) -> float:
    return float(np.add.reduce(values) / len(values))
