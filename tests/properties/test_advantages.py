"""GAE, V-trace and returns against their definitions, episode by episode; then end to end from every kind of source.

    random chains ──> gae, vtrace ──┬── compared with slow_gae, slow_vtrace
    ChainEnv in every source ──> actor ──> slabs ──> batch ──> completion ──> gae ──┬── compared with the script's own
Swapping terminated and truncated, anywhere on the way, turns the comparison red.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from headrace.envs.vector_env import VectorEnv
from headrace.learning import late
from headrace.learning.advantages import advantages
from headrace.learning.assembly import assemble, complete
from headrace.learning.batch import Batch
from headrace.learning.config import PpoConfig
from headrace.learning.late import vtrace
from headrace.policies.noise_spec import NoiseSpec
from headrace.policies.policy import Evaluation
from support.chains import SOURCES, Script, Tampered, Transition, chain_envs, expected_stream, swap_flags
from support.generators import Flags, flags, floats_like, quick, seeds, thorough
from support.oracles import discounted_advantages, slow_gae
from support.pairwise import Cell, matrix
from support.ppo_rows import slow_vtrace
from support.slabs import Array, action_of, filled_slabs

TOLERANCE = 1e-6

discounts = st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0])
_COLUMNS = ("reward", "value", "bootstrap_value", "terminated", "truncated", "valid", "last_value")


def gae(*numbers: Any) -> tuple[Array, Array]:
    """The library's, of arrays and two discounts in the order of the slow ones."""
    *arrays, gamma, gae_lambda = numbers
    batch: Any = SimpleNamespace(**dict(zip(_COLUMNS, arrays, strict=True)))
    return advantages(batch, PpoConfig(gamma=gamma, gae_lambda=gae_lambda))


@dataclass(frozen=True)
class Numbers:
    """What gae works on, besides the flags."""

    reward: Array
    value: Array
    bootstrap_value: Array
    last_value: Array

    @classmethod
    def draw(cls, shape: tuple[int, int], seed: int) -> Numbers:
        """Random everywhere, also in invalid rows and in bootstrap values nobody asked for: they must not matter."""
        rng = np.random.default_rng(seed)
        return cls(
            floats_like(rng, shape), floats_like(rng, shape), floats_like(rng, shape), floats_like(rng, shape[1:])
        )

    def through(
        self, function: Callable[..., tuple[Array, Array]], rows: Flags, gamma: float, gae_lambda: float
    ) -> tuple[Array, Array]:
        return function(
            self.reward,
            self.value,
            self.bootstrap_value,
            rows.terminated,
            rows.truncated,
            rows.valid,
            self.last_value,
            gamma,
            gae_lambda,
        )


def assert_close(got: Array, wanted: Array) -> None:
    assert got.dtype == np.float32
    assert np.abs(got.astype(np.float64) - wanted).max(initial=0.0) < TOLERANCE


def assert_gae_is_the_definition(
    numbers: Numbers, rows: Flags, told: Flags, gamma: float = 0.99, gae_lambda: float = 0.95
) -> None:
    """`rows` are what happened, `told` is what gae is told of them."""
    for got, wanted in zip(
        numbers.through(gae, told, gamma, gae_lambda), numbers.through(slow_gae, rows, gamma, gae_lambda), strict=True
    ):
        assert_close(got, wanted)


# -------------------------------------------------------------------------------------------------------- random chains


@thorough
@given(rows=flags(), seed=seeds, gamma=discounts, gae_lambda=discounts)
def test_gae_is_its_definition(rows: Flags, seed: int, gamma: float, gae_lambda: float) -> None:
    assert_gae_is_the_definition(Numbers.draw(rows.shape, seed), rows, rows, gamma, gae_lambda)


@quick
@given(rows=flags(), seed=seeds)
def test_what_invalid_rows_hold_has_no_influence(rows: Flags, seed: int) -> None:
    numbers, other = Numbers.draw(rows.shape, seed), Numbers.draw(rows.shape, seed + 1)
    mixed = Numbers(
        np.where(rows.valid, numbers.reward, other.reward),
        np.where(rows.valid, numbers.value, other.value),
        np.where(rows.valid, numbers.bootstrap_value, other.bootstrap_value),
        numbers.last_value,
    )
    ours, theirs = numbers.through(gae, rows, 0.9, 0.8)[0], mixed.through(gae, rows, 0.9, 0.8)[0]
    assert (ours[rows.valid] == theirs[rows.valid]).all()
    assert (ours[~rows.valid] == 0).all()


