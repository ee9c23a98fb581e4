"""Diversity: bounds against brute force, verdicts on arrays, and every case in which a complaint would be a lie."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning.agreement import FALSE_ALARM, least_entropy, log_chance, most_agreement, slack
from headrace.planning.diversity import Course, Streams, judge_actions, judge_entropy, judge_starts
from support.generators import quick, seeds

LN2 = math.log(2)


# ------------------------------------------------------------------------------------------------------------ bounds


@quick
@given(st.integers(2, 9), st.integers(1, 12), seeds)
def test_no_independent_draws_agree_more_than_the_bound(num_choices: int, num_states: int, seed: int) -> None:
    """Any distributions, one for each state; two environments that are in the same state all the time."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(num_choices, rng.choice([0.05, 0.3, 1.0, 5.0])), num_states)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(1).mean()
    assert (p**2).sum(1).mean() <= most_agreement(float(entropy), num_choices) + 1e-5


def test_the_bound_is_reached() -> None:
    assert most_agreement(LN2, 2) == pytest.approx(0.5)
    assert most_agreement(math.log(6), 6) == pytest.approx(1 / 6, abs=1e-6)
    assert most_agreement(0.0, 2) == most_agreement(-3.0, 2) == most_agreement(1.0, 1) == 1.0
    p = 0.8
    entropy = -p * math.log(p) - (1 - p) * math.log(1 - p)
    assert most_agreement(entropy, 2) == pytest.approx(p**2 + (1 - p) ** 2, abs=1e-4)


def test_some_environments_may_have_less_than_the_mean() -> None:
    assert least_entropy(LN2, 8, 2, 2) == pytest.approx(LN2)
    assert least_entropy(0.75 * LN2, 8, 2, 2) == 0.0, "two that never draw and six that always do"
    assert least_entropy(0.75 * LN2, 8, 8, 2) == pytest.approx(0.75 * LN2)


def test_a_mean_strays_no_further_than_the_slack() -> None:
    rng, rows = np.random.default_rng(0), 200
    means = rng.integers(0, 2, (20_000, rows)).mean(1)
    assert (means > 0.5 + slack(rows, 1)).mean() < FALSE_ALARM
    assert slack(rows, 100) > slack(rows, 1) > slack(4 * rows, 1)


def test_chernoffs_bound_is_one() -> None:
    for matches in range(1, 11):
        exact = sum(math.comb(10, k) * 0.3**k * 0.7 ** (10 - k) for k in range(matches, 11))
        assert log_chance(matches, 10, 0.3) >= math.log(exact) - 1e-9
    assert log_chance(10, 10, 0.3) == pytest.approx(10 * math.log(0.3))


# ------------------------------------------------------------------------------------------------------ start states


def starts(table: Any) -> tuple[Any, list[tuple[int, int]]]:
    """[environment, episode] -> start; -1: none."""
    env, episode = np.nonzero(np.asarray(table) >= 0)
    finding, pairs = judge_starts(env, episode, np.asarray(table)[env, episode].astype(np.uint64))
    return finding, pairs


def test_equal_sequences_are_found_also_of_two_among_many() -> None:
    table = np.arange(20 * 6).reshape(20, 6)
    assert starts(table)[0].level == "ok"
    table[13] = table[4]
    finding, pairs = starts(table)
    assert (finding.level, pairs) == ("problem", [(4, 13)])
    assert "2 of 20 environments (4, 13)" in finding.found
    assert "np_random" in finding.advice
    assert finding.evidence["distinct_starts"] == 19 * 6


def test_one_that_was_recorded_late_is_compared_by_its_numbers() -> None:
    table = np.arange(3 * 8).reshape(3, 8)
    table[2] = table[0]
    table[0, :4] = -1
    assert starts(table)[1] == [(0, 2)]


@quick
@given(st.integers(2, 12), st.integers(2, 20), st.integers(2, 40), seeds)
def test_starts_that_are_drawn_from_a_few_are_no_error(envs: int, episodes: int, few: int, seed: int) -> None:
    table = np.random.default_rng(seed).integers(0, few, (envs, episodes))
    finding, pairs = starts(table)
    assert (finding.level, pairs) == ("ok", [])


