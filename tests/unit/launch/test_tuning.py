"""What --tune may choose from: the batch and what was typed stay; what is predicted orders the trials."""

from __future__ import annotations

import select
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.api.tuning import Tuned, intended, tune
from headrace.collecting.topology import TopologyConfig
from headrace.envs.building import build_envs
from headrace.envs.spec import EnvSpec
from headrace.errors import EnvError, UsageError
from headrace.launch.decision import WORKER_BYTES, Measured, update_s
from headrace.launch.measuring import measure
from headrace.launch.rehearsal import Rehearsal
from headrace.launch.tuning import SHORTEST_ROLLOUT, Bounds, Candidate, candidates, predicted
from headrace.run_config import RunConfig
from support.faulty_envs import Steady, Toils

TWO = Bounds(2)
ACTING = {1: 10e-6, 8: 14e-6, 256: 150e-6}


class Waits(Steady):
    """5 ms for an answer that does not come, as of a simulator elsewhere."""

    def step(self, action: Any) -> Any:
        select.select([], [], [], 5e-3)
        return super().step(action)


def best(config: TopologyConfig, measured: Measured, bounds: Bounds = TWO) -> Candidate:
    found = candidates(config, (), bounds)
    return max(found, key=lambda one: predicted(one, config, measured, ACTING, bounds.cores))


@settings(max_examples=150, deadline=None)
@given(
    n_envs=st.integers(1, 48),
    n_steps=st.sampled_from([4, 17, 32, 100, 128, 2048]),
    max_lag=st.integers(0, 2),
    cores=st.integers(1, 8),
    share=st.sampled_from([0.1, 1.0]),
    fixed=st.sets(st.sampled_from(["n_envs", "n_steps", "topology", "workers", "inference", "max_lag"])),
    place=st.sampled_from([("auto", "auto"), ("inline", "1"), ("threads", "2"), ("processes", "auto"), ("auto", "2")]),
)
def test_the_batch_and_what_was_typed_stay(n_envs, n_steps, max_lag, cores, share, fixed, place) -> None:  # type: ignore[no-untyped-def]
    topology, workers = place
    config = TopologyConfig(n_envs, n_steps, topology, workers, max_lag=max_lag)
    found = candidates(config, fixed, Bounds(cores, cpu_share=share, most_lag=max_lag + 1))
    assert len(set(found)) == len(found)
    for one in found:
        applied = one.applied(config)  # which refuses what can't be run
        assert applied.n_envs * applied.n_steps == n_envs * n_steps
        assert one.n_steps >= min(n_steps, SHORTEST_ROLLOUT)
        assert one.workers <= one.n_envs
        if {"n_envs", "n_steps"} & fixed:
            assert (one.n_envs, one.n_steps) == (n_envs, n_steps)
        if "topology" in fixed and topology != "auto":
            assert one.topology == topology
        if "workers" in fixed and workers != "auto":
            assert one.workers == int(workers)
        if "inference" in fixed:
            assert one.inference == "local"
        assert one.max_lag == max_lag or ("max_lag" not in fixed and one.max_lag == max_lag + 1)


def test_what_the_user_would_have_had_is_the_first() -> None:
    assert candidates(TopologyConfig(), (), TWO)[0] == Candidate(8, 2048, "inline")
    typed = candidates(TopologyConfig(topology="processes"), {"topology"}, TWO)[0]
    assert typed == Candidate(8, 2048, "processes", 2)


def test_max_lag_stays_unless_it_is_allowed_to_grow() -> None:
    assert {one.max_lag for one in candidates(TopologyConfig(), (), TWO)} == {0}
    assert {one.max_lag for one in candidates(TopologyConfig(), (), Bounds(2, most_lag=1))} == {0, 1}


def test_a_pool_stays_inline_and_varies_in_size() -> None:
    found = candidates(TopologyConfig(), (), Bounds(2, is_pool=True, make_s=3.0))
    assert {one.topology for one in found} == {"inline"}
    assert {one.n_envs for one in found} == {4, 8, 16, 32, 64, 128, 256}


