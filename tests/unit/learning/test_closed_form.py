"""The hand-derived gradients against autograd's, which is the reference: every option, every size."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.learning.config import PpoConfig
from headrace.learning.fast_path import closed_form, supports
from headrace.learning.ppo import Ppo
from headrace.learning.ppo_loss import AutogradGradients, Coefficients, Gradients, Rows, Terms
from headrace.policies.config import PolicyConfig
from headrace.weights.flat import FlatParameters
from support.bit_envs import ACTIONS
from support.ppo_rows import completed_batch, everyone, random_rows, shaken, spaces_named
from support.toy_policies import SubclassedMlp, mlp_policy, own_policy


def both(module: torch.nn.Module) -> tuple[FlatParameters, FlatParameters]:
    return FlatParameters(copy.deepcopy(module)), FlatParameters(copy.deepcopy(module))


def whole(gradients: Gradients, rows: Rows, c: Coefficients, flat: FlatParameters) -> Terms:
    """All rows as one minibatch, into the flat gradient."""
    return gradients(gradients.minibatch(rows, everyone(rows), c), 0, len(rows.action), flat.gradient)


def assert_same_gradients(ours: FlatParameters, autograd: FlatParameters, terms: Terms, want: Terms) -> None:
    for name, reference in autograd.gradients.items():
        scale = max(float(reference.abs().max()), 1e-2)  # below it is the rounding of numbers of the order of 1
        error = float((ours.gradients[name] - reference).abs().max()) / scale
        # A lone tanh unit that is saturated: 1 - tanh² cancels, so rounding by 2e-8 shows as 2e-4 of the gradient.
        assert error < 4e-4, f"{name}: relative error {error:.2e}"
    np.testing.assert_allclose(terms, want, rtol=1e-4, atol=3e-5)


@settings(deadline=None, max_examples=100)
@given(
    action=st.sampled_from(["discrete", "discrete_from_3", "box", "box_2d"]),
    observation=st.sampled_from(["vector", "wide", "float64", "discrete", "multi_binary"]),
    activation=st.sampled_from(["tanh", "relu"]),
    net_arch=st.lists(st.sampled_from([1, 7, 32]), min_size=0, max_size=3).map(tuple),
    counts=st.lists(st.sampled_from([1, 2, 3, 17, 64, 129]), min_size=1, max_size=3),
    clip_range=st.sampled_from([0.05, 0.2]),
    clip_range_vf=st.sampled_from([None, 0.2]),
    ent_coef=st.sampled_from([0.0, 0.02]),
    vf_coef=st.sampled_from([0.0, 0.5]),
    normalize_advantage=st.booleans(),
    moved=st.sampled_from([0.0, 0.3, 2.0]),
    seed=st.integers(0, 2**16),
)
@example("box", "vector", "tanh", (32,), [64, 1, 64], 0.2, 0.2, 0.02, 0.5, True, 0.3, 0)
@example("box_2d", "discrete", "tanh", (7, 1, 1), [1], 0.2, None, 0.02, 0.5, True, 0.3, 0)
def test_gradients_and_terms_are_autograds(
    action: str,
    observation: str,
    activation: str,
    net_arch: tuple[int, ...],
    counts: list[int],
    clip_range: float,
    clip_range_vf: float | None,
    ent_coef: float,
    vf_coef: float,
    normalize_advantage: bool,
    moved: float,
    seed: int,
) -> None:
    """Minibatches of changing size one after the other: the memory that is kept between calls must not tell."""
    spaces = spaces_named(observation, action)
    module = shaken(mlp_policy(*spaces, net_arch=net_arch, activation=activation, seed=seed), seed)
    ours, autograd = both(module)
    closed, reference = closed_form(ours), AutogradGradients(autograd)
    c = Coefficients(clip_range, clip_range_vf, ent_coef, vf_coef, normalize_advantage)
    for i, count in enumerate(counts):
        rows = random_rows(module, observation, count, seed + i, moved)
        terms, want = whole(closed, rows, c, ours), whole(reference, rows, c, autograd)
        assert_same_gradients(ours, autograd, terms, want)


def test_a_wrong_gradient_is_noticed() -> None:
    """A mistake of a thousandth in one entry turns the comparison red."""
    module = shaken(mlp_policy(*spaces_named("vector", "box")), 0)
    ours, autograd = both(module)
    rows, c = random_rows(module, "vector", 64, 1), Coefficients(0.2, None, 0.01, 0.5, True)
    terms, want = whole(closed_form(ours), rows, c, ours), whole(AutogradGradients(autograd), rows, c, autograd)
    assert_same_gradients(ours, autograd, terms, want)
    for name in ours.gradients:
        entry = ours.gradients[name].abs().argmax()
        ours.gradients[name].view(-1)[entry] *= 1.001
        with pytest.raises(AssertionError, match=name.replace(".", r"\.")):
            assert_same_gradients(ours, autograd, terms, want)
        ours.gradients[name].view(-1)[entry] /= 1.001


@pytest.mark.parametrize("kind", [closed_form, AutogradGradients])
@pytest.mark.parametrize("action", ["discrete", "box"])
@pytest.mark.parametrize("cuts", [(0, 64), (0, 17, 64), (0, 1, 32, 63, 64)], ids=str)
def test_shares_of_a_minibatch_add_up(kind: Any, action: str, cuts: tuple[int, ...]) -> None:
    """In buffers of their own, and in one buffer after the other: the whole minibatch's gradient and terms."""
    module = shaken(mlp_policy(*spaces_named("vector", action)), 3)
    ours, want = both(module)
    rows, c = random_rows(module, "vector", 64, 1), Coefficients(0.2, 0.2, 0.02, 0.5, True)
    wanted = whole(kind(want), rows, c, want)
    gradients, total, terms = kind(ours), torch.zeros_like(ours.gradient), []
    minibatch = gradients.minibatch(rows, everyone(rows), c)
    for start, stop in pairwise(cuts):
        out = torch.full_like(ours.gradient, torch.nan)  # whatever lay there is overwritten
        terms.append(gradients(minibatch, start, stop, out))
        total += out
    ours.gradient.copy_(total)
    *sums, _ = np.sum(terms, axis=0).tolist()
    assert_same_gradients(ours, want, Terms(*sums, max(one.ratio_error for one in terms)), wanted)


