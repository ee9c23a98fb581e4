"""Action noise by counter: any part can be drawn alone, bit for bit; rightly distributed; nothing repeats."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from itertools import combinations
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.collecting.plan import build_noise
from headrace.policies.noise import CounterNoise, _transform
from headrace.policies.noise_spec import Kind, NoiseSpec
from support.generators import quick, thorough

Array = npt.NDArray[Any]
KINDS: tuple[Kind, ...] = get_args(Kind)
every_kind = pytest.mark.parametrize("kind", KINDS)

specs = st.builds(NoiseSpec, st.sampled_from(KINDS), st.integers(1, 7))
words = st.integers(0, 2**63 - 1)
EULER = 0.5772156649015329


@st.composite
def part_of(draw: st.DrawFn, size: int) -> slice:
    start = draw(st.integers(0, size - 1))
    return slice(start, draw(st.integers(start + 1, size)))


# ----------------------------------------------------------------------------------------------- any part, bit for bit


@thorough
@given(specs, st.data(), st.integers(1, 9), st.integers(1, 40))
def test_any_part_of_any_shard_is_the_slice_of_the_whole(spec: NoiseSpec, data: st.DataObject, B: int, T: int) -> None:
    keys = data.draw(st.lists(st.tuples(words, words), min_size=B, max_size=B))
    counters = np.array(data.draw(st.lists(st.integers(0, 2**40), min_size=B, max_size=B)))
    whole = CounterNoise(spec, keys).draw(counters, T)
    assert whole.shape == (T, B, spec.width)
    assert whole.dtype == np.float32
    envs, rows = data.draw(part_of(B)), data.draw(part_of(T))
    part = CounterNoise(spec, keys[envs]).draw(counters[envs] + rows.start, rows.stop - rows.start)
    assert part.tobytes() == whole[rows, envs].tobytes()


@quick
@given(specs, words, words, st.integers(0, 2**40))
def test_it_is_the_splitmix_of_its_docstring(spec: NoiseSpec, key_1: int, key_2: int, counter: int) -> None:
    drawn = CounterNoise(spec, [(key_1, key_2)]).draw(np.array([counter]), 1)[0, 0]
    uniform = [
        slow_uniform(counter * spec.words + word, key_1, key_2) for word in range(spec.words)
    ]  # each of the words of this transition, and of no other
    wanted = {
        "gumbel": lambda: [-math.log(-math.log(u)) for u in uniform],
        "logistic": lambda: [math.log(u) - math.log1p(-u) for u in uniform],
        "normal": lambda: [
            math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)
            for u, v in zip(uniform[0::2], uniform[1::2], strict=True)
        ],
    }[spec.kind]()
    assert drawn.tolist() == pytest.approx(wanted, rel=1e-6, abs=1e-6)


def slow_uniform(position: int, key_1: int, key_2: int) -> float:
    """Plain integers, one at a time."""

    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    word = mix((mix((position * 0x9E3779B97F4A7C15 + key_1) % 2**64) + key_2) % 2**64)
    return ((word >> 12) + 0.5) / 2**52


def test_drawing_leaves_the_counters_alone() -> None:
    counters = np.array([3, 4])
    CounterNoise(NoiseSpec("normal", 2), [(1, 2), (3, 4)]).draw(counters, 5)
    assert counters.tolist() == [3, 4]


@every_kind
def test_the_extreme_words_give_finite_noise(kind: Kind) -> None:
    extremes = np.array([[0, 0], [2**64 - 1, 2**64 - 1], [0, 2**64 - 1], [2**64 - 1, 0]], np.uint64)
    assert np.isfinite(_transform(extremes, kind)).all()


# -------------------------------------------------------------------------------------------------------- distributions

N = 1_000_000

CDF: dict[str, Callable[[float], float]] = {
    "gumbel": lambda x: math.exp(-math.exp(-x)),
    "normal": lambda x: 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "logistic": lambda x: 1 / (1 + math.exp(-x)),
}
MOMENTS = {"gumbel": (EULER, math.pi**2 / 6), "normal": (0.0, 1.0), "logistic": (0.0, math.pi**2 / 3)}


def drawn_by_the_tree(kind: Kind, width: int, n_envs: int, n_steps: int, seed: int = 0) -> Array:
    """As a run draws it: keys from the seed tree, neighbouring environments, counters from 0. float64."""
    noise = build_noise(NoiseSpec(kind, width), range(n_envs), seed)
    return noise.draw(np.zeros(n_envs, np.int64), n_steps).astype(np.float64)


def distance_from(cdf: Callable[[float], float], sample: Array) -> float:
    """Kolmogorov and Smirnov's, at every hundredth of the ordered sample."""
    ordered = np.sort(sample.reshape(-1))[::100]
    return max(abs(cdf(x) - i / len(ordered)) for i, x in enumerate(ordered.tolist()))


