"""The plain MLP computed by hand: what acting and learning share of it, without the calls around the arithmetic.

    acting      obs [B, ...], noise --PlainMlpAct--> actions, in one compiled call a layer
    learning    x --Tower.forward--> head      dL/dhead --Tower.backward--> flat gradient

A small network's time goes into the calls around its arithmetic; loops in machine code are called once, and a row of 64
environments costs a fifth of what it costs torch. Sums are taken in the inputs' order, or in vectors that are the same
for every row, so a row comes out the same wherever it lies, and acting needs no tiles. Products of whole minibatches
are torch's. Tests hold all of it equal to the policy's own functions. Does not know losses, or what rows mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.compiler import compiled, summing
from headrace.policies.networks import MlpPolicy

Array = npt.NDArray[Any]
Arrays = tuple[Array, ...]
Layers = list[tuple[Tensor, Tensor]]  # weight and bias

TANH, RELU = 0, 1
KINDS = {"tanh": TANH, "relu": RELU}

# tanh(x) = x P(x²) / Q(x²) on |x| < 9, beyond which it is 1 in float32: a weighted least-squares fit to 2e-8.
_P0, _P1, _P2 = np.float32(0.9999999794689634), np.float32(0.13381054407904971), np.float32(0.0034956221510221426)
_P3, _P4 = np.float32(2.0609635597206914e-05), np.float32(1.335541395583186e-08)
_Q1, _Q2 = np.float32(0.46714370011692585), np.float32(0.025877112019355206)
_Q3, _Q4 = np.float32(0.00032856901865013517), np.float32(7.776869371137293e-07)
_ONE, _NINE = np.float32(1), np.float32(9)


@compiled
def activate(a: Array, kind: int) -> None:
    """The activation of every element, in place. NaN stays NaN."""
    for r in range(a.shape[0]):
        if kind == TANH:
            for j in range(a.shape[1]):
                x = min(max(a[r, j], -_NINE), _NINE)
                u = x * x
                p = (((_P4 * u + _P3) * u + _P2) * u + _P1) * u + _P0
                q = (((_Q4 * u + _Q3) * u + _Q2) * u + _Q1) * u + _ONE
                a[r, j] = min(max(x * p / q, -_ONE), _ONE)
        else:
            for j in range(a.shape[1]):
                a[r, j] = max(a[r, j], np.float32(0))


@compiled
def through_activation(d: Array, after: Array, kind: int, d_bias: Array) -> None:
    """dL/dafter to dL/dbefore, in place, and its sum over rows: the gradient of the bias."""
    d_bias[:] = 0
    for r in range(d.shape[0]):
        if kind == TANH:
            for j in range(d.shape[1]):
                d[r, j] *= _ONE - after[r, j] * after[r, j]
        else:
            for j in range(d.shape[1]):
                d[r, j] = d[r, j] if after[r, j] > 0 else np.float32(0)
        for j in range(d.shape[1]):
            d_bias[j] += d[r, j]


@compiled
def product(x: Array, weight: Array, bias: Array, out: Array) -> None:
    """out = x @ weight + bias for weight [in, out]: four rows and inputs at a time, each sum in the inputs' order."""
    rows, inputs = x.shape
    columns = weight.shape[1]
    whole_rows, whole = rows - rows % 4, inputs - inputs % 4
    for r in range(rows):
        for j in range(columns):
            out[r, j] = bias[j]
    for r in range(0, whole_rows, 4):
        for k in range(0, whole, 4):
            a0, a1, a2, a3 = x[r, k], x[r, k + 1], x[r, k + 2], x[r, k + 3]
            b0, b1, b2, b3 = x[r + 1, k], x[r + 1, k + 1], x[r + 1, k + 2], x[r + 1, k + 3]
            c0, c1, c2, c3 = x[r + 2, k], x[r + 2, k + 1], x[r + 2, k + 2], x[r + 2, k + 3]
            d0, d1, d2, d3 = x[r + 3, k], x[r + 3, k + 1], x[r + 3, k + 2], x[r + 3, k + 3]
            for j in range(columns):
                w0, w1, w2, w3 = weight[k, j], weight[k + 1, j], weight[k + 2, j], weight[k + 3, j]
                out[r, j] = (((out[r, j] + a0 * w0) + a1 * w1) + a2 * w2) + a3 * w3
                out[r + 1, j] = (((out[r + 1, j] + b0 * w0) + b1 * w1) + b2 * w2) + b3 * w3
                out[r + 2, j] = (((out[r + 2, j] + c0 * w0) + c1 * w1) + c2 * w2) + c3 * w3
                out[r + 3, j] = (((out[r + 3, j] + d0 * w0) + d1 * w1) + d2 * w2) + d3 * w3
    for r in range(rows):
        for k in range(whole if r < whole_rows else 0, inputs):
            for j in range(columns):
                out[r, j] += x[r, k] * weight[k, j]


