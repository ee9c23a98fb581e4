"""Environments that raise in worker processes: the worker is replaced, same bits, or the run ends with one error.

    a mishap      raised once, in make, reset, step, in a replay, before a retirement: replaced, told with its traceback
    a bug         the same place three times: one error as inline has it, with place and traceback, however many workers
    no mishap     malformed returns, NaN, KeyboardInterrupt: the run ends at once

Where bits are compared, restarts equal the number of faults: a fault that did not happen proves nothing.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.build import build_run
from headrace.envs.seeds import Purpose, leaf
from headrace.errors import EnvError, EnvRaised, HeadraceError
from support.command import end, start
from support.faulty_envs import Faulty
from support.mishaps import at_close, at_reset, at_step, plan_mishap, times_s
from support.topology_runs import SEED, Case, bits_of, processes
from support.waiting import is_gone
from support.walks import WALK, Warnings, calm, named, walking

LOOP_S = 30.0  # for a crash loop to end the run


def advance(folder: Path, place: dict[str, Any], restarts: int) -> Any:
    """The whole run; returns its last record."""
    with walking(folder).start(**place) as run:
        finished, record = [], {}
        for _ in range(WALK.updates):
            update = run.update(WALK.total_timesteps)
            finished += update.harvest.finished
            record = update.record
        assert run.source.place.replaced.restarts == restarts
        assert run.totals().env_failures == record["headrace/env_failures"] == restarts
        assert bits_of(run, finished) == calm()
    return record


def test_raised_once_in_a_step(tmp_path: Path, warned: Warnings) -> None:
    """The worker is replaced, the other one is not; the warning has the whole traceback."""
    plan_mishap(tmp_path, "raise", at_step(SEED, 3, 1, 7))
    said: list[str] = []
    with walking(tmp_path).start(**processes(2)) as run:
        run.source.say = said.append
        episodes = WALK.advance(run, 2)
        pids = run.source.place.workers.pids
        episodes += WALK.advance(run, WALK.updates - 2)
        assert (run.source.place.replaced.restarts, run.totals().env_failures) == (1, 1)
        assert run.source.place.workers.pids[0] == pids[0]
        assert is_gone(pids[1])
        assert bits_of(run, episodes) == calm()
    (text,) = warned.texts
    first, _, traceback = text.partition("\n")
    what = "the environment raised DroppedError: the connection to the simulator dropped"
    assert first == (
        f"worker 1 (environments 2-3): {named(3, 1, 7)}: {what}; a fresh worker replays its episodes "
        f"(replacement 1 of env_retries=100)"
    )
    assert traceback.startswith("Traceback (most recent call last)")
    assert "in raises\n" in traceback
    assert "DroppedError: the connection to the simulator dropped" in traceback
    assert f"warning: {text}" in said


@pytest.mark.parametrize(
    ("what", "point"),
    [
        pytest.param("raise", at_reset(SEED, 1, 0), marks=pytest.mark.full),
        ("raise", at_reset(SEED, 1, 2)),
        ("sys-exit", at_step(SEED, 0, 1, 3)),
        pytest.param("raise-long", at_step(SEED, 2, 0, 19), marks=pytest.mark.full),
        pytest.param("raise", "make", marks=pytest.mark.full),
    ],
)
def test_raised_once_elsewhere(what: str, point: str, tmp_path: Path, warned: Warnings) -> None:
    began = plan_mishap(tmp_path, what, point)
    advance(tmp_path, processes(1), restarts=1)
    assert len(times_s(began)) == len(warned.texts) == 1
    assert len(warned.texts[0]) < 100_000


def test_raised_again_in_the_replay_and_in_close(tmp_path: Path, warned: Warnings) -> None:
    """The fresh worker meets another mishap while it replays, and can't be closed: replaced once more, same bits."""
    plan_mishap(tmp_path, "raise", at_step(SEED, 3, 1, 7))
    plan_mishap(tmp_path, "raise", at_close(SEED, 3, 1))
    with walking(tmp_path).start(**processes(1)) as run:
        episodes = WALK.advance(run, 3)  # 24 steps: episode 1 of env 3 is at its fifth
        assert run.totals().env_failures == 0
        plan_mishap(tmp_path, "exit", at_step(SEED, 0, 1, 5))
        plan_mishap(tmp_path, "raise", at_step(SEED, 1, 1, 2))  # which was taken before: only a replay comes here
        plan_mishap(tmp_path, "raise", at_close(SEED, 0, 1))  # in that replay, too: what is told is the step
        episodes += WALK.advance(run, WALK.updates - 3)
        assert (run.source.place.replaced.restarts, run.totals().env_failures) == (3, 2)
        assert bits_of(run, episodes) == calm()
    assert sum("would not be closed" in text or "could not be closed" in text for text in warned.texts) == 1
    assert f"{named(1, 1, 2)}: the environment raised" in "".join(warned.texts)


