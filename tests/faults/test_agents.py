"""What goes wrong in LLM rollouts: every group that was handed out comes back exactly once, returned or failed.

The first part is the list of the known attempt's faults, one test each; then environments that hang, raise or return
garbage, workers that die, engines that fail, and interruption.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.agents import desk
from headrace.agents.callers import Awaited, Callers
from headrace.agents.compare import Comparison, Side, Table
from headrace.agents.desk import Desk, NoWorkersError, WorkersLostError
from headrace.agents.engines.batching import Batched, Batching
from headrace.agents.engines.protocol import Completion, EngineStatistics, Request
from headrace.agents.engines.scripted import Latency, ScriptedModel, random_answers, scripted
from headrace.agents.environments.text_env import Step
from headrace.agents.hosts import JoblibHosts
from headrace.agents.limits import Limits
from headrace.agents.metrics import summary
from headrace.agents.plan import Rules
from headrace.agents.playing import Statistics
from headrace.agents.records import COMPLETED, FAILED, EpisodeError, Group, fingerprint
from headrace.agents.ways import StepTime, Way
from headrace.errors import UsageError
from support.agent_envs import (
    RELEASE,
    Busy,
    Counting,
    Dying,
    Edge,
    Flaky,
    Garbage,
    Hanging,
    HangingClose,
    Heavy,
    Late,
    LateAndHanging,
    Leaver,
    Leaving,
    Raising,
    Stuck,
    Unplugging,
    spec,
)
from support.waiting import wait_until

WAYS = [("sequential", 1), ("lock-step", 1), ("threading", 2), ("loky", 2), ("multiprocessing", 2)]
QUICK = Limits(env_s=0.4, engine_s=5.0)
HANGS_S = 18.0  # environments that hang come back after 20 s: who is done earlier has not waited for them


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    """Hung environments of this process return when the test is over."""
    RELEASE.clear()
    yield
    RELEASE.set()


def rolled(
    env: Any, backend: str = "threading", n_jobs: int = 2, groups: int = 6, model: Any = None, **options: Any
) -> list[Group]:
    engine = Batched(model) if model is not None else scripted(latency=Latency(jitter_s=0.002))
    options = {"group_size": 2, **options}
    try:
        with hr.AgentRollouts([env], engine, n_jobs, backend, **options) as one:
            return one.run(groups)
    finally:
        engine.close()


# ------------------------------------------------------------------------- the known attempt's faults, one by one


@pytest.mark.parametrize("backend", ["loky", "multiprocessing"])
def test_1_processes_work_and_no_engine_travels(backend: str) -> None:
    """The engine holds a lock and a thread, which can't be pickled: a worker gets a client of it."""
    engine = scripted(latency=Latency(jitter_s=0.002))
    engine.generate([Request(0, 0, 0, [1], 4, 0)])
    try:
        with hr.AgentRollouts([spec(Counting)], engine, 2, backend, group_size=2, limits=Limits(max_live=4)) as one:
            pids = {pid for _ in one.stream(8) for pid in one.worker_pids.values()}
            assert one.statistics.engine.requests > 0, "asked here, for workers elsewhere"
            assert one.choice is not None
            assert one.choice.backend == backend
    finally:
        engine.close()
    assert pids
    assert os.getpid() not in pids


def test_2_requests_of_all_workers_meet_in_one_batch() -> None:
    """No lock round generate: while one batch is under way, the next one gathers."""
    sizes: list[int] = []

    class Watched(ScriptedModel):
        def run(self, requests: Sequence[Request]) -> list[Completion | EpisodeError]:
            sizes.append(len(requests))
            return super().run(requests)

    rolled(spec(Counting), "threading", 4, groups=8, model=Watched(latency=Latency(0.02)), group_size=4)
    assert max(sizes) > 16, "several workers' groups"


@pytest.mark.parametrize(("backend", "n_jobs"), [*WAYS, ("threading", 4), ("loky", 3)])
def test_3_no_remainder_is_lost(backend: str, n_jobs: int) -> None:
    groups = rolled(spec(Counting), backend, n_jobs, groups=10)
    assert [group.number for group in groups] == list(range(10))
    assert [one.member for group in groups for one in group.episodes] == [0, 1] * 10


def test_4_groups_are_whole_and_seeds_are_theirs() -> None:
    groups = rolled(spec(Counting), "threading", 3, groups=7, group_size=3)
    assert all(len(group.episodes) == 3 for group in groups)
    assert len({group.seed for group in groups}) == 7
    assert [group.seed for group in rolled(spec(Counting), "loky", 2, groups=7)] == [group.seed for group in groups]