@summing
def head(x: Array, weight: Array, bias: Array, out: Array) -> None:
    """out = x @ weight.T + bias for weight [out, in] with few outputs."""
    for r in range(x.shape[0]):
        for i in range(weight.shape[0]):
            total = np.float32(0)
            for k in range(x.shape[1]):
                total += x[r, k] * weight[i, k]
            out[r, i] = total + bias[i]


@compiled
def back_through_head(d: Array, x: Array, weight: Array, d_x: Array, d_weight: Array, d_bias: Array) -> None:
    """dL/dout to the gradients of the head and, unless d_x is empty, of its inputs."""
    d_weight[:] = 0
    d_bias[:] = 0
    for r in range(d.shape[0]):
        if len(d_x):
            d_x[r] = 0
        for i in range(d.shape[1]):
            d_i = d[r, i]
            d_bias[i] += d_i
            for k in range(x.shape[1]):
                d_weight[i, k] += d_i * x[r, k]
            if len(d_x):
                for k in range(x.shape[1]):
                    d_x[r, k] += d_i * weight[i, k]


class PlainMlpAct:
    """Acts on any number of rows. Reads the module's parameters in place, so loading new weights is seen."""

    def __init__(self, module: MlpPolicy) -> None:
        layers = [(w.numpy(), b.numpy()) for w, b in _layers("actor", dict(module.named_parameters()))]
        self._weights, self._biases = zip(*layers, strict=True)
        self._seen = tuple(np.zeros(weight.size, np.int32) for weight in self._weights[:-1])
        self._transposed = tuple(np.zeros(weight.shape[::-1], np.float32) for weight in self._weights[:-1])
        self._log_std = None if module.log_std is None else module.log_std.detach().numpy()
        self._kind = KINDS[module.activation]
        self._reserve(1)

    def __call__(self, obs: Array, noise: Array | None) -> Array:
        """[B] choices or [B, A] numbers; overwritten by the next call."""
        out, rows = self.forward(obs), len(obs)
        if noise is None:
            noise = self._no_noise[:rows]
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
        x, out = np.ascontiguousarray(obs), self._head[:rows]
        if not self._hidden:
            head(x, self._weights[0], self._biases[0], out)
        else:
            _forward(x, self._weights, self._biases, self._seen, self._transposed, self._hidden, self._kind, out)
        return out

    def _reserve(self, rows: int) -> None:
        *hidden, last = map(len, self._biases)
        self._hidden = tuple(np.empty((rows, width), np.float32) for width in hidden)
        self._head, self._no_noise = np.empty((rows, last), np.float32), np.zeros((rows, last), np.float32)
        self._choice = np.empty(rows, np.int64)


@compiled
def _forward(
    x: Array, weights: Arrays, biases: Arrays, seen: Arrays, transposed: Arrays, hidden: Arrays, kind: int, out: Array
) -> None:
    """All layers. Weights are transposed if they are not, bit for bit, those that were `seen` last."""
    for i in range(len(hidden)):
        after, words, difference = hidden[i][: len(x)], weights[i].reshape(-1).view(np.int32), np.int32(0)
        for k in range(len(words)):
            difference |= words[k] ^ seen[i][k]
        if difference:
            seen[i][:] = words
            transposed[i][:] = weights[i].T  # [in, out], the order in which `product` reads
        product(x, transposed[i], biases[i], after)
        activate(after, kind)
        x = after
    head(x, weights[-1], biases[-1], out)


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