@every_kind
def test_a_million_draws_have_the_distribution(kind: Kind) -> None:
    sample = drawn_by_the_tree(kind, width=5, n_envs=20, n_steps=N // 100).reshape(-1)
    mean, variance = MOMENTS[kind]
    assert distance_from(CDF[kind], sample) < 1.95 / math.sqrt(N) + 1e-4  # one in a thousand, and the grid's own width
    assert abs(sample.mean() - mean) < 4 * math.sqrt(variance / N)
    assert abs(sample.var() / variance - 1) < 0.01


def test_the_distance_can_tell_distributions_apart() -> None:
    normal = drawn_by_the_tree("normal", 1, 10, N // 10)
    assert distance_from(CDF["normal"], normal) < 0.0025
    assert distance_from(CDF["normal"], normal + 0.01) > 0.0025
    assert distance_from(CDF["normal"], normal * 1.02) > 0.0025
    assert distance_from(CDF["logistic"], normal) > 0.05


def test_gumbel_noise_samples_by_the_softmax() -> None:
    logits = np.array([1.0, 0.0, -2.0, 0.5])
    chosen = (logits + drawn_by_the_tree("gumbel", 4, 4, N // 16)).argmax(-1)
    frequency = np.bincount(chosen.reshape(-1), minlength=4) / chosen.size
    softmax = np.exp(logits) / np.exp(logits).sum()
    assert np.abs(frequency - softmax).max() < 4 * math.sqrt(0.25 / chosen.size)


def test_logistic_noise_samples_by_the_sigmoid() -> None:
    bits = 0.7 + drawn_by_the_tree("logistic", 1, 4, N // 16) > 0
    assert abs(bits.mean() - 1 / (1 + math.exp(-0.7))) < 4 * math.sqrt(0.25 / bits.size)


# --------------------------------------------------------------------------------------------------------- independence


def assert_unrelated(a: Array, b: Array) -> None:
    """Neither they nor their squares are correlated, and they share no number in the same place."""
    for x, y in ((a, b), (a**2, b**2), (np.abs(a), b)):
        assert abs(np.corrcoef(x, y)[0, 1]) < 5 / math.sqrt(len(a))
    assert (a == b).mean() < 1e-4


@every_kind
def test_environments_counters_and_components_are_independent(kind: Kind) -> None:
    drawn = drawn_by_the_tree(kind, width=2, n_envs=6, n_steps=50_000)
    for one, other in combinations(range(6), 2):
        assert_unrelated(drawn[:, one, 0], drawn[:, other, 0])
    for later in (1, 2, 3, 7):
        assert_unrelated(drawn[later:, 0, 0], drawn[:-later, 0, 0])
        assert_unrelated(drawn[later:, 0, 1], drawn[:-later, 0, 0])
    assert_unrelated(drawn[:, 0, 0], drawn[:, 0, 1])


@every_kind
def test_runs_with_neighbouring_seeds_are_independent(kind: Kind) -> None:
    ours, theirs = (drawn_by_the_tree(kind, 1, 1, 50_000, seed)[:, 0, 0] for seed in (0, 1))
    assert_unrelated(ours, theirs)


def repeats(drawn: Array) -> int:
    return drawn.size - len(np.unique(drawn))


def test_environments_are_no_shifts_of_one_another() -> None:
    """Those would be correlated at one distance only, which nobody looks at; but they would repeat their numbers."""
    by_chance = 2_000  # float32 has only so many
    assert repeats(drawn_by_the_tree("normal", 1, 8, 20_000)) < by_chance
    shifted = CounterNoise(NoiseSpec("normal", 1), [(0, 9), (8 * 0x9E3779B97F4A7C15 % 2**64, 9)])
    assert repeats(shifted.draw(np.zeros(2, np.int64), 20_000)) > 10 * by_chance - 1_000


# -------------------------------------------------------------------------------------------------------------- imports


def test_noise_and_tiles_import_no_torch() -> None:
    code = "import sys, headrace.policies.noise, headrace.policies.tiles; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
