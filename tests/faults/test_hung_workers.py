"""Worker processes that hang, hang up, crash silently, leak, or crash again and again.

    hung          in make, reset, step or close, with or without the GIL, stopped: noticed at limit + 1 s, named with
                  its stack, replaced by replay to the calm run's bits. Slow is not hung
    gone          the line closed, another program, os._exit, SIGSEGV: named with signal, environment and episode
    worn out      more memory or episodes than allowed: replaced in order, same bits, no restart
    crash loop    one error that names the place; kills at random are no loop

Where bits are compared, restarts equal the number of faults: a fault that did not happen proves nothing.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.build import build_run
from headrace.envs.seeds import Purpose, leaf
from headrace.errors import HeadraceError, UsageError
from support.mishaps import at_close, at_reset, at_step, plan_mishap, times_s
from support.topology_runs import INLINE, SEED, Case, bits_of, processes
from support.waiting import is_gone, wait_until
from support.walks import WALK, Warnings, calm, named, walking

FLOOR_S, CEILING_S = 1.0, 40.0
HURRIED: dict[str, Any] = processes(1, hang_floor_s=FLOOR_S, hang_ceiling_s=CEILING_S)
LATEST_S = 1.0  # beyond the limit


def limit_of(text: str) -> tuple[float, float]:
    """(without a sign of life, limit) in seconds, as a message says."""
    quiet_s, limit_s = re.findall(r"([\d.]+) s", text)[:2]
    return float(quiet_s), float(limit_s)


# --- hung ------------------------------------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.parametrize(
    ("what", "function"),
    [
        ("gil", "holds_the_gil"),
        pytest.param("sleep", "sleeps_for_ever", marks=pytest.mark.full),
        ("spin", "spins_and_ignores_sigterm"),
        ("half", "says_half"),
    ],
)
def test_hung_in_step(what: str, function: str, tmp_path: Path, warned: Warnings) -> None:
    """Killed at its limit, named, replaced; the other worker is not."""
    began = plan_mishap(tmp_path, what, at_step(SEED, 3, 1, 7))
    with walking(tmp_path).start(**HURRIED | {"workers": "2"}) as run:
        episodes = WALK.advance(run, 2)
        pids = run.source.place.workers.pids
        episodes += WALK.advance(run, WALK.updates - 2)
        assert run.source.place.replaced.restarts == 1
        assert run.source.place.workers.pids[0] == pids[0]
        assert is_gone(pids[1])
        assert bits_of(run, episodes) == calm()
    (text,), (at_s,), (began_s,) = warned.texts, warned.at_s, times_s(began)
    first, _, stack = text.partition("\n")
    assert first.startswith(f"worker 1 (environments 2-3) hung in step() of {named(3, 1, 7)}: it gave no sign of life")
    assert first.endswith("; replaying its episodes")
    quiet_s, limit_s = limit_of(first)
    assert FLOOR_S <= limit_s <= quiet_s
    assert limit_s < at_s - began_s < limit_s + LATEST_S
    assert "most recent call first" in stack
    assert f"in {function}" in stack
    assert "in run_worker" not in stack, "what is above it is ours"


@pytest.mark.alone
def test_hung_in_reset(tmp_path: Path, warned: Warnings) -> None:
    began = plan_mishap(tmp_path, "gil", at_reset(SEED, 1, 2))
    with walking(tmp_path).start(**HURRIED) as run:
        assert bits_of(run, WALK.advance(run, WALK.updates)) == calm()
        assert run.source.place.replaced.restarts == 1
    (text,) = warned.texts
    where = f"env 1, episode 1:2, seed {leaf(SEED, Purpose.ENV, 1, 2)}: it gave"
    assert f"worker 0 (environments 0-3) hung in reset() of {where}" in text
    assert "in holds_the_gil" in text
    assert warned.at_s[0] - times_s(began)[0] < limit_of(text)[1] + LATEST_S


@pytest.mark.alone
def test_hung_in_make(tmp_path: Path, warned: Warnings) -> None:
    """At the first start, where nothing was learnt and the ceiling holds; the next process makes it."""
    began = plan_mishap(tmp_path, "sleep", "make")
    with walking(tmp_path).start(**processes(1, hang_floor_s=0.5, hang_ceiling_s=2.0)) as run:
        assert bits_of(run, WALK.advance(run, WALK.updates)) == calm()
        assert run.source.place.replaced.restarts == 1
    (text,) = warned.texts
    assert "worker 0 (environments 0-3) hung in make() of env 0: it gave no sign of life for" in text
    assert "in sleeps_for_ever" in text
    assert limit_of(text)[1] == 2.0
    assert warned.at_s[0] - times_s(began)[0] < 2.0 + LATEST_S


@pytest.mark.alone
def test_hung_in_close(tmp_path: Path, warned: Warnings) -> None:
    """It does not hold up the end of the run, and is named."""
    plan_mishap(tmp_path, "gil", at_close(SEED, 2, 2))
    with walking(tmp_path).start(**HURRIED) as run:
        assert bits_of(run, WALK.advance(run, WALK.updates)) == calm()
        pids, begun = run.source.place.workers.pids, time.monotonic()
    assert time.monotonic() - begun < 5.0
    assert all(map(is_gone, pids))
    (text,) = warned.texts
    assert text.startswith("worker 0 (environments 0-3) hung in close() of env 2 and was ended\n")
    assert "in holds_the_gil" in text


@pytest.mark.alone
def test_stopped_and_continued(tmp_path: Path, warned: Warnings) -> None:
    """SIGSTOP in a step until it is declared hung, SIGCONT all the while after: nothing is scribbled."""
    began = plan_mishap(tmp_path, "stop", at_step(SEED, 0, 0, 11))
    is_over = threading.Event()
    with walking(tmp_path).start(**HURRIED) as run:
        WALK.advance(run, 1)
        victim = run.source.place.workers.pids[0]

        def resurrect() -> None:
            wait_until(lambda: began.exists() or is_over.is_set())
            time.sleep(FLOOR_S)
            while not is_over.is_set() and not is_gone(victim):
                if warned.texts:
                    os.kill(victim, signal.SIGCONT)
                time.sleep(0.001)

        thread = threading.Thread(target=resurrect)
        thread.start()
        try:
            WALK.advance(run, WALK.updates - 1)
        finally:
            is_over.set()
            thread.join()
        assert run.source.place.replaced.restarts == 1
        assert run.hashes()["weights_sha256"] == calm().weights_sha256
    (text,) = warned.texts
    assert f"hung in step() of {named(0, 0, 11)}" in text
    assert "no Python stack: the process is stopped (SIGSTOP)" in text


@pytest.mark.alone
def test_stopped_while_idle(warned: Warnings) -> None:
    """Between two updates, when no environment is at anything: it does not take its next order."""
    with WALK.start(**HURRIED) as run:
        episodes = WALK.advance(run, 2)
        place = run.source.place
        wait_until(lambda: place.replace_lost() == [] and not any(place.workers.owed))  # the third rollout is done
        os.kill(place.workers.pids[0], signal.SIGSTOP)
        episodes += WALK.advance(run, 1)
        assert run.source.place.replaced.restarts == 0
        begun = time.monotonic()
        episodes += WALK.advance(run, 1)
        noticed_s = time.monotonic() - begun
        assert run.source.place.replaced.restarts == 1
        episodes += WALK.advance(run, WALK.updates - 4)
        assert bits_of(run, episodes) == calm()
    (text,) = warned.texts
    assert "worker 0 (environments 0-3) hung outside of its environments: it gave no sign of life for" in text
    assert noticed_s < limit_of(text)[1] + LATEST_S + 2.0, "its successor's start and slab included"


@pytest.mark.alone
def test_slow_is_not_hung(tmp_path: Path, warned: Warnings) -> None:
    """Steps of 1.4 s after steps of no time at all, below the limit."""
    for step in range(8, 11):
        plan_mishap(tmp_path, "slow", at_step(SEED, 3, 0, step))
    with walking(tmp_path).start(**processes(1, hang_floor_s=2.0, hang_ceiling_s=CEILING_S)) as run:
        assert bits_of(run, WALK.advance(run, WALK.updates)) == calm()
        assert run.source.place.replaced.restarts == 0
    assert warned.texts == []


@pytest.mark.alone
def test_the_limit_follows_what_was_seen(tmp_path: Path, warned: Warnings) -> None:
    """Steps of 1.4 s raise the limit, here to the ceiling: a hang is noticed then, and not at the floor."""
    for step in (3, 4):
        plan_mishap(tmp_path, "slow", at_step(SEED, 2, 0, step))
    began = plan_mishap(tmp_path, "sleep", at_step(SEED, 2, 0, 17))
    with walking(tmp_path).start(**processes(1, hang_floor_s=2.0, hang_ceiling_s=8.0)) as run:
        assert bits_of(run, WALK.advance(run, WALK.updates)) == calm()
        assert run.source.place.replaced.restarts == 1
    (text,) = warned.texts
    assert limit_of(text)[1] == 8.0, "10 x 1.4 s, but at most the ceiling"
    assert 8.0 < warned.at_s[0] - times_s(began)[0] < 8.0 + LATEST_S


@pytest.mark.full
def test_watching_can_be_turned_off(tmp_path: Path, warned: Warnings) -> None:
    plan_mishap(tmp_path, "slow", at_step(SEED, 3, 0, 9))
    with walking(tmp_path).start(**processes(1, hang_floor_s=0.3, hang_ceiling_s=0.0)) as run:
        assert bits_of(run, WALK.advance(run, WALK.updates)) == calm()
        assert (run.source.place.replaced.restarts, warned.texts) == (0, [])


@pytest.mark.alone
def test_a_hung_pool_ends_the_run_with_its_name() -> None:
    """Class B can't be replayed."""
    pool = Case("pool", "support.worker_envs:hanging_pool", n_envs=4)
    with (
        pool.start(**HURRIED) as run,
        pytest.raises(HeadraceError, match=r"\) hung in step\(\) of env \d, .*its pool\).*class B") as caught,
    ):
        pool.advance(run, 4)
    assert "in sleeps_for_ever" in "".join(caught.value.__notes__)