@pytest.mark.parametrize(("backend", "n_jobs"), WAYS)
def test_5_a_failure_is_data_and_the_batch_does_not_shrink(backend: str, n_jobs: int) -> None:
    groups = rolled(spec(Raising, where="step"), backend, n_jobs, groups=8)
    assert [group.number for group in groups] == list(range(8))
    failed = [group for group in groups if group.status == FAILED]
    assert {group.seed % 2 for group in failed} == {1}
    assert len(failed) == sum(group.seed % 2 for group in groups) > 0
    for group in failed:
        for one in group.episodes:
            if one.failure is not None:
                assert (one.failure.boundary, one.attempts) == ("env", 2)
                assert "Raising raised in step: RuntimeError: the machine is broken" in one.failure.message
    numbers = summary(groups)
    assert numbers["Raising/groups_failed"] == len(failed)
    whole = [one for group in groups if group.status != FAILED for one in group.episodes]
    assert numbers["Raising/reward"] == pytest.approx(sum(one.reward for one in whole) / len(whole)), "not as zeros"


@pytest.mark.parametrize(("backend", "n_jobs"), WAYS)
def test_5_the_ledger_knows_where_every_group_went(backend: str, n_jobs: int) -> None:
    """Produced = consumed + rejected + discarded, by reason, over several calls; the broken-off ones included."""
    with hr.AgentRollouts([spec(Raising, where="step")], "scripted", n_jobs, backend, group_size=2) as one:
        groups = one.run(6)
        stream = one.stream(6)
        groups.append(next(stream))
        stream.close()
        ledger = one.statistics.ledger
        one.ledger.check()
    failed = sum(group.status == FAILED for group in groups)
    assert ledger["consumed"] == 7 - failed
    assert ledger["discarded"]["env"] == failed > 0
    assert ledger["produced"] == 7 + ledger["discarded"].get("broken off", 0)


@pytest.mark.parametrize(("backend", "n_jobs"), WAYS)
def test_6_pass_at_k_is_there_and_the_same(backend: str, n_jobs: int) -> None:
    numbers = summary(rolled(spec(Counting), backend, n_jobs, groups=4, group_size=4))
    assert {"Counting/pass@1", "Counting/pass@2", "Counting/pass@4"} <= set(numbers)
    assert numbers == summary(rolled(spec(Counting), "sequential", 1, groups=4, group_size=4))


@pytest.mark.parametrize(("backend", "n_jobs"), WAYS)
def test_7_every_way_has_limits_and_closes_its_environments(backend: str, n_jobs: int, tmp_path: Path) -> None:
    groups = rolled(spec(Leaving, folder=str(tmp_path)), backend, n_jobs, groups=5)
    assert len(groups) == 5
    built, closed = sorted(tmp_path.glob("*.built")), sorted(tmp_path.glob("*.closed"))
    assert [path.stem for path in built] == [path.stem for path in closed]
    assert len(built) >= 10


def test_7_the_fallback_keeps_the_seeds(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        groups = rolled(spec(_Unpicklable(), tag="Counting"), "loky", 2)
    assert "parallel rollouts are not possible" in caplog.text
    assert "pickle" in caplog.text
    assert fingerprint(groups) == fingerprint(rolled(spec(Counting), "sequential", 1))


class _Unpicklable:
    """A factory that can't travel."""

    __name__ = "Counting"

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self) -> Counting:
        return Counting()

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle this factory")


def test_8_the_comparison_has_something_to_be_consistent_with() -> None:
    """Answers depend on the question and on the request's seed: another question or seed is another answer."""
    engine = scripted()
    try:
        asked = engine.codec.encode("Actions: one, two\n<think>||")
        one, same, other_seed = engine.generate([Request(0, 0, 0, asked, 64, seed) for seed in (1, 1, 2)])
        (elsewhere,) = engine.generate([Request(0, 0, 0, engine.codec.encode("12 and 17"), 64, 1)])
    finally:
        engine.close()
    assert one == same
    assert isinstance(one, Completion)
    assert isinstance(other_seed, Completion)
    assert isinstance(elsewhere, Completion)
    assert len({one.text, other_seed.text, elsewhere.text}) == 3


class _Unmeasured(Counting):
    """Reports what it could not measure."""

    def step(self, action: str) -> Step:
        return replace(super().step(action), facts={"loss": float("nan")})


def test_8_what_is_no_number_is_equal_to_itself() -> None:
    """Equal records have equal metrics, NaN among them."""
    with hr.AgentRollouts([spec(_Unmeasured)], backend="sequential", group_size=2) as rollouts:
        groups = tuple(rollouts.run(2))
    side = Side("sequential", Way("sequential", 1, ""), 1.0, groups, Statistics())
    table = Table("all", 2, (side, side))
    assert math.isnan(side.metrics["_Unmeasured/loss"])
    assert Comparison(table, None, table).checks["equal metrics, pass@k included"]


# ------------------------------------------------------------------------------------------- environments