@pytest.mark.full
def test_raised_by_a_worker_that_retires(tmp_path: Path) -> None:
    """It has had its episodes and raises in what it was still to do: lost, not retired."""
    plan_mishap(tmp_path, "raise", at_step(SEED, 3, 1, 7))
    place = processes(1, worker_max_episodes=4)
    with walking(tmp_path).start(**place) as run:
        assert bits_of(run, WALK.advance(run, WALK.updates)) == calm()
        assert run.source.place.replaced.restarts == 1


@pytest.mark.full
def test_hung_in_close_after_it_raised(tmp_path: Path, warned: Warnings) -> None:
    """It is not waited for, and what it raised is what is told."""
    plan_mishap(tmp_path, "raise", at_step(SEED, 2, 1, 7))
    plan_mishap(tmp_path, "gil", at_close(SEED, 0, 1))
    advance(tmp_path, processes(1), restarts=1)
    (text,) = warned.texts
    assert f"{named(2, 1, 7)}: the environment raised DroppedError" in text


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.full), 3])
def test_the_same_step_three_times(workers: int, tmp_path: Path, warned: Warnings) -> None:
    """A bug: one error, the same as inline, with the traceback and what was tried."""
    began = plan_mishap(tmp_path, "raise", at_step(SEED, 3, 0, 12), always=True)
    with walking(tmp_path).start(**processes(workers)) as run, pytest.raises(EnvRaised) as caught:
        WALK.advance(run, WALK.updates)
    what = "the environment raised DroppedError: the connection to the simulator dropped"
    assert str(caught.value) == f"{named(3, 0, 12)}: {what}"
    (note,) = caught.value.__notes__
    assert note.startswith(f"In headrace-worker-{workers - 1}:\nTraceback (most recent call last)")
    assert "in raises\n" in note
    last = note.splitlines()[-1]
    assert last.startswith(f"worker {workers - 1} was lost 3 times at the same place (environments ")
    assert last.endswith("each time in a fresh process. env_retries=0 ends a run at the first")
    began_s = times_s(began)
    assert len(began_s) == 3
    assert time.time() - began_s[0] < LOOP_S
    assert len(warned.texts) == 2


def test_every_environment_of_every_worker_raises(tmp_path: Path) -> None:
    """One error all the same."""
    for env in range(4):
        plan_mishap(tmp_path, "raise", at_reset(SEED, env, 1), always=True)
    begun = time.monotonic()
    with walking(tmp_path).start(**processes(2)) as run, pytest.raises(EnvRaised) as caught:
        WALK.advance(run, WALK.updates)
    assert time.monotonic() - begun < LOOP_S
    assert "raised DroppedError" in str(caught.value)
    assert caught.value.__context__ is None
    assert len(caught.value.__notes__) == 1


def test_an_environment_that_can_not_be_made(tmp_path: Path) -> None:
    """In workers: named by its index, after three attempts."""
    began = plan_mishap(tmp_path, "raise", "make", always=True)
    with walking(tmp_path).start(**processes(1)) as run, pytest.raises(EnvRaised) as caught:
        WALK.advance(run, 1)
    assert str(caught.value).startswith("env 0: support.bit_envs:LongWalk: wrapper ")
    assert "raised DroppedError: the connection to the simulator dropped" in str(caught.value)
    assert len(times_s(began)) == 3
    assert time.time() - times_s(began)[0] < LOOP_S


def test_raising_here_and_there_is_no_loop(tmp_path: Path) -> None:
    """More often than three times, or five: never at one place, and with results in between."""
    points = [(0, 0, 3), (1, 0, 11), (2, 0, 19), (3, 1, 0), (0, 1, 9), (1, 1, 17)]
    for point in points:
        plan_mishap(tmp_path, "raise", at_step(SEED, *point))
    advance(tmp_path, processes(1), restarts=len(points))


