"""Compiled arithmetic that acting and learning share: activations and small products.

A small network's time goes into the calls around its arithmetic; loops in machine code are called once. Sums are taken
in the inputs' order, or in vectors that are the same for every row, so a row comes out the same wherever it lies and
whoever its neighbours are. Imports no torch. Does not know layers, losses or policies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.compiler import compiled, summing

Array = npt.NDArray[Any]

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
def transpose(weight: Array, out: Array) -> None:
    """[out, in] -> [in, out], the order in which `product` reads."""
    for i in range(weight.shape[0]):
        for j in range(weight.shape[1]):
            out[j, i] = weight[i, j]


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