@pytest.mark.parametrize(("backend", "n_jobs"), WAYS)
def test_an_environment_that_hangs_is_given_up_and_replaced(backend: str, n_jobs: int, tmp_path: Path) -> None:
    """The retry has a fresh environment and the same seeds: its record is the calm run's."""
    env = spec(Hanging, tag="Counting", once=str(tmp_path / "once"))
    groups = rolled(env, backend, n_jobs, limits=QUICK)
    assert fingerprint(groups) == fingerprint(rolled(spec(Counting), "sequential", 1))
    assert sorted(one.attempts for group in groups for one in group.episodes)[-1] == 2


@pytest.mark.parametrize(("backend", "n_jobs"), WAYS[:2])
def test_an_environment_that_always_hangs_fails_its_group_in_time(backend: str, n_jobs: int) -> None:
    started = time.monotonic()
    groups = rolled(spec(Hanging), backend, n_jobs, groups=2, group_size=1, limits=Limits(env_s=0.2))
    assert time.monotonic() - started < HANGS_S
    assert [group.status for group in groups] == [FAILED, FAILED]
    assert groups[0].failures[0].boundary == "timeout"
    assert "Hanging" in groups[0].failures[0].message
    assert "0.2 s" in groups[0].failures[0].message


@pytest.mark.parametrize("where", ["build", "reset", "step"])
@pytest.mark.parametrize(("backend", "n_jobs"), [WAYS[0], WAYS[1]])
def test_an_environment_that_raises(where: str, backend: str, n_jobs: int) -> None:
    groups = rolled(spec(Raising, where=where, every=2), backend, n_jobs, groups=4)
    failed = [group for group in groups if group.status == FAILED]
    assert len(groups) == 4
    assert failed
    assert {failure.boundary for group in failed for failure in group.failures} == {"env"}