# --- gone ------------------------------------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.parametrize("what", ["hang-up", "exec"])
def test_a_worker_that_hangs_up_and_lives(what: str, tmp_path: Path, warned: Warnings) -> None:
    """Noticed at once; the parent neither spins nor waits for it."""
    began = plan_mishap(tmp_path, what, at_step(SEED, 1, 0, 12))
    with walking(tmp_path).start(**processes(1)) as run:
        episodes, used_s = WALK.advance(run, 1), time.process_time()
        episodes += WALK.advance(run, 1)
        used_s = time.process_time() - used_s
        assert run.source.place.replaced.restarts == 1
        episodes += WALK.advance(run, WALK.updates - 2)
        assert bits_of(run, episodes) == calm()
    (text,) = warned.texts
    assert text == (
        "worker 0 (environments 0-3) died: closed its line to the learner or became another program, and was ended "
        f"in step() of {named(1, 0, 12)}; replaying its episodes"
    )
    assert warned.at_s[0] - times_s(began)[0] < 1.0
    assert used_s < 1.0


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("exit", "exit code 3"),
        ("segfault", "killed by signal 11 (SIGSEGV)"),
        pytest.param("kill", "killed by signal 9 (SIGKILL)", marks=pytest.mark.full),
    ],
)
def test_silent_deaths_are_named(what: str, how: str, tmp_path: Path, warned: Warnings) -> None:
    plan_mishap(tmp_path, what, at_step(SEED, 2, 1, 5))
    with walking(tmp_path).start(**processes(1)) as run:
        assert bits_of(run, WALK.advance(run, WALK.updates)) == calm()
        assert run.source.place.replaced.restarts == 1
    first, _, stack = warned.texts[0].partition("\n")
    assert first == f"worker 0 (environments 0-3) died: {how} in step() of {named(2, 1, 5)}; replaying its episodes"
    assert ("Segmentation fault" in stack and "in _meet" in stack) == (what == "segfault")


