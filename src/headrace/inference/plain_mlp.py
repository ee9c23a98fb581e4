"""The plain MLP's `act` in one compiled call: observations and noise in, actions out.

A small policy spends most of its time on bookkeeping around a few tiny matrix products; here a row of 64 environments
costs a fifth of what it costs torch. Rows are computed one by one in a fixed order, so no tiles are needed.
Takes small MlpPolicies over float vectors with Categorical or DiagonalGaussian actions; `supports` says so, everything
else acts through the policy's own `act`, which tests hold this equal to.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from headrace.compiler import compiled
from headrace.policies.distributions import Categorical, DiagonalGaussian
from headrace.policies.kernels import KINDS, activate, head, product, transpose
from headrace.policies.networks import MlpPolicy

Array = npt.NDArray[Any]
_MANY_WEIGHTS = 2**15  # beyond, a tuned matrix product makes up for its calls


def supports(module: nn.Module) -> bool:
    """Whether this knows the policy. Subclasses may have changed anything, so they are not taken."""
    return (
        type(module) is MlpPolicy
        and module.encode.is_vector
        and isinstance(module.distribution, Categorical | DiagonalGaussian)
        and sum(parameter.numel() for parameter in module.actor.parameters()) <= _MANY_WEIGHTS
    )


class PlainMlpAct:
    """Acts on any number of rows. Reads the module's parameters in place, so loading new weights is seen."""

    def __init__(self, module: MlpPolicy) -> None:
        layers = [layer for layer in module.actor if isinstance(layer, nn.Linear)]
        self._parameters = [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in layers]
        self._transposed = [np.empty(weight.shape[::-1], np.float32) for weight, _ in self._parameters[:-1]]
        self._log_std = None if module.log_std is None else module.log_std.detach().numpy()
        self._kind = KINDS[module.activation]
        self._reserve(1)

    def __call__(self, obs: Array, noise: Array | None) -> Array:
        """[B] choices or [B, A] numbers; overwritten by the next call."""
        rows = len(obs)
        if rows > len(self._no_noise):
            self._reserve(rows)
        self.forward(obs)
        if noise is None:
            noise = self._no_noise[:rows]
        out = self._head[:rows]
        if self._log_std is None:
            choice = self._choice[:rows]
            _choose(out, noise, choice)
            return choice
        _shift(out, noise, self._log_std)
        return out

    def forward(self, obs: Array) -> Array:
        """The actor's head: logits or means."""
        rows = len(obs)
        if rows > len(self._no_noise):
            self._reserve(rows)
        x = np.ascontiguousarray(obs)
        for (weight, bias), transposed, hidden in zip(self._parameters, self._transposed, self._hidden, strict=False):
            out = hidden[:rows]
            _layer(x, weight, bias, transposed, self._kind, out)
            x = out
        head(x, *self._parameters[-1], self._head[:rows])
        return self._head[:rows]

    def _reserve(self, rows: int) -> None:
        *hidden, last = [len(bias) for _, bias in self._parameters]
        self._hidden = [np.empty((rows, width), np.float32) for width in hidden]
        self._head = np.empty((rows, last), np.float32)
        self._no_noise = np.zeros((rows, last), np.float32)
        self._choice = np.empty(rows, np.int64)


@compiled
def _layer(x: Array, weight: Array, bias: Array, transposed: Array, kind: int, out: Array) -> None:
    transpose(weight, transposed)
    product(x, transposed, bias, out)
    activate(out, kind)


@compiled
def _choose(logits: Array, noise: Array, choice: Array) -> None:
    """The argmax of logits plus Gumbel noise; the first of equals, and the first NaN, as torch has it."""
    for r in range(logits.shape[0]):
        best, most = 0, logits[r, 0] + noise[r, 0]
        for i in range(1, logits.shape[1]):
            score = logits[r, i] + noise[r, i]
            if score > most or (np.isnan(score) and not np.isnan(most)):
                best, most = i, score
        choice[r] = best


@compiled
def _shift(means: Array, noise: Array, log_std: Array) -> None:
    for i in range(means.shape[1]):
        std = np.exp(log_std[i])
        for r in range(means.shape[0]):
            means[r, i] += std * noise[r, i]