@pytest.mark.parametrize(
    ("typed", "places"),
    [
        ({"workers": "2"}, {"threads", "processes"}),
        ({"topology": "processes"}, {"processes"}),
        ({"topology": "threads", "workers": "2"}, {"threads"}),
        ({"inference": "central"}, {"processes"}),
        ({"inference": "auto", "double_buffering": "on"}, {"processes"}),
        ({"workers": "1"}, {"inline"}),
        ({"topology": "auto"}, {"inline"}),
    ],
)
@pytest.mark.parametrize("max_lag", [0, 1])
def test_a_pool_goes_where_the_user_sends_it(typed: dict[str, str], places: set[str], max_lag: int) -> None:
    found = candidates(TopologyConfig(**typed, max_lag=max_lag), {*typed}, Bounds(2, is_pool=True))  # type: ignore[arg-type]
    if max_lag and not {"threads", "processes"} & places:
        places = {"inline", "threads", "processes"}  # one worker of any kind collects ahead
    assert {one.topology for one in found} == places
    if "workers" in typed:
        assert {str(one.workers) for one in found} == {typed["workers"]}


@pytest.mark.parametrize("topology", ["threads", "processes"])
def test_one_worker_is_tried_where_nothing_else_is_left(topology: str) -> None:
    typed = TopologyConfig(8, 128, topology, "1")
    assert candidates(typed, {"topology", "workers"}, TWO)[0] == Candidate(8, 128, topology, 1)
    alone = TopologyConfig(1, 128, topology)
    assert candidates(alone, {"topology", "n_envs"}, TWO)[0] == Candidate(1, 128, topology, 1)


def test_a_dry_run_refuses_options_that_leave_nothing() -> None:
    config = RunConfig(EnvSpec(Steady), 1, topology=TopologyConfig(1, 128, workers="2"))
    with pytest.raises(UsageError, match="nothing fits"):
        intended(config, 5.0, {"n_envs", "workers"})


def test_environments_that_take_long_to_build_are_not_multiplied() -> None:
    found = candidates(TopologyConfig(), (), Bounds(2, make_s=0.1))
    assert max(one.n_envs for one in found if one.topology == "inline") == 8
    assert max(one.n_envs for one in found) == 16  # built by two processes at a time


def test_without_memory_there_are_no_worker_processes() -> None:
    found = candidates(TopologyConfig(), (), Bounds(2, free_bytes=WORKER_BYTES - 1))
    assert {one.topology for one in found} == {"inline", "threads"}


def test_environments_that_wait_may_have_more_workers_than_there_are_cores() -> None:
    assert max(one.workers for one in candidates(TopologyConfig(), (), TWO)) == 2
    assert max(one.workers for one in candidates(TopologyConfig(), (), Bounds(2, cpu_share=0.05))) == 32


@pytest.mark.parametrize(
    ("step_s", "two_threads", "share", "place"),
    [(0.2e-6, 1.0, 1.0, "inline"), (500e-6, 1.0, 1.0, "processes"), (5e-3, 2.0, 0.02, "threads")],
)
def test_predictions_favour_what_is_known_to_be_fast(
    step_s: float, two_threads: float, share: float, place: str
) -> None:
    config = TopologyConfig(8, 128)
    measured = Measured(step_s, 0.0, two_threads, Rehearsal(14e-6, 0.05, call_s=10e-6), cpu_share=share)
    chosen = best(config, measured, Bounds(2, cpu_share=share))
    assert chosen.topology == place
    if place == "threads":
        assert chosen.workers == 32