# --- worn out --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["memory", "episodes"])
def test_a_worn_out_worker_is_replaced(limit: str, warned: Warnings) -> None:
    """A leak of a megabyte a step; nothing is lost, no restart is counted, and no bit changes."""
    leaky = Case("leaky", "support.mishaps:Leaks", n_envs=4, updates=8, kwargs={"limit": 20})
    place, want = processes(1), leaky.play(**INLINE)
    if limit == "episodes":
        place["worker_max_episodes"] = 2
    else:
        with leaky.start(**place) as run:
            leaky.advance(run, 1)
            place["worker_max_memory_mb"] = int(used_mb(run.source.place.workers.pids[0])) + 90
    with leaky.start(**place) as run:
        episodes = leaky.advance(run, leaky.updates - 1)
        update = run.update(leaky.total_timesteps)
        assert bits_of(run, [*episodes, *update.harvest.finished]) == want
        assert run.source.place.replaced.restarts == 0
        assert update.record["headrace/recycled"] >= 2
        assert update.record["headrace/restarts"] == 0
    assert warned.texts == []


def test_a_replay_that_leaks_more_than_the_limit_is_no_error(warned: Warnings) -> None:
    """Said once; the worker stays until an episode has ended, and no bit changes."""
    leaky = Case("leaky", "support.mishaps:Leaks", n_envs=4, updates=12, kwargs={"limit": 60})
    place, want = processes(1), leaky.play(**INLINE)
    with leaky.start(**place) as run:
        leaky.advance(run, 1)
        place["worker_max_memory_mb"] = int(used_mb(run.source.place.workers.pids[0])) + 60
    said: list[str] = []
    with leaky.start(**place) as run:
        run.source.say = said.append
        assert bits_of(run, leaky.advance(run, leaky.updates)) == want
        assert run.source.place.replaced.restarts == 0
        assert 1 <= run.source.place.replaced.recycled <= 6, "not at every rollout"
    (text,) = warned.texts
    assert re.match(r"worker_max_memory_mb is \d+, and worker 0 uses \d+ MB once it has replayed its episodes", text)
    assert said.count(f"warning: {text}") == 1


