"""The seam for tiles: the gradient of a minibatch from ranges of its rows, each into a buffer of its own.

    minibatch ──g(minibatch, start, stop, out)──> shares ──added up──> the whole, for closed form and autograd alike

Into whichever buffer the whole range is written, its bits are the same: so an update may one day be computed in fixed
tiles on any number of threads, and added up in a fixed order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from headrace.learning.fast_path import closed_form
from headrace.learning.ppo_loss import AutogradGradients, Coefficients, Gradients, Minibatch, Terms
from headrace.policies.threads import torch_threads
from headrace.weights.flat import FlatParameters
from support.ppo_rows import random_rows, shaken, spaces_named
from support.toy_policies import mlp_policy, own_policy

N = 96  # rows of the batch that minibatches are picked from

Kind = Callable[[FlatParameters], Gradients]
KINDS: dict[str, Kind] = {"closed form": closed_form, "autograd": AutogradGradients}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    with torch_threads(1):
        yield


class Bench:
    """One kind of gradients over a policy, and a minibatch."""

    def __init__(self, kind: Kind, action: str, size: int, c: Coefficients, seed: int = 0, **policy: Any) -> None:
        module = shaken(mlp_policy(*spaces_named("vector", action), seed=seed, **policy), seed)
        self._over(kind, module, size, c, seed)

    def _over(self, kind: Kind, module: nn.Module, size: int, c: Coefficients, seed: int) -> None:
        self.flat = FlatParameters(copy.deepcopy(module))
        self.gradients = kind(self.flat)
        rows = random_rows(module, "vector", N, seed)
        index = torch.from_numpy(np.random.default_rng(seed).permutation(N)[:size])
        self.minibatch: Minibatch = self.gradients.minibatch(rows, index, c)
        self.size = size

    def share(self, start: int, stop: int, out: Tensor | None = None) -> tuple[Tensor, Terms]:
        """Of some rows, in a buffer that held something else before."""
        out = torch.full_like(self.flat.vector, float("nan")) if out is None else out
        terms = self.gradients(self.minibatch, start, stop, out)
        return out, terms

    def whole(self, out: Tensor | None = None) -> tuple[Tensor, Terms]:
        """Of all rows."""
        return self.share(0, self.size, out)


C = Coefficients(0.2, 0.2, 0.02, 0.5, True)


def assert_close(got: Tensor, wanted: Tensor) -> None:
    """Up to the rounding of a sum in another order."""
    scale = max(float(wanted.abs().max()), 1e-2)
    assert float((got - wanted).abs().max()) / scale < 1e-5


def assert_adds_up(shares: list[tuple[Tensor, Terms]], whole: tuple[Tensor, Terms]) -> None:
    total = torch.stack([gradient for gradient, _ in shares]).sum(0)
    assert_close(total, whole[0])
    for name in Terms._fields:
        numbers = [getattr(terms, name) for _, terms in shares]
        joined = max(numbers) if name == "ratio_error" else sum(numbers)
        assert joined == pytest.approx(getattr(whole[1], name), rel=1e-4, abs=1e-5), name


@every_kind
@settings(deadline=None, max_examples=60)
@given(
    action=st.sampled_from(["discrete", "discrete_from_3", "box", "box_2d"]),
    net_arch=st.sampled_from([(), (7,), (32, 32)]),
    size=st.integers(1, N),
    cuts=st.lists(st.integers(0, N), max_size=6),
    clip_range_vf=st.sampled_from([None, 0.2]),
    ent_coef=st.sampled_from([0.0, 0.02]),
    normalize_advantage=st.booleans(),
    seed=st.integers(0, 2**16),
)
@example("box", (32, 32), 64, [16, 32, 48], 0.2, 0.02, True, 0)
@example("discrete", (7,), 1, [], None, 0.0, True, 1)
def test_shares_of_ranges_add_up_to_the_whole(
    kind: Kind,
    action: str,
    net_arch: tuple[int, ...],
    size: int,
    cuts: list[int],
    clip_range_vf: float | None,
    ent_coef: float,
    normalize_advantage: bool,
    seed: int,
) -> None:
    """Advantages are normalised over the minibatch, means are over its size: however it is cut."""
    c = Coefficients(0.2, clip_range_vf, ent_coef, 0.5, normalize_advantage)
    bench = Bench(kind, action, size, c, seed, net_arch=net_arch)
    edges = sorted({0, size, *(cut for cut in cuts if cut < size)})
    shares = [bench.share(start, stop) for start, stop in pairwise(edges)]
    assert_adds_up(shares, bench.whole())


@every_kind
@pytest.mark.parametrize("action", ["discrete", "box"])
def test_the_whole_range_has_the_same_bits_in_any_buffer(kind: Kind, action: str) -> None:
    bench = Bench(kind, action, 64, C)
    own, terms = bench.whole(bench.flat.gradient)
    assert own is bench.flat.gradient
    want = own.clone()
    bench.flat.gradient.fill_(7.0)
    other, again = bench.whole()
    assert other.numpy().tobytes() == want.numpy().tobytes()
    assert again == terms
    assert bool((bench.flat.gradient == 7.0).all()), "the run's own buffer is left alone"
    own, terms = bench.whole(bench.flat.gradient)
    assert own.numpy().tobytes() == want.numpy().tobytes(), "and can be used again"


@every_kind
@pytest.mark.parametrize("action", ["discrete", "box"])
def test_a_share_does_not_depend_on_those_before_it(kind: Kind, action: str) -> None:
    """Any order, any buffer, twice: the same bits. What one tile leaves behind must not reach the next."""
    bench = Bench(kind, action, 64, C)
    ranges = [(0, 16), (16, 33), (33, 34), (34, 64)]
    want = [bench.share(*one)[0].numpy().tobytes() for one in ranges]
    buffers = [torch.empty_like(bench.flat.vector) for _ in ranges]
    for i in (3, 1, 0, 2, 1, 3):
        bench.share(*ranges[i], buffers[i])
        assert buffers[i].numpy().tobytes() == want[i]
    assert [buffer.numpy().tobytes() for buffer in buffers] == want


@pytest.mark.parametrize("action", ["discrete", "box"])
def test_shares_are_the_same_for_closed_form_and_autograd(action: str) -> None:
    closed, autograd = (Bench(kind, action, 64, C) for kind in KINDS.values())
    for start, stop in ((0, 16), (16, 17), (17, 64)):
        ours, theirs = closed.share(start, stop), autograd.share(start, stop)
        scale = max(float(theirs[0].abs().max()), 1e-2)
        assert float((ours[0] - theirs[0]).abs().max()) / scale < 1e-4
        np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-4, atol=3e-5)


def test_a_users_own_policy_has_shares_too() -> None:
    bench = Bench.__new__(Bench)
    bench._over(AutogradGradients, shaken(own_policy(*spaces_named("vector", "box")), 1), 50, C, 1)
    assert_adds_up([bench.share(0, 20), bench.share(20, 50)], bench.whole())


@every_kind
def test_ranges_that_overlap_or_leave_rows_out_do_not_add_up(kind: Kind) -> None:
    """The comparison can fail."""
    bench = Bench(kind, "box", 64, C)
    for ranges in ([(0, 32), (31, 64)], [(0, 32), (33, 64)]):
        with pytest.raises(AssertionError):
            assert_adds_up([bench.share(*one) for one in ranges], bench.whole())