def test_more_than_env_retries(tmp_path: Path) -> None:
    for point in ((0, 0, 3), (1, 0, 11), (2, 0, 19)):
        plan_mishap(tmp_path, "raise", at_step(SEED, *point))
    with walking(tmp_path).start(**processes(1, env_retries=2)) as run, pytest.raises(EnvRaised) as caught:
        WALK.advance(run, WALK.updates)
    assert str(caught.value).startswith(f"{named(2, 0, 19)}: the environment raised DroppedError")
    assert "work keeps failing: workers were started again 2 times" in caught.value.__notes__[0]


def test_no_retries(tmp_path: Path, warned: Warnings) -> None:
    began = plan_mishap(tmp_path, "raise", at_step(SEED, 3, 0, 12), always=True)
    with walking(tmp_path).start(**processes(2, env_retries=0)) as run, pytest.raises(EnvRaised) as caught:
        WALK.advance(run, WALK.updates)
    assert len(times_s(began)) == 1
    assert caught.value.__notes__[0].startswith("In headrace-worker-1:\nTraceback")
    assert warned.texts == []


def test_an_environment_that_asks_for_the_end(tmp_path: Path) -> None:
    """KeyboardInterrupt is no mishap."""
    began = plan_mishap(tmp_path, "interrupt", at_step(SEED, 3, 0, 12), always=True)
    with (
        walking(tmp_path).start(**processes(1)) as run,
        pytest.raises(EnvError, match="raised KeyboardInterrupt") as caught,
    ):
        WALK.advance(run, WALK.updates)
    assert not isinstance(caught.value, EnvRaised)
    assert len(times_s(began)) == 1


@pytest.mark.parametrize(
    "fault", ["four_values", *(pytest.param(fault, marks=pytest.mark.full) for fault in ("text_reward", "nan_reward"))]
)
def test_what_is_returned_is_no_mishap(fault: str, warned: Warnings) -> None:
    """A malformed return, or NaN: a bug, which a fresh process would repeat."""
    case = Case("faulty", "support.faulty_envs:Faulty", 4, 9, 4, {"fault": fault})
    run, _ = build_run(replace(case.config(**processes(1)), seed=Faulty.SEED))
    try:
        with pytest.raises(HeadraceError) as caught:
            case.advance(run, case.updates)
        assert run.totals().env_failures == 0
    finally:
        run.close()
    assert Faulty.PLACE in str(caught.value)
    assert not isinstance(caught.value, EnvRaised)
    assert warned.texts == []


@pytest.mark.parametrize("is_loop", [pytest.param(False, marks=pytest.mark.full), True])
def test_the_command(is_loop: bool, tmp_path: Path) -> None:
    """Terminal, log.txt and result.json say what happened."""
    plans, out = tmp_path / "plans", tmp_path / "out"
    plans.mkdir()
    plan_mishap(plans, "raise", at_step(5, 1, 0, 12), always=is_loop)
    process = start(
        "train", "support.mishaps:walk", "--env-kwargs", json.dumps({"folder": str(plans)}), "--seed", "5",
        "--n-envs", "2", "--n-steps", "16", "--batch-size", "16", "--n-epochs", "1", "--total-timesteps", "128",
        "--topology", "processes", "--workers", "1", "--run-dir", str(out), cwd=tmp_path, has_report=False,
    )  # fmt: skip
    outcome = end(process)
    place = f"env 1, episode 1:0, seed {leaf(5, Purpose.ENV, 1, 0)}, step 12: the environment raised DroppedError"
    result, log = json.loads((out / "result.json").read_text()), (out / "log.txt").read_text()
    assert outcome.code == result["exit_code"] == int(is_loop)
    assert (result["restarts"], result["env_failures"]) == ((2, 2) if is_loop else (1, 1))
    for text in (outcome.out, log):
        assert place in text
        assert "in raises\n" in text
        assert "replacement 1 of env_retries=100" in text
    if is_loop:
        assert outcome.err.count("Traceback (most recent call last)") >= 1
        assert "in raises\n" in outcome.err
        assert outcome.err.count("headrace: ") == 1 or outcome.error.count(place) == 1
        assert result["exit_reason"].startswith(f"error: {place}")
        assert log.count("the run failed") == 1
