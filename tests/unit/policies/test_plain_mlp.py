"""Compiled arithmetic against numpy's in float64, and a row's bits wherever it lies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.policies.plain_mlp import KINDS, activate, head, product, through_activation

SIZES = [(1, 1, 1), (3, 5, 7), (4, 4, 8), (13, 64, 64), (64, 376, 17)]


def arrays(rows: int, inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows)
    shapes = ((rows, inputs), (inputs, outputs), (outputs,))
    x, weight, bias = (rng.standard_normal(shape, np.float32) for shape in shapes)
    return x, weight, bias


@pytest.mark.parametrize("sizes", SIZES)
def test_products_are_numpys(sizes: tuple[int, int, int]) -> None:
    x, weight, bias = arrays(*sizes)
    want = x.astype(np.float64) @ weight + bias
    for function, given in ((product, weight), (head, np.ascontiguousarray(weight.T))):
        out = np.full(want.shape, np.nan, np.float32)
        function(x, given, bias, out)
        np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("sizes", SIZES)
def test_a_row_comes_out_the_same_anywhere(sizes: tuple[int, int, int]) -> None:
    """In any order, alone, with any number of neighbours, and from memory that starts anywhere."""
    x, weight, bias = arrays(*sizes)
    rng = np.random.default_rng(0)
    for function, given in ((product, weight), (head, np.ascontiguousarray(weight.T))):
        whole = np.empty((len(x), len(bias)), np.float32)
        function(x, given, bias, whole)
        activate(whole, KINDS["tanh"])
        for order in (rng.permutation(len(x)), np.arange(len(x))[-1:], rng.permutation(len(x))[: len(x) // 2 + 1]):
            for offset in (0, 1, 3):
                moved = np.empty(len(order) * x.shape[1] + offset, np.float32)[offset:].reshape(len(order), -1)
                moved[:] = x[order]
                out = np.empty((len(order), len(bias)), np.float32)
                function(moved, given, bias, out)
                activate(out, KINDS["tanh"])
                assert out.tobytes() == whole[order].tobytes()


def test_tanh_is_the_hyperbolic_tangent() -> None:
    x = np.concatenate([np.linspace(-12, 12, 200_001), np.logspace(-30, 0, 1000), [0.0]]).astype(np.float32)
    y = x[None].copy()
    activate(y, KINDS["tanh"])
    want = np.tanh(x.astype(np.float64))
    assert np.abs(y[0] - want).max() < 3e-7
    assert (np.abs(y[0] - want) <= 4e-7 * np.abs(want)).all()
    assert np.abs(y).max() == 1.0
    assert y[0, -1] == 0.0
    odd = np.array([[np.nan, np.inf, -np.inf]], np.float32)
    activate(odd, KINDS["tanh"])
    assert np.isnan(odd[0, 0])
    assert odd[0, 1:].tolist() == [1.0, -1.0]


@pytest.mark.parametrize("kind", KINDS)
def test_backward_is_the_derivative(kind: str) -> None:
    rng = np.random.default_rng(1)
    before, d = rng.standard_normal((2, 9, 11)).astype(np.float32)
    after = before.copy()
    activate(after, KINDS[kind])
    slope = 1 - np.tanh(before) ** 2 if kind == "tanh" else before > 0
    got, d_bias = d.copy(), np.full(11, np.nan, np.float32)
    through_activation(got, after, KINDS[kind], d_bias)
    np.testing.assert_allclose(got, d * slope, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(d_bias, (d * slope).sum(0), rtol=1e-5, atol=1e-6)


def test_where_nothing_can_be_kept_it_compiles_for_the_process(tmp_path: Path) -> None:
    """A function without a file, in a home that can't be written to: slower to start, but no error."""
    code = (
        "from headrace.compiler import compiled\n"
        "space = {}; exec('def double(x):\\n    return x + x', space); print(compiled(space['double'])(21))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "42"