@pytest.mark.full
def test_worn_out_workers_of_an_asynchronous_run(warned: Warnings) -> None:
    """Rollouts that a worker had no time for are ordered anew, with newer weights; every step is accounted for."""
    with WALK.start(**processes(2, max_lag=2, worker_max_episodes=1)) as run:
        WALK.advance(run, 2 * WALK.updates)
        assert (run.source.place.replaced.restarts, warned.texts) == (0, [])
        assert run.source.place.replaced.recycled >= 4
        assert run.source.ledger.produced == run.source.ledger.consumed == 2 * WALK.total_timesteps


def used_mb(pid: int) -> float:
    _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.full
def test_recycled_outlives_a_change_of_workers() -> None:
    with WALK.build(**processes(2, worker_max_episodes=1)) as (run, parts):
        WALK.advance(run, 4)
        before = run.update(WALK.total_timesteps).record["headrace/recycled"]
        assert before >= 2
        parts.rescale(1)
        assert run.update(WALK.total_timesteps).record["headrace/recycled"] >= before


def test_a_limit_that_a_fresh_worker_exceeds_is_refused() -> None:
    with (
        WALK.start(**processes(1, worker_max_memory_mb=1)) as run,
        pytest.raises(
            HeadraceError, match=r"worker_max_memory_mb: expected more than .*, got 1; worker \d uses \d+ MB"
        ),
    ):
        WALK.advance(run, 1)


def test_pools_can_not_be_recycled() -> None:
    pool = Case("pool", "support.worker_envs:pool", n_envs=4)
    with pytest.raises(UsageError, match=r"worker_max_episodes replace workers by replay.*class B"):
        build_run(pool.config(**processes(2, worker_max_episodes=3)))