def chain_with_every_ending() -> Flags:
    """Terminated, truncated, both, a skipped row, and a rollout's edge in the middle of an episode."""
    codes = np.array([[0, 1, 0, 2, 0, 3, 0, 0], [1, -1, 2, -1, 3, -1, 0, 0], [0, 0, 0, 0, 0, 0, 0, 2]]).T
    return Flags((codes > 0) & (codes & 1 > 0), (codes > 0) & (codes & 2 > 0), codes >= 0)


def test_swapped_flags_are_caught() -> None:
    rows = chain_with_every_ending()
    numbers = Numbers.draw(rows.shape, 1)
    assert_gae_is_the_definition(numbers, rows, rows)
    with pytest.raises(AssertionError):
        assert_gae_is_the_definition(numbers, rows, Flags(rows.truncated, rows.terminated, rows.valid))


@pytest.mark.parametrize("forgotten", ["truncated", "terminated", "valid"])
def test_a_flag_that_is_not_looked_at_is_caught(forgotten: str) -> None:
    rows = chain_with_every_ending()
    blind = rows._replace(**{forgotten: np.full(rows.shape, forgotten == "valid")})
    with pytest.raises(AssertionError):
        assert_gae_is_the_definition(Numbers.draw(rows.shape, 1), rows, blind)


def test_by_hand() -> None:
    """Two steps, cut with a final value of 10; then one step to the rollout's edge, with a value of 2 after it."""
    column = lambda *numbers: np.array(numbers, np.float32)[:, None]  # noqa: E731
    advantage, returns = gae(
        column(1, 2, 3),
        column(0.5, 0.25, 4),
        column(0, 10, 0),
        np.zeros((3, 1), np.bool_),
        np.array([[False], [True], [False]]),
        np.ones((3, 1), np.bool_),
        np.array([2.0], np.float32),
        0.5,
        0.5,
    )
    last = 2 + 0.5 * 10 - 0.25
    assert advantage[:, 0].tolist() == [1 + 0.5 * 0.25 - 0.5 + 0.25 * last, last, 3 + 0.5 * 2 - 4]
    assert returns[:, 0].tolist() == (advantage[:, 0] + [0.5, 0.25, 4]).tolist()


# -------------------------------------------------------------------------------------------------------------- V-trace

clips = st.sampled_from([0.3, 1.0, 1.7, 100.0])


def log_ratios(shape: tuple[int, int], seed: int) -> Array:
    """Ratios from about a twentieth to twenty: both truncations bite."""
    return np.random.default_rng([seed, 1]).normal(0, 1, shape).astype(np.float32)


def assert_vtrace_is_the_definition(
    numbers: Numbers,
    rows: Flags,
    told: Flags,
    log_ratio: Array,
    clip: float,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
    told_ratio: Array | None = None,
    told_clip: float | None = None,
) -> None:
    """`rows`, `log_ratio` and `clip` are what is so, the others are what vtrace is told of them."""
    told_ratio, told_clip = log_ratio if told_ratio is None else told_ratio, told_clip or clip
    ours = numbers.through(lambda *given: vtrace(*given, told_ratio, told_clip), told, gamma, gae_lambda)
    theirs = numbers.through(lambda *given: slow_vtrace(*given, log_ratio, clip), rows, gamma, gae_lambda)
    for got, wanted in zip(ours, theirs, strict=True):
        scale = max(1.0, np.abs(wanted).max(initial=0.0))
        assert got.dtype == np.float32
        assert np.abs(got.astype(np.float64) - wanted).max(initial=0.0) < TOLERANCE * scale


@thorough
@given(rows=flags(), seed=seeds, gamma=discounts, gae_lambda=discounts, clip=clips)
def test_vtrace_is_its_definition(rows: Flags, seed: int, gamma: float, gae_lambda: float, clip: float) -> None:
    numbers = Numbers.draw(rows.shape, seed)
    assert_vtrace_is_the_definition(numbers, rows, rows, log_ratios(rows.shape, seed), clip, gamma, gae_lambda)