def test_close_that_raises_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    groups = rolled(spec(Raising, tag="Counting", where="close"))
    assert fingerprint(groups) == fingerprint(rolled(spec(Counting), "sequential", 1))
    assert "would not close" in caplog.text


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize(("backend", "n_jobs"), WAYS)
def test_close_that_hangs_holds_up_nobody(
    backend: str, n_jobs: int, pooled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its thread is left behind after the limit; the records are the calm run's."""
    started = time.monotonic()
    groups = rolled(
        spec(HangingClose, tag="Counting"), backend, n_jobs, groups=2, limits=Limits(env_s=0.3), pooled=pooled
    )
    assert time.monotonic() - started < HANGS_S
    assert fingerprint(groups) == fingerprint(rolled(spec(Counting), "sequential", 1, groups=2))
    if backend in ("sequential", "lock-step", "threading") and not pooled:  # a process has a log of its own
        assert "did not come back from close within 0.3 s" in caplog.text


def test_closes_that_hang_side_by_side_cost_one_limit() -> None:
    started = time.monotonic()
    rolled(spec(HangingClose), "lock-step", 1, groups=3, group_size=8, limits=Limits(env_s=0.5))
    assert time.monotonic() - started < 10, "one after the other, 24 of them would take 12 s"


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize(
    ("backend", "max_live"), [("sequential", 8), ("lock-step", 8), ("lock-step", 1), ("threading", 8)]
)
def test_what_comes_back_too_late_adds_nothing(backend: str, max_live: int, pooled: bool) -> None:
    """Also if others are still waited for when it does; and its environment is not used again."""
    Late.reused.clear()
    Late.ON.clear()
    limits, rules = Limits(env_s=0.4, max_live=max_live), Rules(max_actions_per_turn=1)
    with hr.AgentRollouts(
        [spec(Late)], n_jobs=2, backend=backend, group_size=2, limits=limits, rules=rules, pooled=pooled
    ) as one:
        Late.ON.set()
        groups = one.run(2)
    late = [one for group in groups for one in group.episodes if one.failure is not None]
    assert late
    assert all(one.failure.boundary == "timeout" for one in late if one.failure is not None)
    assert all(sum(len(turn.actions) for turn in one.turns) == 2 for one in late), "the third step was too late"
    assert not any(Late.reused)


@pytest.mark.parametrize("backend", ["sequential", "lock-step", "threading"])
def test_broken_off_while_environments_hang(backend: str) -> None:
    """It ends at once; each environment is closed once, by the thread that was stuck in it, when that comes back."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    Stuck.closed.clear()
    Stuck.num_inside = 0
    before, started = signal.signal(signal.SIGUSR1, interrupt), time.monotonic()
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            rolled(spec(Stuck), backend, 2, groups=1, group_size=6, limits=Limits(env_s=15.0))
        assert time.monotonic() - started < 12, "they would be given up after 15 s"
        assert Stuck.num_inside == 1 if backend == "sequential" else Stuck.num_inside > 3
        assert len(Stuck.closed) == 6 - Stuck.num_inside
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
        RELEASE.set()
    wait_until(lambda: len(Stuck.closed) >= 6)
    assert not any(Stuck.closed), "never while a step runs"


@pytest.mark.parametrize("backend", ["sequential", "lock-step", "threading"])
def test_back_at_the_moment_it_is_given_up_and_then_hanging_in_close(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Callers.give_up

    def give_up(self: Callers, future: Awaited, afterwards: Callable[[], None]) -> bool:
        with contextlib.suppress(AssertionError):
            wait_until(lambda: self.begun_s(future) is None, 1.0)
        return honest(self, future, afterwards)

    monkeypatch.setattr(Callers, "give_up", give_up)
    Late.ON.set()
    started = time.monotonic()
    groups = rolled(
        spec(LateAndHanging), backend, 2, groups=1, group_size=2, limits=Limits(env_s=0.4, attempts=1),
        rules=Rules(max_actions_per_turn=1),
    )  # fmt: skip
    assert len(groups) == 1
    assert time.monotonic() - started < HANGS_S


@pytest.mark.parametrize("how", ["exit", "cancel", "interrupt", "generator"])
@pytest.mark.parametrize(("backend", "n_jobs"), WAYS)
def test_an_environment_that_would_end_the_program(how: str, backend: str, n_jobs: int) -> None:
    """Whatever it raises is its failure, and nobody else's."""
    envs = [spec(Leaver, how=how), spec(Counting)]
    engine = scripted()
    try:
        with hr.AgentRollouts(envs, engine, n_jobs, backend, group_size=2, limits=Limits(attempts=1)) as one:
            groups = one.run(4)
    finally:
        engine.close()
    assert [group.status for group in groups] == [FAILED, "completed"] * 2
    assert {failure.boundary for group in groups for failure in group.failures} == {"env"}
    assert "Leaver raised in step" in groups[0].failures[0].message


@pytest.mark.parametrize(("backend", "n_jobs"), WAYS[:2])
def test_who_comes_back_when_it_is_given_up_adds_nothing(backend: str, n_jobs: int) -> None:
    """Steps that take as long as the limit: an episode has a result or a failure, never both."""
    groups = rolled(
        spec(Edge, steps=2), backend, n_jobs, groups=24 if backend == "threading" else 8, group_size=1,
        limits=Limits(env_s=0.101, attempts=1),
    )  # fmt: skip
    for group in groups:
        (one,) = group.episodes
        assert (one.status == FAILED) == (one.failure is not None) == (group.status == FAILED)
        if one.failure is not None:
            assert one.failure.boundary == "timeout"


class _Live(Counting):
    """Knows how many of its kind are there at one time."""

    lock, there, most = threading.Lock(), 0, 0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        with self.lock:
            _Live.there += 1
            _Live.most = max(_Live.most, _Live.there)

    def close(self) -> None:
        super().close()
        with self.lock:
            _Live.there -= 1


@pytest.mark.parametrize(
    ("backend", "group_size", "max_live"), [("threading", 2, 8), ("threading", 4, 3), ("lock-step", 3, 4)]
)
def test_no_more_episodes_than_may_be_live(backend: str, group_size: int, max_live: int) -> None:
    """Shares of workers that are rounded up, and groups that come whole, were more together."""
    _Live.most = 0
    limits = Limits(max_live=max_live)
    with hr.AgentRollouts(
        [spec(_Live, step_s=0.01)], "scripted", 3, backend, group_size=group_size, limits=limits
    ) as one:
        assert {group.status for group in one.run(12)} == {"completed"}
    assert 0 < _Live.most <= max_live


def test_time_in_a_queue_is_not_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that wait 60 ms, 24 at a time in one thread: the last begins after the limit, and none is too slow."""
    monkeypatch.setattr("headrace.agents.worker.Callers", lambda: Callers(most=1))
    limits = Limits(env_s=1.0, attempts=1)
    groups = rolled(spec(Counting, steps=1, step_s=0.06), "threading", 1, 3, group_size=8, limits=limits)
    assert fingerprint(groups) == fingerprint(rolled(spec(Counting, steps=1), "sequential", 1, 3, group_size=8))


def test_auto_and_an_environment_that_always_hangs() -> None:
    """Neither the measurement nor the episodes wait for it longer than the limit."""
    started = time.monotonic()
    groups = rolled(spec(Hanging), "auto", -1, groups=2, group_size=1, limits=Limits(env_s=0.2))
    assert time.monotonic() - started < HANGS_S
    assert [group.failures[0].boundary for group in groups] == ["timeout", "timeout"]


def test_auto_moves_to_processes_when_environments_turn_out_to_compute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look did not show it; groups in play begin again, and every group comes once, as it would have."""
    monkeypatch.setattr("headrace.agents.ways.look", lambda spec: None)
    # On a busy machine, environments that wait for a core do not keep the interpreter busy.
    monkeypatch.setattr("headrace.agents.ways.Computing.is_heavy", property(lambda self: self._count >= 2))
    with caplog.at_level(logging.INFO):
        groups = rolled(spec(Busy, tag="Counting", steps=20), "auto", -1, groups=6, group_size=2)
    assert "groups in play begin again there" in caplog.text
    assert [group.number for group in groups] == list(range(6))
    calm = rolled(spec(Counting, steps=20), "sequential", 1, groups=6, group_size=2)
    assert fingerprint(groups) == fingerprint(calm)


def test_auto_and_a_worker_that_is_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environments that compute go to processes by themselves, and one of these dies."""
    # As seen on an idle machine: on a busy one, a step that waits for a core looks like one that waits.
    monkeypatch.setattr("headrace.agents.ways.look", lambda spec: StepTime(spec.tag, 0.008, 1.0))
    env = spec(Busy, tag="Counting", once=str(tmp_path / "once"), parent=os.getpid(), steps=2)
    with caplog.at_level(logging.INFO):
        groups = rolled(env, "auto", -1, groups=4, group_size=1)
    assert "loky, n_jobs=2" in caplog.text
    assert (tmp_path / "once").exists()
    assert "is gone" in caplog.text
    assert fingerprint(groups) == fingerprint(rolled(spec(Counting, steps=2), "sequential", 1, 4, group_size=1))


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("none", "step returned None, expected a Step"),
        ("tuple", "step returned ('a', 1.0, False, {}), expected a Step"),
        ("text", "the observation is 7, expected text"),
        ("nan", "the reward is nan, expected a finite number"),
        ("done", "is_done is 'yes', expected True or False"),
        ("reset", "reset returned 3, expected text"),
    ],
)
@pytest.mark.parametrize("backend", ["sequential", "lock-step", "threading"])
def test_garbage_is_named(what: str, told: str, backend: str) -> None:
    groups = rolled(spec(Garbage, what=what), backend, 2, groups=2, group_size=1, limits=Limits(attempts=1))
    assert [group.status for group in groups] == [FAILED, FAILED]
    assert told in groups[0].failures[0].message
    assert groups[0].failures[0].boundary == "env"


@pytest.mark.parametrize(("backend", "n_jobs"), WAYS)
def test_a_hiccup_is_retried(backend: str, n_jobs: int, tmp_path: Path) -> None:
    groups = rolled(spec(Flaky, tag="Counting", once=str(tmp_path / "once")), backend, n_jobs)
    assert fingerprint(groups) == fingerprint(rolled(spec(Counting), "sequential", 1))


# ----------------------------------------------------------------------------------------------- workers


@pytest.mark.parametrize("backend", ["loky", "multiprocessing"])
def test_a_worker_process_that_is_killed_is_replaced(
    backend: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its groups are played again by others, with the same seeds."""
    groups = rolled(spec(Dying, tag="Counting", once=str(tmp_path / "once")), backend, 2, groups=8)
    assert fingerprint(groups) == fingerprint(rolled(spec(Counting), "sequential", 1, groups=8))
    assert "is gone" in caplog.text


@pytest.mark.parametrize(
    ("backend", "how"),
    [
        ("loky", "shutdown"),
        ("loky", "close"),
        ("loky", "error"),
        ("multiprocessing", "shutdown"),
        ("multiprocessing", "error"),
    ],
)
def test_a_worker_whose_process_lives_is_replaced_when_it_is_lost(
    backend: str, how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is lost, and joblib knows of no death; or it fails with groups in play: that is no goodbye."""
    monkeypatch.setattr(desk, "_SILENT_S", 2.0)  # nothing says that a connection was closed while it was read
    env = spec(Unplugging, tag="Counting", once=str(tmp_path / "once"), how=how)
    groups = rolled(env, backend, 2, groups=8, limits=Limits(env_s=2.0, stall_s=20.0))
    assert fingerprint(groups) == fingerprint(rolled(spec(Counting), "sequential", 1, groups=8))
    assert "is gone" in caplog.text
    assert "no progress" not in caplog.text


@pytest.mark.parametrize("backend", ["loky", "multiprocessing"])
def test_workers_killed_from_outside(backend: str) -> None:
    """At random moments, three times: nothing is missing, nothing comes twice."""
    engine = scripted(latency=Latency(0.005))
    kills = 0
    try:
        limits = Limits(max_live=4, attempts=4)
        with hr.AgentRollouts([spec(Counting, step_s=0.01)], engine, 2, backend, group_size=2, limits=limits) as one:
            numbers = []
            for group in one.stream(16):
                numbers.append(group.number)
                pids = list(one.worker_pids.values())
                if kills < 3 and pids and len(numbers) > 2 * kills:
                    os.kill(pids[0], signal.SIGKILL)
                    kills += 1
    finally:
        engine.close()
    assert sorted(numbers) == list(range(16))
    assert kills == 3


def test_a_worker_that_keeps_dying_ends_in_failed_groups_not_in_a_hang(tmp_path: Path) -> None:
    class Always(Dying):
        def step(self, action: str) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

    started = time.monotonic()
    groups = rolled(spec(Always, once=""), "multiprocessing", 2, groups=2, group_size=1)
    assert time.monotonic() - started < 60
    assert [group.status for group in groups] == [FAILED, FAILED]
    assert {failure.boundary for group in groups for failure in group.failures} == {"worker"}


def test_a_backend_that_does_not_start_falls_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: Any, *_: Any) -> None:
        raise NoWorkersError("no memory for another process")

    monkeypatch.setattr(JoblibHosts, "start", refuse)
    groups = rolled(spec(Counting), "loky", 2)
    assert "no memory for another process" in caplog.text
    assert "sequentially with the same seeds" in caplog.text
    monkeypatch.undo()
    assert fingerprint(groups) == fingerprint(rolled(spec(Counting), "threading", 2))


@pytest.mark.parametrize("env", [Hanging, HangingClose])
def test_the_fallback_has_the_same_limits(
    env: type, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: Any, *_: Any) -> None:
        raise NoWorkersError("no memory for another process")

    monkeypatch.setattr(JoblibHosts, "start", refuse)
    started = time.monotonic()
    groups = rolled(spec(env), "loky", 2, groups=2, group_size=1, limits=Limits(env_s=0.2))
    assert time.monotonic() - started < HANGS_S
    assert len(groups) == 2
    assert "sequentially with the same seeds" in caplog.text
    assert all(group.failures[0].boundary == "timeout" for group in groups if env is Hanging)


def test_workers_that_fail_to_start_after_some_groups_lose_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the groups are there when nobody can be started any more: the rest is played here, each once."""
    looks = 0
    honest = Desk._look_after

    def look(self: Desk, hosts: Any) -> None:
        nonlocal looks
        looks += 1
        if looks > 6:
            raise NoWorkersError("no more processes")
        honest(self, hosts)

    monkeypatch.setattr(Desk, "_look_after", look)
    groups = rolled(spec(Counting, step_s=0.03), "threading", 2, groups=8, limits=Limits(max_live=4))
    assert looks > 6
    monkeypatch.undo()
    assert [group.number for group in groups] == list(range(8))
    assert fingerprint(groups) == fingerprint(rolled(spec(Counting), "sequential", 1, groups=8))


def test_workers_that_keep_dying_after_some_groups_lose_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was finished is handed over, what was not has failed: every number once, and nothing goes on here."""
    looks = 0
    honest = Desk._look_after

    def look(self: Desk, hosts: Any) -> None:
        nonlocal looks
        looks += 1
        if looks > 6:
            raise WorkersLostError("workers keep dying")
        honest(self, hosts)

    monkeypatch.setattr(Desk, "_look_after", look)
    groups = rolled(spec(Counting, step_s=0.03), "threading", 2, groups=16, limits=Limits(max_live=4))
    assert [group.number for group in groups] == list(range(16))
    done = [group for group in groups if group.status == COMPLETED]
    failed = [group for group in groups if group.status == FAILED]
    assert done
    assert failed
    assert len(done) + len(failed) == 16
    assert {failure.boundary for group in failed for failure in group.failures} == {"worker"}
    monkeypatch.undo()
    calm = {group.number: group for group in rolled(spec(Counting), "sequential", 1, groups=16)}
    assert fingerprint(done) == fingerprint([calm[group.number] for group in done])


def test_the_number_of_workers_follows_the_engine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An engine that never waits gets fewer workers; and nothing is lost when some get no more groups."""
    monkeypatch.setattr("headrace.agents.ways._ADAPT_S", 0.1)
    monkeypatch.setattr("headrace.agents.ways.cores", lambda: 3)
    engine = Batched(ScriptedModel(latency=Latency(0.06)), Batching(max_wait_s=0.0))
    env = spec(Counting, steps=3, step_s=0.001)
    with (
        caplog.at_level(logging.INFO),
        hr.AgentRollouts([env], engine, -1, "threading", group_size=2, limits=Limits(max_live=6)) as one,
    ):
        groups = one.run(10)
    engine.close()
    assert "of 3 workers get groups" in caplog.text
    assert [group.number for group in groups] == list(range(10))
    assert fingerprint(groups) == fingerprint(rolled(spec(Counting, steps=3), "sequential", 1, groups=10))


# ------------------------------------------------------------------------------------------------ engines


class Failing(ScriptedModel):
    """Fails for a while, or for some requests."""

    def __init__(self, until: int = 0, seeds: int = 0) -> None:
        super().__init__(random_answers)
        self._until, self._seeds, self._calls = until, seeds, 0

    def run(self, requests: Sequence[Request]) -> list[Completion | EpisodeError]:
        self._calls += 1
        if self._calls <= self._until:
            raise ConnectionRefusedError("nobody listens")
        answers = super().run(requests)
        for at, request in enumerate(requests):
            if self._seeds and request.seed % self._seeds == 0:
                one = answers[at]
                assert isinstance(one, Completion)
                answers[at] = Completion(one.ids, one.log_probs[:-1], one.versions, one.text)
        return answers


@pytest.mark.parametrize(("backend", "n_jobs"), WAYS)
def test_an_engine_that_is_gone_and_back(backend: str, n_jobs: int) -> None:
    """The attempts that it cost are repeated: the record is the calm run's."""
    groups = rolled(spec(Counting), backend, n_jobs, model=Failing(until=1), limits=Limits(attempts=3))
    assert fingerprint(groups) == fingerprint(rolled(spec(Counting), "sequential", 1))


@pytest.mark.parametrize(("backend", "n_jobs"), WAYS[:2])
def test_wrong_log_probabilities_are_the_engines_failure(backend: str, n_jobs: int) -> None:
    groups = rolled(spec(Counting), backend, n_jobs, groups=8, model=Failing(seeds=7))
    failures = [failure for group in groups for failure in group.failures]
    assert failures
    assert {failure.boundary for failure in failures} == {"engine"}
    assert "log-probabilities" in failures[0].message


class Broken(ScriptedModel):
    """An engine that is no batch model: what it raises comes out of generate() itself, once."""

    is_text_only = False
    calls = 0

    def expect(self, live: int) -> None:
        pass

    def statistics(self) -> EngineStatistics:
        return EngineStatistics()

    def submit(self, request: Request) -> Future[Completion]:
        future: Future[Completion] = Future()
        (answer,) = self.run([request])
        assert isinstance(answer, Completion)
        future.set_result(answer)
        return future

    def generate(self, requests: Sequence[Request]) -> list[Completion | EpisodeError]:
        self.calls += 1
        if self.calls == 2:
            raise TimeoutError("a proxy's own")
        return self.run(requests)


def test_an_engine_that_raises_in_a_batch_costs_an_attempt() -> None:
    with hr.AgentRollouts([spec(Counting)], Broken(), 1, "sequential", group_size=2) as one:
        groups = one.run(3)
    assert {episode.attempts for group in groups for episode in group.episodes} == {2}
    assert fingerprint(groups) == fingerprint(rolled(spec(Counting), "sequential", 1, groups=3))


def test_an_engine_slower_than_the_deadline() -> None:
    groups = rolled(
        spec(Counting), groups=2, group_size=1, model=ScriptedModel(latency=Latency(0.6)),
        limits=Limits(engine_s=0.1, attempts=1),
    )  # fmt: skip
    assert [group.status for group in groups] == [FAILED, FAILED]
    assert groups[0].failures[0].boundary == "timeout"
    assert "the engine did not answer within 0.1 s" in groups[0].failures[0].message


def test_a_stall_is_explained(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rolled(
            spec(Counting, tag="Slow", step_s=1.2, steps=1), groups=1, group_size=1, limits=Limits(stall_s=0.3),
            n_jobs=1,
        )  # fmt: skip
    assert "no progress for" in caplog.text
    assert "waits" in caplog.text
    assert "the environment Slow, group 0 member 0" in caplog.text


# ------------------------------------------------------------------------------------- breaking off and going on


def test_stragglers_do_not_hold_up_the_others() -> None:
    """Heavy-tailed environments: groups come as they finish, not in the order of their numbers."""
    engine = scripted(latency=Latency(0.001))
    try:
        with hr.AgentRollouts([spec(Heavy)], engine, 2, "threading", group_size=2) as one:
            order = [group.number for group in one.stream(12)]
    finally:
        engine.close()
    assert sorted(order) == list(range(12))
    assert order != sorted(order)


def test_what_was_broken_off_is_played_first_next_time() -> None:
    engine = scripted(latency=Latency(0.002))
    try:
        with hr.AgentRollouts([spec(Counting)], engine, 2, "threading", group_size=2) as one:
            first = []
            for group in one.stream(10):
                first.append(group)
                if len(first) == 4:
                    break
            rest = one.run(6)
            later = one.run(2)
    finally:
        engine.close()
    assert sorted(group.number for group in [*first, *rest]) == list(range(10))
    assert [group.number for group in later] == [10, 11]
    assert fingerprint([*first, *rest]) == fingerprint(rolled(spec(Counting), "sequential", 1, groups=10))


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """For a socket: its path may have 107 bytes, and pytest's own folders have long names."""
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:
        yield Path(folder)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("backend", ["sequential", "lock-step", "threading", "loky", "multiprocessing"])
def test_broken_off_keeps_what_is_finished_and_resume_skips_nothing(
    backend: str, how: signal.Signals, tmp_path: Path, short_folder: Path
) -> None:
    """Ctrl-C or kill -9 in the middle, then the same directory again: every group once, the calm run's records."""
    program = textwrap.dedent(f"""
        import sys
        import headrace as hr
        from headrace.agents.engines.scripted import Latency, scripted
        from headrace.agents.limits import Limits
        from headrace.agents.records import fingerprint
        from support.agent_envs import Counting, spec

        if __name__ == "__main__":
            engine = scripted(latency=Latency(0.004))
            try:
                with hr.AgentRollouts(
                    [spec(Counting, step_s=0.02)], engine, 2, "{backend}", group_size=2, run_dir=sys.argv[1],
                    limits=Limits(max_live=4),
                ) as rollouts:
                    rollouts.on_group = lambda group: print("group", group.number, flush=True)
                    print("all", fingerprint(rollouts.run(24)), flush=True)
            finally:
                engine.close()
    """)
    script = tmp_path / "run.py"
    script.write_text(program)
    temporary = short_folder
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent), "TMPDIR": str(temporary)}
    command = [sys.executable, str(script), str(tmp_path / "run")]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    begun = [process.stdout.readline() for _ in range(3)]
    if not all(line.startswith("group") for line in begun):
        process.kill()
        raise AssertionError(f"{begun}: {process.communicate()[1]}")
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # as a terminal does: to everybody
    else:
        os.kill(process.pid, how)  # workers have to find out by themselves
    out, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "all" not in out
    wait_until(lambda: not living(process.pid))
    wait_until(lambda: not list(temporary.glob("headrace-agents-*")), 5.0)
    before = 3 + out.count("group")

    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert again.returncode == 0, again.stderr
    unseen = 24 - before - again.stdout.count("group")  # either signal may come between writing a group and saying so
    assert 0 <= unseen <= 1, "nothing is repeated, nothing is skipped"
    want = fingerprint(rolled(spec(Counting, step_s=0.0), "sequential", 1, groups=24))
    assert again.stdout.split()[-1] == want


@pytest.mark.parametrize("descendants", [1, 3])
@pytest.mark.parametrize("backend", ["loky", "multiprocessing"])
def test_killed_while_workers_start(backend: str, descendants: int, tmp_path: Path, short_folder: Path) -> None:
    """kill -9 as soon as there are so many processes: none of them, and no folder, is there ten seconds later."""
    program = textwrap.dedent(f"""
        import headrace as hr
        from support.agent_envs import Counting, spec

        if __name__ == "__main__":
            with hr.AgentRollouts([spec(Counting, step_s=0.05)], "scripted", 2, "{backend}", group_size=2) as rollouts:
                rollouts.run(400)
    """)
    script = tmp_path / "run.py"
    script.write_text(program)
    mark = f"HEADRACE_MARK={tmp_path.name}-{os.getpid()}-{backend}"
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "TMPDIR": str(short_folder),
        "JOBLIB_TEMP_FOLDER": str(short_folder),
        **dict([mark.split("=")]),
    }
    said = tmp_path / "said.txt"
    with said.open("wb") as out:  # not a pipe: who lives on would keep it open
        process = subprocess.Popen([sys.executable, str(script)], env=environment, stdout=out, stderr=out)
    try:
        wait_until(lambda: process.poll() is not None or len(marked(mark)) > descendants, 60.0)
        assert process.poll() is None, said.read_text()
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not marked(mark), 10.0)
    wait_until(lambda: not list(short_folder.iterdir()), 5.0)