class Both(NamedTuple):
    """The same memory, for torch and for compiled code. Allocated by torch, which aligns it (decision 0007)."""

    tensor: Tensor
    array: Array

    @classmethod
    def of(cls, tensor: Tensor) -> Both:
        """Two views of a tensor."""
        return cls(tensor, tensor.detach().numpy())


Memory = Callable[[int], tuple[list[Both], list[Both]]]
"""rows -> hidden activations, and what flows back to them, [rows, width] of every layer. Towers may share it."""


class Tower:
    """One MLP. Reads parameters in place; `gradients` are where `backward` writes, layer by layer."""

    def __init__(self, layers: Layers, gradients: Layers, kind: int, memory: Memory) -> None:
        *self._hidden, (weight, bias) = layers
        self._head, self._kind, self._memory = (weight.numpy(), bias.numpy()), kind, memory
        self._inputs: list[Both] = []  # of every layer, of the last forward pass
        self._gradients = [(Both.of(weight), bias.numpy()) for weight, bias in gradients]

    def forward(self, x: Tensor) -> Array:
        """The head's outputs [n, outputs], in new memory; activations are kept for backward."""
        hidden, _ = self._memory(len(x))
        self._inputs = [Both.of(x), *hidden]
        for (weight, bias), before, after in zip(self._hidden, self._inputs, hidden, strict=False):
            torch.addmm(bias, before.tensor, weight.t(), out=after.tensor)
            activate(after.array, self._kind)
        out = np.empty((len(x), len(self._head[1])), np.float32)
        head(self._inputs[-1].array, *self._head, out)
        return out

    def backward(self, d_head: Array) -> None:
        """From dL/dhead to the gradients of every layer."""
        _, scratch = self._memory(len(d_head))
        d_weight, d_bias = self._gradients[-1]
        d_last = scratch[-1].array if scratch else np.empty((0, 0), np.float32)
        back_through_head(d_head, self._inputs[-1].array, self._head[0], d_last, d_weight.array, d_bias)
        for i in range(len(self._hidden) - 1, -1, -1):
            (weight, _), (d_weight, d_bias), d = self._hidden[i], self._gradients[i], scratch[i]
            through_activation(d.array, self._inputs[i + 1].array, self._kind, d_bias)
            if i > 0:
                torch.mm(d.tensor.t(), self._inputs[i].tensor, out=d_weight.tensor)
                torch.mm(d.tensor, weight, out=scratch[i - 1].tensor)
            else:  # few columns: this order of the product is several times faster
                d_weight.tensor.copy_(torch.mm(self._inputs[0].tensor.t(), d.tensor).t())


def towers(module: MlpPolicy, gradients: Mapping[str, Tensor] | None = None) -> tuple[Tower, Tower]:
    """Actor and critic, in the same memory; `gradients` are by the parameters' names."""
    parameters, kind = dict(module.named_parameters()), KINDS[module.activation]
    widths = [len(bias) for _, bias in _layers("actor", parameters)[:-1]]

    @lru_cache(maxsize=2)  # a whole minibatch and the last one; sources that skip rows make last ones of every size
    def memory(rows: int) -> tuple[list[Both], list[Both]]:
        activations, gradients = ([Both.of(torch.empty(rows, width)) for width in widths] for _ in range(2))
        return activations, gradients

    actor, critic = (
        Tower(_layers(name, parameters), _layers(name, gradients or {}), kind, memory) for name in ("actor", "critic")
    )
    return actor, critic


def _layers(tower: str, tensors: Mapping[str, Tensor]) -> Layers:
    mine = [tensor.detach() for name, tensor in tensors.items() if name.startswith(f"{tower}.")]
    return list(zip(mine[::2], mine[1::2], strict=True))  # weight and bias of every layer, in its order