@pytest.mark.parametrize(("action", "activation"), [("discrete", "tanh"), ("box", "relu"), ("box_float64", "tanh")])
def test_a_whole_update_is_autograds(action: str, activation: str) -> None:
    """Epochs of minibatches with a partial last one, clipping and Adam: the same parameters up to rounding."""
    spaces = spaces_named("vector", action)
    module = shaken(mlp_policy(*spaces, activation=activation), 3, 0.1)
    batch = completed_batch(module, "vector", spaces[1], n_steps=9, n_envs=11, seed=4, invalid=0.1)
    after = {}
    for gradients in ("closed_form", "autograd"):
        flat = FlatParameters(copy.deepcopy(module))
        config = PpoConfig(batch_size=16, n_epochs=4, gradients=gradients, ent_coef=0.01, learning_rate=1e-3)
        learner = Ppo(flat, config, seed=7)
        learner.epochs(batch, learner.targets(batch, 0), 0, 1.0)
        after[gradients] = flat.vector.clone()
    assert not torch.equal(after["autograd"], torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert float((after["closed_form"] - after["autograd"]).abs().max()) < 2e-5


@pytest.mark.parametrize("action", ACTIONS)
def test_which_policies_it_takes(action: str) -> None:
    spaces = spaces_named("vector", action)
    generator = torch.Generator().manual_seed(0)
    assert supports(mlp_policy(*spaces)) == (not action.startswith("multi"))
    assert not supports(SubclassedMlp(*spaces, PolicyConfig(), generator))
    assert not supports(own_policy(*spaces))


def learner_for(module: torch.nn.Module, **options: Any) -> Ppo:
    return Ppo(FlatParameters(module), PpoConfig(**options), seed=7)


def test_auto_takes_it_where_it_can() -> None:
    spaces = spaces_named("vector", "discrete")
    assert learner_for(mlp_policy(*spaces)).summary.endswith("gradients closed form")
    assert learner_for(mlp_policy(*spaces), gradients="autograd").summary.endswith("gradients autograd")
    subclass = SubclassedMlp(*spaces, PolicyConfig(), torch.Generator().manual_seed(0))
    assert learner_for(subclass).summary.endswith("gradients autograd")
    with pytest.raises(UsageError, match=r"closed_form.*SubclassedMlp; use auto"):
        learner_for(subclass, gradients="closed_form")


def test_rows_are_not_written_to() -> None:
    module = shaken(mlp_policy(*spaces_named("vector", "discrete")), 0)
    rows = random_rows(module, "vector", 64, 1)
    kept = Rows(*(tensor.clone() for tensor in rows))
    flat = FlatParameters(module)
    whole(closed_form(flat), rows, Coefficients(0.2, 0.2, 0.01, 0.5, True), flat)
    assert all(torch.equal(a, b) for a, b in zip(rows, kept, strict=True))