def test_a_policy_that_is_slow_for_few_rows_wants_more_environments() -> None:
    config, measured = TopologyConfig(8, 128, topology="inline"), Measured(5e-6, 0.0, 1.0)
    flat = {1: 1e-3, 8: 1e-3, 256: 1.2e-3}
    inline = list(candidates(config, {"topology"}, TWO))
    speeds = {one.n_envs: predicted(one, config, measured, flat, 2) for one in inline}
    assert speeds[32] > speeds[16] > speeds[8] > speeds[4]


def test_workers_whose_steps_wait_share_a_core() -> None:
    config, waits = TopologyConfig(8, 100), Measured(5e-3, 0.0, 2.0, cpu_share=0.05)
    alone_s = update_s("inline", 1, waits, config, 2)
    assert update_s("processes", 8, waits, config, 2) == pytest.approx(alone_s / 8, rel=0.02)
    assert update_s("threads", 8, waits, config, 2) == pytest.approx(alone_s / 8, rel=0.02)
    burns = replace(waits, cpu_share=1.0)
    assert update_s("processes", 8, burns, config, 2) == pytest.approx(alone_s / 2, rel=0.02)


def test_every_worker_pays_for_its_own_call_of_the_policy() -> None:
    config = TopologyConfig(8, 100)
    by_rows = Measured(1e-3, 0.0, 1.0, Rehearsal(8e-3, call_s=0.0))
    by_call = replace(by_rows, policy=Rehearsal(8e-3, call_s=8e-3))
    assert update_s("inline", 1, by_call, config, 2) == update_s("inline", 1, by_rows, config, 2)
    more_s = update_s("processes", 2, by_call, config, 2) - update_s("processes", 2, by_rows, config, 2)
    assert more_s == pytest.approx(100 * 8e-3 / 2)  # two calls at a time on two cores instead of half of each


class Counted(Waits):
    """With the numbers of environments and steps so far."""

    built = steps = 0

    def __init__(self, wait_s: float) -> None:
        super().__init__()
        Counted.built += 1
        self._wait_s = wait_s

    def step(self, action: Any) -> Any:
        Counted.steps += 1
        select.select([], [], [], self._wait_s)
        return super().step(action)


def tuned_for(seconds: float, wait_s: float) -> Tuned:
    Counted.built = Counted.steps = 0
    config = RunConfig(EnvSpec(Counted, {"wait_s": wait_s}), 1, topology=TopologyConfig(2, 64, "inline"))
    return tune(config, seconds, {"topology"})


def test_steps_that_take_all_the_time_are_not_measured_again() -> None:
    found = tuned_for(0.02, wait_s=0.01)  # the first four take longer
    assert found.choice is None
    assert "give --tune-seconds more" in found.text()
    assert (Counted.built, Counted.steps) == (1, 4)


def test_an_environment_that_hangs_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.api.tuning._LEAST_PATIENCE_S", 0.2)
    with pytest.raises(EnvError, match=r"hung.*give tuning more seconds"):
        tuned_for(0.2, wait_s=20.0)


class Lone(Steady):
    """Only the first one works."""

    built = 0

    def __init__(self) -> None:
        super().__init__()
        Lone.built += 1
        self._number = Lone.built

    def step(self, action: Any) -> Any:
        if self._number > 1:
            raise RuntimeError("there is one already")
        return super().step(action)


def test_trials_that_all_fail_say_what_to_do() -> None:
    Lone.built = 0
    config = RunConfig(EnvSpec(Lone), 1, topology=TopologyConfig(2, 64, "inline"))
    with pytest.raises(EnvError, match=r"every trial failed; give tuning more seconds.*there is one already"):
        tune(config, 20.0, {"topology"})


@pytest.mark.alone
def test_a_step_that_waits_is_told_from_one_that_computes() -> None:
    shares = {}
    for kind in (Waits, Toils):
        envs = build_envs(EnvSpec(kind), range(1), 1)
        try:
            seen = measure(EnvSpec(kind), 1, envs)
        finally:
            envs.close()
        assert seen is not None
        shares[kind] = seen.cpu_share
    assert shares[Waits] < 0.5 < shares[Toils]