def test_drawn_starts_raise_a_false_alarm_as_rarely_as_is_said() -> None:
    rng = np.random.default_rng(1)
    alarms = sum(starts(rng.integers(0, 3, (6, 8)))[0].level == "problem" for _ in range(2_000))
    assert alarms <= 2_000 * FALSE_ALARM * 5


def test_one_start_is_what_it_is() -> None:
    finding, pairs = starts(np.zeros((4, 9), int))
    assert (finding.level, pairs) == ("ok", [])
    assert "the environment has one start" in finding.found


def test_a_start_for_each_environment_is_what_it_is() -> None:
    finding, pairs = starts(np.repeat(np.arange(4)[:, None], 9, 1))
    assert (finding.level, pairs) == ("ok", [])
    assert "its own" in finding.found


def test_too_little_to_judge() -> None:
    for table in (np.zeros((1, 50), int), np.zeros((5, 1), int), np.empty((0, 0), int)):
        finding, pairs = starts(table)
        assert finding.found.startswith("not judged")
        assert pairs == []


# ---------------------------------------------------------------------------------------------------- action streams


def judged(action: Any, entropy: float, alike: Any = (), valid: Any = None) -> Any:
    action = np.asarray(action)
    action = action if action.ndim == 3 else action[..., None]
    usable = np.ones(action.shape[:2], np.bool_) if valid is None else valid
    return judge_actions(Streams(action, usable, np.full(len(action), entropy)), list(alike))


def test_independent_draws_are_no_error_and_one_noise_for_all_is() -> None:
    rng = np.random.default_rng(0)
    assert judged(rng.integers(0, 2, (400, 8)), LN2).level == "ok"
    shared = np.repeat(rng.integers(0, 2, (400, 1)), 8, 1)
    finding = judged(shared, LN2)
    assert finding.level == "problem"
    assert finding.evidence["agreement"] == 1.0
    assert "noise" in finding.advice


def test_two_that_act_alike_among_eight_are_found() -> None:
    rng = np.random.default_rng(0)
    action = rng.integers(0, 4, (2_000, 8))
    action[:, 5] = action[:, 2]
    finding = judged(action, math.log(4))
    assert finding.level == "problem"
    assert "1 of 28 pairs" in finding.found
    assert "2 and 5 in 100%" in finding.found


def test_a_policy_that_hardly_draws_agrees_and_is_not_called_correlated() -> None:
    always = np.ones((400, 8), int)
    assert judged(always, 0.01).level == "ok"
    by_state = np.repeat(np.random.default_rng(0).integers(0, 2, (400, 1)), 8, 1)  # all are in the same state
    assert judged(by_state, 0.01).level == "ok"


def test_unless_its_environments_begin_alike() -> None:
    by_state = np.repeat(np.random.default_rng(0).integers(0, 2, (400, 1)), 8, 1)
    finding = judged(by_state, 0.01, [(0, 1)])
    assert finding.level == "problem"
    assert "1 of 28 pairs" in finding.found
    assert "different starts" in finding.advice
    assert judged(np.ones((400, 8), int), 0.01, [(0, 1)]).level == "ok", "who does the same everywhere agrees anyway"