def marked(mark: str) -> list[int]:
    """Processes that have an entry in their environment and have not exited."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_zombie = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            if not is_zombie and mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
    return pids


def living(session: int) -> list[str]:
    """Processes of a session that have not exited; whoever adopts the others reaps them."""
    told = subprocess.run(["ps", "-o", "stat=,args=", "-s", str(session)], capture_output=True, text=True).stdout
    return [line for line in told.splitlines() if not line.startswith("Z")]


def test_another_runs_directory_is_refused(tmp_path: Path) -> None:
    rolled(spec(Counting), groups=2, run_dir=tmp_path)
    with pytest.raises(UsageError, match=r"groups\.jsonl: its seed is 1, this run's is 2"):
        rolled(spec(Counting), groups=2, run_dir=tmp_path, seed=2)


def test_a_torn_journal_loses_one_group(tmp_path: Path) -> None:
    whole = rolled(spec(Counting), groups=4, run_dir=tmp_path)
    path = tmp_path / "groups.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    played: list[int] = []
    engine = scripted()
    try:
        with hr.AgentRollouts([spec(Counting)], engine, 1, "sequential", group_size=2, run_dir=tmp_path) as one:
            one.on_group = lambda group: played.append(group.number)
            again = one.run(4)
    finally:
        engine.close()
    assert len(played) == 1
    assert fingerprint(again) == fingerprint(whole)