@quick
@given(rows=flags(), seed=seeds, gamma=discounts, gae_lambda=discounts, clip=st.sampled_from([1.0, 3.0]))
def test_vtrace_of_the_policy_that_acted_is_gae(
    rows: Flags, seed: int, gamma: float, gae_lambda: float, clip: float
) -> None:
    """Its targets are GAE's returns for every lambda; its advantages look one target ahead: GAE's for lambda 1."""
    numbers, same = Numbers.draw(rows.shape, seed), np.zeros(rows.shape, np.float32)
    _, target = numbers.through(lambda *given: vtrace(*given, same, clip), rows, gamma, gae_lambda)
    assert_close(target, numbers.through(gae, rows, gamma, gae_lambda)[1])
    advantage, target = numbers.through(lambda *given: vtrace(*given, same, clip), rows, gamma, 1.0)
    wanted_advantage, wanted_target = numbers.through(gae, rows, gamma, 1.0)
    assert_close(target, wanted_target)
    assert_close(advantage, wanted_advantage)


@quick
@given(rows=flags(skips_rows=True), seed=seeds)
def test_what_invalid_rows_hold_has_no_influence_on_vtrace(rows: Flags, seed: int) -> None:
    numbers, other = Numbers.draw(rows.shape, seed), Numbers.draw(rows.shape, seed + 1)
    mixed = Numbers(
        np.where(rows.valid, numbers.reward, other.reward),
        np.where(rows.valid, numbers.value, other.value),
        np.where(rows.valid, numbers.bootstrap_value, other.bootstrap_value),
        numbers.last_value,
    )
    ratio = log_ratios(rows.shape, seed)
    other_ratio = np.where(rows.valid, ratio, log_ratios(rows.shape, seed + 1))
    ours = numbers.through(lambda *given: vtrace(*given, ratio, 1.2), rows, 0.9, 0.8)
    theirs = mixed.through(lambda *given: vtrace(*given, other_ratio, 1.2), rows, 0.9, 0.8)
    for got, wanted in zip(ours, theirs, strict=True):
        assert (got[rows.valid] == wanted[rows.valid]).all()
    assert (ours[0][~rows.valid] == 0).all()


def test_vtrace_by_hand() -> None:
    """Two steps with ratios 2 and 1/2, truncated at 1.5 and (passing on) at 1; then the rollout's edge, worth 8."""
    column = lambda *numbers: np.array(numbers, np.float32)[:, None]  # noqa: E731
    never = np.zeros((2, 1), np.bool_)
    advantage, target = vtrace(
        column(1, 2), column(4, 6), column(0, 0), never, never, ~never, np.array([8.0], np.float32),
        0.5, 1.0, np.log(column(2, 0.5)), 1.5,
    )  # fmt: skip
    second = 6 + 0.5 * (2 + 0.5 * 8 - 6)
    first = 4 + 1.5 * (1 + 0.5 * 6 - 4) + 0.5 * 1.0 * (second - 6)
    assert target[:, 0].tolist() == pytest.approx([first, second])
    assert advantage[:, 0].tolist() == pytest.approx([1.5 * (1 + 0.5 * second - 4), 0.5 * (2 + 0.5 * 8 - 6)], abs=1e-6)


def lost_rho(ratio: Array) -> Array:
    return np.zeros_like(ratio)


@pytest.mark.parametrize(
    ("ratio", "clip"),
    [(lost_rho, 1.2), (np.negative, 1.2), (lambda ratio: ratio, 1e9), (lambda ratio: ratio, 1.0)],
    ids=["rho is dropped", "mu / pi", "not truncated", "truncated elsewhere"],
)
def test_a_wrong_ratio_is_caught(ratio: Callable[[Array], Array], clip: float) -> None:
    rows = chain_with_every_ending()
    numbers, true = Numbers.draw(rows.shape, 1), log_ratios(rows.shape, 1)
    assert_vtrace_is_the_definition(numbers, rows, rows, true, 1.2)
    with pytest.raises(AssertionError):
        assert_vtrace_is_the_definition(numbers, rows, rows, true, 1.2, told_ratio=ratio(true), told_clip=clip)


