"""What a step costs where steps differ: a rollout takes their sum, and its workers wait for the slowest of them."""

import math
from typing import Any

import numpy as np
import pytest

from headrace.collecting.topology import TopologyConfig
from headrace.envs.building import build_envs
from headrace.envs.spec import EnvSpec
from headrace.launch import measuring
from headrace.launch.decision import Measured, lateness, update_s
from headrace.launch.measuring import among_others, error_of_mean, tail_of
from support.faulty_envs import Steady

UNHURRIED = {"rounds": [[1e-3] * 9 + [11e-3]] * 3}


class Clock:
    """Goes on when a step says so."""

    now = 0.0


class Tailed(Steady):
    """Every tenth step takes 11 ms, the others 1 ms."""

    def step(self, action: Any) -> Any:
        self.taken = getattr(self, "taken", 0) + 1
        Clock.now += 11e-3 if self.taken % 10 == 0 else 1e-3
        return super().step(action)


def test_a_step_takes_its_mean_and_not_its_median(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "now_s", lambda: Clock.now)
    monkeypatch.setattr(measuring, "_queued_s", lambda: 0.0)
    envs = build_envs(EnvSpec(Tailed), range(1), 0)
    try:
        seen = measuring._alone(envs, 1, math.inf)
    finally:
        envs.close()
    assert seen.step_s == pytest.approx(2e-3, rel=0.12)  # the median, 1 ms, would promise twice the steps
    assert seen.jitter == pytest.approx(1.5, rel=0.12)  # of 1 and 11: a deviation of 3 ms


def test_the_tail_by_hand() -> None:
    tail, jitter = tail_of(UNHURRIED["rounds"], 0.0)
    assert tail == pytest.approx(2.0)  # (9 x 1 + 11) / 10 over 1
    assert jitter == pytest.approx(1.5)
    assert tail_of([[1e-3] * 10], 0.0) == pytest.approx((1.0, 0.0))


def test_time_without_a_core_is_no_step_s_time() -> None:
    # The long ones were other programs': 30 ms of 60. What is left is a typical step, and no jitter is claimed.
    assert tail_of(UNHURRIED["rounds"], 0.030) == pytest.approx((1.0, 0.0))
    assert tail_of(UNHURRIED["rounds"], 1.0) == pytest.approx((1.0, 0.0))  # however long it was
    assert tail_of([[1e-3] * 10], 1.0) == pytest.approx((1.0, 0.0))


def test_what_a_row_costs_is_shared_by_its_environments_by_hand() -> None:
    # 6 us alone; four together take 4 x 4 + 2 us: 4 us each, and 2 us for the row.
    assert among_others(6e-6, 4.5e-6, 4, 8) == pytest.approx(4.25e-6)
    assert among_others(6e-6, 6e-6, 4, 8) == pytest.approx(6e-6)  # nothing is shared
    assert among_others(6e-6, 9e-6, 4, 8) == pytest.approx(6e-6)  # others had the core: not slower than alone
    assert among_others(6e-6, 1e-6, 4, 8) == pytest.approx(6e-6 / 8)  # all of it is


def test_the_error_of_a_mean_by_hand() -> None:
    assert error_of_mean(UNHURRIED["rounds"]) == pytest.approx(1.5 / math.sqrt(30))
    assert error_of_mean([[1e-3] * 10]) == pytest.approx(0.0, abs=1e-9)
    assert error_of_mean([[0.0, 0.0]]) == 0.0  # a clock that is too coarse


@pytest.mark.parametrize(("workers", "deviations"), [(2, 0.564), (3, 0.846), (4, 1.029), (8, 1.424)])
def test_the_slowest_of_some_workers_is_as_late_as_the_largest_of_normal_sums(workers: int, deviations: float) -> None:
    assert lateness(2.0, 400, workers) == pytest.approx(2.0 / 20 * deviations, rel=0.05)
    assert lateness(2.0, 400, 1) == lateness(0.0, 400, workers) == 0.0


@pytest.mark.parametrize("seed", [1, 2])
def test_lateness_is_that_of_drawn_rollouts(seed: int) -> None:
    """Steps as those of benchmarks/timed_envs.py: Pareto, at most 100 times the shortest."""
    draws = np.minimum(1.0 + np.random.default_rng(seed).pareto(1.5, (1000, 2, 512)), 100.0)  # of two workers
    slowest = draws.sum(2).max(1).mean() / 512 / draws.mean() - 1.0
    assert slowest > 0.04
    assert lateness(draws.std() / draws.mean(), 512, 2) == pytest.approx(slowest, rel=0.15)


@pytest.mark.parametrize(("place", "two_threads"), [("processes", 1.0), ("threads", 2.0)])
def test_workers_in_step_wait_for_the_slowest_one(place: str, two_threads: float) -> None:
    config = TopologyConfig(8, 128)
    even, uneven = (Measured(2e-4, 0.1, two_threads, jitter=jitter) for jitter in (0.0, 2.0))
    more_s = update_s(place, 2, uneven, config, 2) - update_s(place, 2, even, config, 2)
    assert more_s == pytest.approx(lateness(2.0, 512, 2) * 512 * 2e-4)
    alone = [update_s("inline", 1, one, config, 2) for one in (even, uneven)]
    assert alone[0] == alone[1]  # one after the other: the sum is the same
