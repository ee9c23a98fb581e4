"""Metrics of records: pass@k against its definition, and failures are in no mean."""

from __future__ import annotations

from itertools import combinations
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.metrics import pass_at, summary
from headrace.agents.records import COMPLETED, FAILED, Episode, Failure, Group


def episode(group: int, member: int, has_won: bool, reward: float = 0.0, status: str = COMPLETED) -> Episode:
    failure = Failure("env", "x") if status == FAILED else None
    metrics = {} if failure else {"success": float(has_won), "reward": reward}
    return Episode(group, member, "a", 1, status, (), (), metrics, failure)


def group(number: int, wins: list[bool], failed: int = 0) -> Group:
    one = [episode(number, at, won) for at, won in enumerate(wins)]
    one += [episode(number, len(wins) + at, False, status=FAILED) for at in range(failed)]
    return Group(number, "a", 1, tuple(one))


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.integers(1, 6))
def test_pass_at_k_is_the_share_of_draws_that_hold_a_success(wins: list[bool], k: int) -> None:
    if k <= len(wins):
        slow = mean(any(draw) for draw in combinations(wins, k))
        assert pass_at(k, sum(wins), len(wins)) == pytest.approx(slow)


def test_k_runs_to_the_size_of_a_group() -> None:
    numbers = summary([group(0, [True, False, False, False, False, False])])
    assert [name for name in numbers if "pass@" in name] == ["a/pass@1", "a/pass@2", "a/pass@4", "a/pass@6"]
    assert numbers["a/pass@6"] == 1.0
    assert numbers["a/pass@1"] == pytest.approx(1 / 6)


def test_failed_groups_are_counted_and_in_no_mean() -> None:
    numbers = summary([group(0, [True, True]), group(1, [False], failed=1), group(2, [], failed=2)])
    assert numbers["a/groups"] == 3
    assert numbers["a/groups_failed"] == 2
    assert numbers["a/success"] == 1.0
    assert numbers["a/pass@2"] == 1.0


def test_nothing_but_failures_has_no_means() -> None:
    assert summary([group(0, [], failed=2)]) == {"a/groups": 1.0, "a/groups_failed": 1.0}
    assert summary([]) == {}