# --- crash loops -----------------------------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.parametrize(
    "place",
    [processes(1, shards=2), pytest.param(processes(2), marks=pytest.mark.full)],
    ids=["a worker of 2 shards", "2 workers"],
)
def test_the_same_step_three_times(place: dict[str, Any], tmp_path: Path, warned: Warnings) -> None:
    """One error that names it, soon; also if the worker's other shard commits something every time."""
    began = plan_mishap(tmp_path, "exit", at_step(SEED, 3, 0, 12), always=True)
    with walking(tmp_path).start(**place) as run:
        WALK.advance(run, 1)
        begun = time.monotonic()
        with pytest.raises(HeadraceError) as caught:
            WALK.advance(run, 2)
        assert time.monotonic() - begun < 30.0
        assert run.source.place.replaced.restarts == 2
    last, envs = int(place["workers"]) - 1, "2-3" if place["workers"] == "2" else "0-1, 2-3"
    assert str(caught.value) == (
        f"worker {last} was lost 3 times at the same place, last: exit code 3 in step() of {named(3, 0, 12)} "
        f"(environments {envs}); look at the environment's own log or run with topology=inline"
    )
    assert len(times_s(began)) == 3
    assert len(warned.texts) == 2


@pytest.mark.alone
@pytest.mark.full
def test_hung_at_the_same_step_three_times(tmp_path: Path) -> None:
    """It says what to do if it is only slow, and shows the stack."""
    plan_mishap(tmp_path, "sleep", at_step(SEED, 3, 0, 12), always=True)
    with walking(tmp_path).start(**HURRIED) as run:
        with pytest.raises(
            HeadraceError, match=r"3 times at the same place, last: hung in step.*raise hang_floor_s"
        ) as e:
            WALK.advance(run, WALK.updates)
        assert run.source.place.replaced.restarts == 2
    assert "in sleeps_for_ever" in "".join(e.value.__notes__)


def test_kills_at_random_are_no_loop(tmp_path: Path, warned: Warnings) -> None:
    """In every rollout, three times in one of them, always in the same environment: each at its own step."""
    steps = [*range(3, 48, 8), 20, 21]
    for step in steps:
        plan_mishap(tmp_path, "kill", at_step(SEED, 0, step // 20, step % 20))
    with walking(tmp_path).start(**processes(1)) as run:
        assert bits_of(run, WALK.advance(run, WALK.updates)) == calm()
        assert run.source.place.replaced.restarts == len(steps) == len(warned.texts)


def test_killed_while_it_starts_for_the_first_time(tmp_path: Path, warned: Warnings) -> None:
    """It need not come up at once; five times in a row is too often (test_workers). It is said, and not only logged."""
    plan_mishap(tmp_path, "kill", "make")
    said: list[str] = []
    with walking(tmp_path).start(**processes(1)) as run:
        run.source.say = said.append
        assert bits_of(run, WALK.advance(run, WALK.updates)) == calm()
        assert run.source.place.replaced.restarts == 1
    assert "died: killed by signal 9 (SIGKILL) in make() of env " in warned.texts[0]
    assert [line for line in said if line.startswith("warning: ")] == [f"warning: {warned.texts[0]}"]


# --- both at once ----------------------------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.full
def test_hung_in_close_while_it_retires(tmp_path: Path, warned: Warnings) -> None:
    """In the middle of a run: noticed at the limit, replaced, same bits; that one counts as a restart."""
    plan_mishap(tmp_path, "gil", at_close(SEED, 1, 1))
    with walking(tmp_path).start(**HURRIED, worker_max_episodes=4) as run:
        assert bits_of(run, WALK.advance(run, WALK.updates)) == calm()
        assert run.source.place.replaced.restarts == 1
    (text,) = warned.texts
    assert text.startswith("worker 0 (environments 0-3) hung in close() of env 1: it gave no sign of life for ")