@quick
@given(seeds, st.sampled_from([2, 3, 6]))
def test_states_that_go_together_are_not_noise_that_does(seed: int, num_choices: int) -> None:
    """Every environment is in the same state in every row: as alike as states can be. Draws are independent."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(num_choices, rng.choice([0.2, 1.0])), 300)
    action = (rng.random((300, 8, 1)) > p.cumsum(1)[:, None]).sum(2)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(1)
    streams = Streams(action[..., None], np.ones((300, 8), np.bool_), entropy)
    assert judge_actions(streams, []).level == "ok"


def test_continuous_actions_are_alike_if_they_are_equal() -> None:
    rng = np.random.default_rng(0)
    action = rng.normal(size=(600, 4, 2)).astype(np.float32)
    assert judged(action, 2.8).level == "ok"
    action[:, 3] = action[:, 1]
    assert "1 and 3 in 100%" in judged(action, 2.8).found
    assert judged(np.zeros((600, 4, 2), np.float32), -30.0).level == "ok", "no noise to speak of"


def test_rows_in_which_nothing_was_done_do_not_count() -> None:
    rng = np.random.default_rng(0)
    action, valid = rng.integers(0, 2, (600, 4)), np.ones((600, 4), np.bool_)
    valid[::4] = False
    action[::4] = 0  # they would agree
    assert judged(action, LN2, valid=valid).evidence["agreement"] == pytest.approx(0.5, abs=0.03)


def test_parts_of_an_action_count_together() -> None:
    rng = np.random.default_rng(0)
    action = rng.integers(0, 3, (500, 6, 2))
    action[..., 0] = action[:, :1, 0]  # one part is shared: they agree in a third of all rows, and may
    finding = judged(action, 0.5 * math.log(9))
    assert finding.evidence["agreement"] == pytest.approx(1 / 3, abs=0.03)
    assert finding.level == "ok"
    assert judged(action, math.log(9)).level == "problem"


@pytest.mark.parametrize("shape", [(5, 4), (400, 1), (0, 0)])
def test_too_few_rows_or_environments(shape: tuple[int, int]) -> None:
    assert judged(np.zeros(shape, int), LN2).found.startswith("not judged")
    assert judged(np.zeros((400, 4), int), math.nan).found.startswith("not judged")


# ---------------------------------------------------------------------------------------------------- policy entropy


def course(entropy: Any, returns: Any, dimensions: int = 0, before: float = math.nan) -> Any:
    entropy, returns = np.asarray(entropy, float), np.asarray(returns, float)
    steps = 100.0 * np.arange(1, len(entropy) + 1)
    return judge_entropy(Course(steps, entropy, np.linspace(0, steps[-1], len(returns)), returns, dimensions, before))


GONE = [0.69] * 5 + [0.01] * 35
NOISE = np.random.default_rng(0).normal(size=400)


def test_entropy_that_is_gone_while_returns_stay_is_a_collapse() -> None:
    finding = course(GONE, NOISE)
    assert finding.level == "warning"
    assert "after 600 of 4,000 steps" in finding.found
    assert "ent_coef" in finding.advice
    assert course(GONE, np.zeros(400)).level == "warning", "a reward that was never found"
    assert course(GONE, NOISE - np.linspace(0, 5, 400)).level == "warning", "worse than before"


@pytest.mark.parametrize(
    ("entropy", "returns"),
    [
        (GONE, np.concatenate([NOISE[:50], NOISE[:350] + 5])),  # converged
        (GONE, np.concatenate([np.zeros(50), np.ones(350)])),
        (np.linspace(0.69, 0.2, 40), NOISE),  # it falls, as it should
        ([0.69] * 30 + [0.01] * 10, NOISE),  # late: nothing shows yet what comes of it
        ([0.69] * 5 + [0.01] * 10 + [0.5] * 25, NOISE),  # it came back
        ([0.01] * 40, NOISE),  # it began like that: trained before
    ],
)
def test_no_collapse(entropy: Any, returns: Any) -> None:
    assert course(entropy, returns).level == "ok"


def test_entropy_that_the_first_update_took_is_a_collapse_and_one_that_was_never_there_is_none() -> None:
    """The first record is of the whole update: with large steps nothing is left in it of the policy that began."""
    finding = course([0.035] + [0.01] * 39, NOISE, before=0.69)
    assert finding.level == "warning"
    assert "entropy under 5% of its start after 200 of 4,000 steps" in finding.found
    assert course([0.01] * 40, NOISE, before=0.011).level == "ok", "weights that were loaded, and had settled"
    assert course([0.01] * 40, np.concatenate([NOISE[:10], NOISE[:390] + 5]), before=0.69).level == "ok", "learnt"
    assert course([0.5] * 40, NOISE, before=0.69).level == "ok"


def test_continuous_entropy_is_judged_by_its_noise_and_not_by_its_sign() -> None:
    falling = [2.8] * 5 + [-0.2] * 35  # 0.22 of the noise that it had
    assert course(falling, NOISE, 2).level == "ok"
    assert course([2.8] * 5 + [-4.0] * 35, NOISE, 2).level == "warning"  # 0.03 of it
    assert course([-3.0] * 40, NOISE, 2).level == "ok"


def test_short_runs_are_not_judged() -> None:
    assert course(GONE[:9], NOISE).found.startswith("not judged")
    assert course(GONE, NOISE[:19]).found.startswith("not judged")
    assert course([math.nan] * 40, NOISE).found.startswith("not judged")
