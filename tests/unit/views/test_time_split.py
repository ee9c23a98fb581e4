"""The split of an update's time: shares, whole percentages that add to 100, and the sentence."""

from __future__ import annotations

import math
import random

import pytest

from headrace.views.time_split import PHASES, group_percentages, reading, time_shares, whole_percentages


def seconds(**phases: float) -> dict[str, float]:
    return {f"headrace/time/{name}": value for name, value in phases.items()}


def test_shares_are_of_the_summed_time() -> None:
    shares = time_shares([seconds(env=1.0, sgd=1.0), seconds(env=2.0)])
    assert shares["env"] == 0.75
    assert shares["sgd"] == 0.25
    assert list(shares) == [phase.name for phase in PHASES]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 1e308])
def test_a_senseless_time_counts_as_none(bad: float) -> None:
    assert time_shares([seconds(env=bad, sgd=2.0)] * 3)["sgd"] == 1.0


def test_no_time_is_no_shares() -> None:
    assert time_shares([]) == {}
    assert time_shares([seconds(env=0.0)]) == {}
    assert whole_percentages({}) == {}


def test_percentages_always_add_to_100_and_stay_within_one_of_the_share() -> None:
    rng = random.Random(7)
    for _ in range(500):
        shares = time_shares([seconds(**{phase.name: rng.random() ** 4 for phase in PHASES})])
        percentages = whole_percentages(shares)
        assert sum(percentages.values()) == 100
        assert all(abs(percentages[name] - 100 * shares[name]) < 1 for name in shares)
        assert sum(group_percentages(percentages).values()) == 100


def test_groups_add_up_their_phases() -> None:
    percentages = whole_percentages(time_shares([seconds(env=5, inference=2, copy=1, sgd=1, wait=1)]))
    assert group_percentages(percentages) == {"collect": 80, "learn": 10, "wait": 10, "other": 0}


def test_the_sentence_names_the_largest_first_and_adds_to_100() -> None:
    shares = time_shares([seconds(env=54, inference=7, copy=1, completion=2, sgd=33, wait=2, other=1)])
    assert reading(shares) == (
        "54 % of the time was spent stepping the environments; 33 % taking gradient steps; "
        "7 % choosing actions; the remaining 6 % on everything else."
    )


def test_the_sentence_without_a_rest_or_without_times() -> None:
    assert reading(time_shares([seconds(wait=1)])) == "100 % of the time was spent waiting."
    assert reading({}) == "The run recorded no time split."
    assert reading(time_shares([seconds(other=98, env=2)])) == (
        "98 % of the time was spent outside the measured phases."
    )
