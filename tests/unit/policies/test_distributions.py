"""Log-probabilities and entropies against torch.distributions; samples by counter noise against probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headrace.policies.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    distribution_for,
)
from headrace.policies.noise import CounterNoise
from headrace.policies.noise_spec import NoiseSpec
from support.bit_envs import ACTIONS
from support.ppo_rows import spaces_named

NVEC = (3, 2, 4)


def params_of(width: int, count: int, seed: int, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def uniform_choices(nvec: tuple[int, ...], count: int, seed: int) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, nvec, (count, len(nvec))))


seeds = st.integers(0, 2**32 - 1)


@settings(deadline=None)
@given(seed=seeds, n=st.integers(1, 9), count=st.integers(1, 40))
def test_categorical(seed: int, n: int, count: int) -> None:
    params, actions = params_of(n, count, seed), uniform_choices((n,), count, seed)[:, 0]
    want = torch.distributions.Categorical(logits=params)
    assert_close(Categorical(n).evaluate(params, actions), want.log_prob(actions), want.entropy())
    assert torch.equal(Categorical(n).act(params, None), params.argmax(-1))


@settings(deadline=None)
@given(seed=seeds, count=st.integers(1, 40))
def test_multi_categorical(seed: int, count: int) -> None:
    ours = MultiCategorical(NVEC, (3,))
    params, actions = params_of(sum(NVEC), count, seed), uniform_choices(NVEC, count, seed)
    parts = [torch.distributions.Categorical(logits=logits) for logits in params.split(list(NVEC), -1)]
    log_prob = sum(part.log_prob(column) for part, column in zip(parts, actions.unbind(-1), strict=True))
    assert_close(ours.evaluate(params, actions), log_prob, sum(part.entropy() for part in parts))
    assert torch.equal(ours.act(params, None), torch.stack([part.logits.argmax(-1) for part in parts], -1))


@settings(deadline=None)
@given(seed=seeds, n=st.integers(1, 6), count=st.integers(1, 40))
def test_bernoulli(seed: int, n: int, count: int) -> None:
    params, bits = params_of(n, count, seed), uniform_choices((2,) * n, count, seed).to(torch.int8)
    want = torch.distributions.Independent(torch.distributions.Bernoulli(logits=params), 1)
    assert_close(Bernoulli((n,)).evaluate(params, bits), want.log_prob(bits.float()), want.entropy())
    assert torch.equal(Bernoulli((n,)).act(params, None), (params > 0).to(torch.int8))


@settings(deadline=None)
@given(seed=seeds, n=st.integers(1, 6), count=st.integers(1, 40))
def test_diagonal_gaussian(seed: int, n: int, count: int) -> None:
    params, noise = params_of(2 * n, count, seed, 1.0), params_of(n, count, seed + 1, 1.0)
    mean, log_std = params.chunk(2, -1)
    want = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
    ours = DiagonalGaussian((n,))
    actions = ours.act(params, noise)
    assert torch.allclose(actions, mean + noise * log_std.exp())
    assert torch.equal(ours.act(params, None), mean)
    assert_close(ours.evaluate(params, actions), want.log_prob(actions), want.entropy())


def assert_close(got: tuple[Tensor, Tensor], log_prob: Tensor, entropy: Tensor) -> None:
    assert got[0].shape == got[1].shape == log_prob.shape
    torch.testing.assert_close(got[0], log_prob, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got[1], entropy, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("extreme", [80.0, 1e4])
def test_extreme_logits_stay_finite(extreme: float) -> None:
    params = torch.tensor([[extreme, 0.0, -extreme]])
    for log_prob, entropy in (
        Categorical(3).evaluate(params, torch.tensor([2])),
        Bernoulli((3,)).evaluate(params, torch.tensor([[0, 1, 1]])),
    ):
        assert torch.isfinite(log_prob).all()
        assert torch.isfinite(entropy).all()


# ------------------------------------------------------------------------------------------------------------- sampling

SAMPLES = 40_000


def noise_for(spec: NoiseSpec, seed: int) -> Tensor:
    """The noise of 8 environments over many transitions, one row a sample."""
    keys = [(1_000_003 * seed + env, 77 * env + seed) for env in range(8)]
    drawn = CounterNoise(spec, keys).draw(np.zeros(8, np.int64), SAMPLES // 8)
    return torch.from_numpy(drawn.reshape(SAMPLES, spec.width))


def assert_frequencies(counts: np.ndarray, probabilities: np.ndarray) -> None:
    """Pearson's chi-square; the bound is passed by chance about once in a million."""
    expected = SAMPLES * probabilities.reshape(-1)
    chi2 = float((np.square(counts.reshape(-1) - expected) / expected).sum())
    freedom = len(expected) - 1
    assert chi2 < freedom + 5 * math.sqrt(2 * freedom) + 12, f"chi-square {chi2:.1f} with {freedom} degrees of freedom"


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("logits", [[0.0, 0.0], [1.0, -1.0, 0.3, 2.0], [4.0, 0.0, -3.0]])
def test_categorical_frequencies(logits: list[float], seed: int) -> None:
    ours, params = Categorical(len(logits)), torch.tensor(logits)
    actions = ours.act(params.expand(SAMPLES, -1), noise_for(ours.noise, seed))
    assert_frequencies(np.bincount(actions.numpy(), minlength=len(logits)), torch.softmax(params, -1).numpy())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_choices_of_one_action_are_independent(seed: int) -> None:
    """Joint frequencies of three choices, not only each one's own."""
    ours, params = MultiCategorical(NVEC, (3,)), params_of(sum(NVEC), 1, 5, 1.0)[0]
    actions = ours.act(params.expand(SAMPLES, -1), noise_for(ours.noise, seed)).numpy()
    counts = np.zeros(NVEC)
    np.add.at(counts, tuple(actions.T), 1)
    a, b, c = (torch.softmax(part, -1).numpy() for part in params.split(list(NVEC)))
    assert_frequencies(counts, a[:, None, None] * b[:, None] * c)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bits_are_independent(seed: int) -> None:
    ours, params = Bernoulli((3,)), torch.tensor([0.5, -2.0, 0.0])
    bits = ours.act(params.expand(SAMPLES, -1), noise_for(ours.noise, seed)).numpy()
    p = torch.sigmoid(params).numpy()
    a, b, c = (np.array([1 - one, one]) for one in p)
    assert_frequencies(np.bincount(bits @ [4, 2, 1], minlength=8), a[:, None, None] * b[:, None] * c)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_normal_samples(seed: int) -> None:
    """The probability integral transform of the samples is uniform, in both dimensions together."""
    ours, mean, log_std = DiagonalGaussian((2,)), torch.tensor([1.0, -3.0]), torch.tensor([0.0, 1.5])
    params = torch.cat([mean, log_std]).expand(SAMPLES, -1)
    actions = ours.act(params, noise_for(ours.noise, seed))
    uniform = torch.distributions.Normal(mean, log_std.exp()).cdf(actions).numpy()
    counts, _, _ = np.histogram2d(*uniform.T, bins=8, range=[[0, 1], [0, 1]])
    assert_frequencies(counts, np.full(64, 1 / 64))


def test_wrong_noise_is_noticed() -> None:
    """Logistic noise where Gumbel's is due: the frequencies say so."""
    ours, params = Categorical(3), torch.tensor([1.0, 0.0, -1.0])
    actions = ours.act(params.expand(SAMPLES, -1), noise_for(NoiseSpec("logistic", 3), 0))
    with pytest.raises(AssertionError, match="chi-square"):
        assert_frequencies(np.bincount(actions.numpy(), minlength=3), torch.softmax(params, -1).numpy())


@pytest.mark.parametrize("action", ACTIONS)
def test_actions_fit_their_space(action: str) -> None:
    space = spaces_named("vector", action)[1]
    ours = distribution_for(space)
    params = params_of(ours.params, 50, 3)
    for noise in (None, noise_for(ours.noise, 1)[:50]):
        acted = ours.act(params, noise)
        assert acted.shape == (50, *ACTIONS[action].shape)
        log_prob, entropy = ours.evaluate(params, acted)
        assert log_prob.shape == entropy.shape == (50,)