def test_vtrace_that_does_not_pass_on_by_c_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = chain_with_every_ending()
    numbers, ratio = Numbers.draw(rows.shape, 1), log_ratios(rows.shape, 1)
    real = late.accumulated
    monkeypatch.setattr(late, "accumulated", lambda delta, decay: real(delta, 0.99 * 0.95 * (decay > 0)))
    with pytest.raises(AssertionError):
        assert_vtrace_is_the_definition(numbers, rows, rows, ratio, 1.2)


def test_flags_that_vtrace_confuses_are_caught() -> None:
    rows = chain_with_every_ending()
    numbers, ratio = Numbers.draw(rows.shape, 1), log_ratios(rows.shape, 1)
    for told in (
        Flags(rows.truncated, rows.terminated, rows.valid),
        rows._replace(truncated=np.zeros(rows.shape, np.bool_)),
        rows._replace(terminated=np.zeros(rows.shape, np.bool_)),
        rows._replace(valid=np.ones(rows.shape, np.bool_)),
    ):
        with pytest.raises(AssertionError):
            assert_vtrace_is_the_definition(numbers, rows, told, ratio, 1.2)


# ---------------------------------------------------------------------------------------- end to end, from every source

SHARDS = (range(3), range(3, 5))
GAMMA, GAE_LAMBDA = 0.97, 0.9


def known_value(obs: Tensor) -> Tensor:
    """Exact in float32, so it does not matter where in a batch an observation lies."""
    return ((13 * obs[:, 0] + 7 * obs[:, 1] + 5 * obs[:, 2]) % 32) / 64 - 0.25


class KnownValues(nn.Module):
    """A policy of which only the values matter."""

    noise = NoiseSpec("gumbel", 4)
    largest_tile = 64

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        raise NotImplementedError

    def evaluate(self, obs: Tensor, actions: Tensor) -> Evaluation:
        return Evaluation(torch.zeros(len(obs)), torch.zeros(len(obs)), known_value(obs))

    def value(self, obs: Tensor) -> Tensor:
        return known_value(obs)


def value_of(obs: tuple[float, ...]) -> float:
    return float(known_value(torch.tensor([obs]))[0])


@dataclass(frozen=True)
class Estimate:
    """What the library says of one real transition, and whether its episode ended in the same slab."""

    advantage: float
    target: float
    is_whole: bool


def estimates(
    source: str, script: Script, n_steps: int, count: int, wrap: Callable[[VectorEnv], VectorEnv] = lambda envs: envs
) -> tuple[list[list[list[Estimate]]], list[Batch]]:
    """[update][env][transition], and the completed batches, through the real actor, batch and completion."""
    shards = [filled_slabs(wrap(chain_envs(source, shard, script)[0]), shard, n_steps, count) for shard in SHARDS]
    batches = [assemble(slabs) for slabs in zip(*shards, strict=True)]
    result = []
    for batch in batches:
        complete(batch, lambda version: KnownValues())
        advantage, returns = advantages(batch, PpoConfig(gamma=GAMMA, gae_lambda=GAE_LAMBDA))
        ended = (batch.terminated | batch.truncated) & batch.valid
        ends_from_here = np.cumsum(ended[::-1], axis=0)[::-1] > 0
        result.append(
            [
                [
                    Estimate(float(advantage[t, env]), float(returns[t, env]), bool(ends_from_here[t, env]))
                    for t in np.flatnonzero(batch.valid[:, env])
                ]
                for env in range(batch.n_envs)
            ]
        )
    return result, batches


def scripted_estimates(stream: list[Transition]) -> list[tuple[float, float]]:
    """Advantage and return of one environment's transitions of one slab, from the script alone."""
    result: list[tuple[float, float]] = []
    while stream:
        is_same_episode = [one.obs[1] == stream[0].obs[1] for one in stream]
        episode = stream[: sum(is_same_episode)]
        stream = stream[len(episode) :]
        last = episode[-1]
        if last.terminated:
            after = 0.0
        elif last.truncated:
            assert last.final is not None
            after = value_of(last.final)
        else:  # the rollout's edge
            env, number, step = last.obs
            after = value_of((env, number, step + 1))
        values = [value_of(one.obs) for one in episode]
        gains = discounted_advantages([one.reward for one in episode], values, after, GAMMA, GAE_LAMBDA)
        result += [(a, a + v) for a, v in zip(gains, values, strict=True)]
    return result


