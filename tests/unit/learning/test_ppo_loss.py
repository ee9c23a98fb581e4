"""The loss against SB3's formulas in slow numpy, and its gradient against finite differences of that."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.learning.ppo_loss import AutogradGradients, Coefficients, Rows, Terms, normalized, ppo_loss
from headrace.policies.policy import Evaluation
from headrace.weights.flat import FlatParameters
from support.ppo_rows import everyone, random_rows, row_weights, sb3_terms, shaken, spaces_named
from support.toy_policies import mlp_policy

coefficients = st.builds(
    Coefficients,
    clip_range=st.sampled_from([0.05, 0.2, 0.4]),
    clip_range_vf=st.sampled_from([None, 0.1, 0.5]),
    ent_coef=st.sampled_from([0.0, 0.01, 0.3]),
    vf_coef=st.sampled_from([0.0, 0.5, 1.3]),
    normalize_advantage=st.booleans(),
)


def rows_and_evaluation(count: int, seed: int) -> tuple[Rows, Evaluation]:
    rng = np.random.default_rng(seed)
    columns = [torch.from_numpy(rng.normal(size=count).astype(np.float32)) for _ in range(6)]
    log_prob, moved, value, old_value, advantage, returns = columns
    numbers = (log_prob + 0.3 * moved, old_value, advantage, returns, row_weights(count, rng, seed))
    rows = Rows(torch.zeros(count, 1), torch.zeros(count), *numbers)
    return rows, Evaluation(log_prob, value.abs(), value)


def weighted(rows: Rows, c: Coefficients) -> torch.Tensor:
    """Advantages as a minibatch of all the rows has them."""
    return (normalized(rows.advantage) if c.normalize_advantage else rows.advantage) * rows.weight


@settings(deadline=None)
@given(count=st.integers(1, 70), seed=st.integers(0, 2**32 - 1), c=coefficients)
def test_loss_is_sb3s(count: int, seed: int, c: Coefficients) -> None:
    rows, now = rows_and_evaluation(count, seed)
    want = sb3_terms(*(tensor.numpy().astype(np.float64) for tensor in now), rows, c)
    loss, terms = ppo_loss(now, rows, weighted(rows, c), count, c)
    assert float(loss) == terms.loss
    for name, value in terms._asdict().items():
        assert value == pytest.approx(want[name], rel=1e-4, abs=1e-5), name


@settings(deadline=None)
@given(count=st.integers(2, 70), cut=st.integers(1, 69), seed=st.integers(0, 2**32 - 1), c=coefficients)
def test_shares_of_a_minibatch_add_up(count: int, cut: int, seed: int, c: Coefficients) -> None:
    """Two ranges of its rows: every mean is over the whole minibatch, so their terms add up to its terms."""
    rows, now = rows_and_evaluation(count, seed)
    advantage, cut = weighted(rows, c), 1 + cut % (count - 1)
    whole = ppo_loss(now, rows, advantage, count, c)[1]._asdict()
    first, second = (
        ppo_loss(
            Evaluation(*(tensor[part] for tensor in now)), Rows(*(tensor[part] for tensor in rows)), advantage[part],
            count, c,
        )[1]._asdict()
        for part in (slice(cut), slice(cut, None))
    )  # fmt: skip
    assert max(first.pop("ratio_error"), second.pop("ratio_error")) == whole.pop("ratio_error")
    for name, value in whole.items():
        assert first[name] + second[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


def test_known_numbers() -> None:
    """Worked out by hand: two rows, one clipped, one weighted; value loss without one half; entropy negated."""
    rows = Rows(
        torch.zeros(2, 1),
        torch.zeros(2),
        log_prob=torch.tensor([math.log(0.5), math.log(0.5)]),
        value=torch.tensor([0.0, 0.0]),
        advantage=torch.tensor([1.0, -2.0]),
        returns=torch.tensor([3.0, 1.0]),
        weight=torch.tensor([1.0, 0.25]),
    )
    now = Evaluation(torch.tensor([math.log(1.0), math.log(0.5)]), torch.tensor([0.7, 0.3]), torch.tensor([1.0, 0.1]))
    c = Coefficients(0.2, 0.5, 0.1, 0.5, normalize_advantage=False)
    terms = ppo_loss(now, rows, weighted(rows, c), 2, c)[1]
    policy = -(min(2.0, 1.2) + 0.25 * min(-2.0, -2.0)) / 2  # ratios 2 and 1; the second row counts a quarter
    value = ((3 - 0.5) ** 2 + (1 - 0.1) ** 2) / 2  # the first value may move by 0.5 only
    assert terms.policy_gradient_loss == pytest.approx(policy)
    assert terms.value_loss == pytest.approx(value)
    assert terms.entropy_loss == pytest.approx(-0.5)
    assert terms.loss == pytest.approx(policy + 0.1 * -0.5 + 0.5 * value)
    assert terms.clip_fraction == 0.5
    assert terms.approx_kl == pytest.approx((2 - 1 - math.log(2)) / 2)
    assert terms.ratio_error == pytest.approx(1.0)


def test_advantages_are_normalised_within_the_minibatch() -> None:
    advantage = torch.tensor([1.0, 2.0, 6.0])
    got = normalized(advantage)
    assert float(got.mean()) == pytest.approx(0, abs=1e-6)
    assert float(got.std()) == pytest.approx(1)
    assert torch.equal(normalized(torch.tensor([5.0])), torch.tensor([5.0]))  # nothing to divide by: as SB3
    assert torch.isfinite(normalized(torch.full((8,), 3.0))).all()


@pytest.mark.parametrize("clip_range_vf", [None, 0.3])
@pytest.mark.parametrize("action", ["discrete", "box"])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_gradient_is_the_slope_of_the_loss(activation: str, action: str, clip_range_vf: float | None) -> None:
    """Autograd in float32 against central differences of the whole way, network included, in float64."""
    module = shaken(mlp_policy(*spaces_named("vector", action), net_arch=(6, 5), activation=activation), 1)
    flat = FlatParameters(module)
    rows = random_rows(module, "vector", 33, seed=2)
    c = Coefficients(0.2, clip_range_vf, 0.05, 0.5, True)
    gradients = AutogradGradients(flat)
    terms = gradients(gradients.minibatch(rows, everyone(rows), c), 0, 33, flat.gradient)
    names = [name for name, _ in module.named_parameters()]
    shapes = [parameter.shape for parameter in module.parameters()]
    start = flat.vector.numpy().astype(np.float64)

    def loss_at(vector: np.ndarray) -> float:
        parts = np.split(vector, np.cumsum([math.prod(shape) for shape in shapes])[:-1])
        p = {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return sb3_terms(*slow_evaluate(p, rows, activation, action), rows, c)["loss"]

    assert loss_at(start) == pytest.approx(terms.loss, rel=1e-5)
    slope = np.array([(loss_at(start + step) - loss_at(start - step)) / 2e-6 for step in 1e-6 * np.eye(len(start))])
    assert np.abs(flat.gradient.numpy() - slope).max() < 1e-5 * np.abs(slope).max() + 1e-7


def slow_evaluate(
    p: dict[str, np.ndarray], rows: Rows, activation: str, action: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """MlpPolicy.evaluate in float64 numpy: log-probability, entropy and value."""

    def tower(name: str) -> np.ndarray:
        x = rows.obs.numpy().astype(np.float64)
        depth = sum(key.startswith(f"{name}.") for key in p) // 2
        for i in range(depth):
            x = x @ p[f"{name}.{i}.weight"].T + p[f"{name}.{i}.bias"]
            if i < depth - 1:
                x = np.tanh(x) if activation == "tanh" else np.maximum(x, 0)
        return x

    out, actions = tower("actor"), rows.action.numpy()
    if action == "discrete":
        log_p = out - np.log(np.exp(out).sum(-1, keepdims=True))
        log_prob, entropy = log_p[np.arange(len(out)), actions], -(np.exp(log_p) * log_p).sum(-1)
    else:
        log_std = p["log_std"]
        scaled = (actions - out) / np.exp(log_std)
        log_prob = (-0.5 * scaled**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(-1)
        entropy = np.full(len(out), (0.5 + 0.5 * np.log(2 * np.pi) + log_std).sum())
    return log_prob, entropy, tower("critic")[:, 0]


def test_terms_are_the_ones_that_are_reported() -> None:
    assert Terms._fields == (
        "loss",
        "policy_gradient_loss",
        "value_loss",
        "entropy_loss",
        "approx_kl",
        "old_approx_kl",
        "clip_fraction",
        "ratio_error",
    )