def assert_estimates_are_the_scripts(updates: list[list[list[Estimate]]], script: Script) -> None:
    for env in range(SHARDS[-1].stop):
        lengths = [len(by_env[env]) for by_env in updates]
        stream = expected_stream(script, env, sum(lengths), action_of)
        start = 0
        for by_env, length in zip(updates, lengths, strict=True):
            wanted = scripted_estimates(stream[start : start + length])
            for got, (advantage, target) in zip(by_env[env], wanted, strict=True):
                assert abs(got.advantage - advantage) < TOLERANCE
                assert abs(got.target - target) < TOLERANCE
            start += length


@pytest.mark.parametrize("cell", matrix({"source": list(SOURCES), "n_steps": [1, 2, 5, 16], "seed": range(3)}))
def test_from_environment_to_advantage_it_is_the_script(cell: Cell) -> None:
    script = Script(cell["seed"])
    updates, _ = estimates(cell["source"], script, cell["n_steps"], count=6)
    assert_estimates_are_the_scripts(updates, script)


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_that_swaps_the_flags_is_caught_at_the_advantages(source: str) -> None:
    script = Script(1)
    updates, _ = estimates(source, script, 16, count=2, wrap=lambda envs: Tampered(envs, swap_flags))  # type: ignore[arg-type, return-value]
    with pytest.raises(AssertionError):
        assert_estimates_are_the_scripts(updates, script)


@pytest.mark.parametrize("source", SOURCES)
def test_a_wrong_final_observation_is_caught_at_the_advantages(source: str) -> None:
    script = Script(1)
    updates, _ = estimates(source, script, 16, count=2, wrap=lambda envs: Tampered(envs, lambda row: None, False))  # type: ignore[arg-type, return-value]
    with pytest.raises(AssertionError):
        assert_estimates_are_the_scripts(updates, script)


def whole_episodes(updates: list[list[list[Estimate]]]) -> dict[tuple[int, int], Estimate]:
    """(env, transition) -> estimate, where no rollout's edge takes part in it."""
    found = {}
    for env in range(SHARDS[-1].stop):
        stream = [one for by_env in updates for one in by_env[env]]
        found |= {(env, n): one for n, one in enumerate(stream) if one.is_whole}
    return found


@pytest.mark.parametrize("source", [source for source in SOURCES if source != "serial"])
def test_the_streams_of_advantages_do_not_depend_on_how_a_source_resets(source: str) -> None:
    """One long slab: a rollout's edge lies elsewhere where rows are skipped, so only whole episodes can be compared."""
    ours, theirs = (whole_episodes(estimates(one, Script(5), 64, count=1)[0]) for one in ("serial", source))
    common = ours.keys() & theirs.keys()
    assert len(common) > 5 * 32
    assert all(ours[key] == theirs[key] for key in common)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("shards", [SHARDS, SHARDS[:1]], ids=["two shards", "one, in its slab"])
def test_completion_fills_every_field(source: str, shards: tuple[range, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """After it no field is poisoned, and each environment has the values of its own observations."""
    monkeypatch.setattr(sys.modules[__name__], "SHARDS", shards)
    _, batches = estimates(source, Script(2), 8, count=2)
    for batch in batches:
        flat = torch.from_numpy(batch.obs.reshape(-1, 3))
        assert (batch.value.reshape(-1) == known_value(flat).numpy()).all()
        assert (batch.last_value == known_value(torch.from_numpy(batch.last_obs)).numpy()).all()
        wanted = np.zeros(batch.value.size, np.float32)
        wanted[batch.final_row] = known_value(torch.from_numpy(np.ascontiguousarray(batch.final_obs))).numpy()
        assert (batch.bootstrap_value.reshape(-1) == wanted).all()
        assert (batch.log_prob == 0).all()
