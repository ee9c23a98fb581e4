"""Kills of any process of a run, at any moment: workers, spares, the fork server, the resource tracker, the learner.

    the learner                     everything else is gone within seconds, shared memory too, whatever it was doing
    a worker                        what its environments have spawned goes with it; a warm spare takes its place
    the fork server                 at rest nobody notices; while a worker is started or replaced, another one begins
    a spare, the resource tracker   replaced without a word of ours
    one after the other, at random  the calm run's bits, and as many restarts as workers were killed

What cannot be shown in the tests' own process (its resource tracker must live) runs in a learner of its own.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
from functools import partial
from pathlib import Path

import pytest

import headrace as hr
from headrace.collecting.processes import Processes
from headrace.errors import HeadraceError
from headrace.runtime import child, standby
from headrace.runtime.fork_server import ForkServer
from headrace.runtime.standby import Standby
from headrace.train import Run
from support.learners import NOISY, STEPS, learner, tracker_of, wait_for
from support.topology_runs import CASES, bits_of, calm, processes
from support.waiting import family, is_gone, segments_of_processes, wait_until
from support.worker_envs import Spawns

GONE_S = 10.0


def standby_of(run: Run) -> Standby:
    assert isinstance(run.source.place, Processes)
    return run.source.place.workers.standby


def spare_of(run: Run) -> int | None:
    """The process that waits, if there is one."""
    return next(iter(standby_of(run).spare_pids), None)


def server_of(run: Run) -> list[int]:
    return standby_of(run).server_pids


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid))


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


# --- the learner -----------------------------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.full)])
def test_nothing_outlives_the_learner(method: str, tmp_path: Path) -> None:
    """Workers in C calls of minutes that hold the GIL, and what their environments have spawned."""
    kwargs = {"folder": str(tmp_path), "holds": True}
    with learner(tmp_path, env="support.worker_envs:spawning", env_kwargs=kwargs, start_method=method) as process:
        wait_until(lambda: len(list(tmp_path.glob("holds-*"))) == 2 or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        members = family(process.pid)
        spawned = {int(file.name.partition("-")[2]) for file in tmp_path.glob("spawned-*")}
        segments = segments_of_processes(members)
        assert len(spawned) == 4
        assert spawned <= members
        assert len(segments) == 3, "the ring's, the weights' and the crash notes'"
        process.kill()
        process.wait()
    wait_until(lambda: all(map(is_gone, members)) and not any(path.exists() for path in segments), GONE_S)


# --- the resource tracker --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["error", pytest.param("always", marks=pytest.mark.full)])
def test_the_resource_tracker_is_killed(how: str, tmp_path: Path) -> None:
    """The run goes on to the same bits, without a warning of Python's, and removes its memory at the end."""
    (tmp_path / "wait").touch()
    with learner(tmp_path, "-W", how) as process:
        wait_for(process, tmp_path / "update-1")
        members = family(process.pid)
        segments, tracker = segments_of_processes(members), tracker_of(process)
        assert len(segments) == 3
        assert tracker is not None
        kill(tracker)
        (tmp_path / "wait").unlink()
        out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert not any(path.exists() for path in segments)
    wait_until(lambda: all(map(is_gone, members)))
    with hr.PPO("MlpPolicy", NOISY, n_envs=4, n_steps=16, seed=1, topology="inline") as model:
        model.learn(STEPS)
        assert model.result is not None
        assert out.split() == [model.result.weights_sha256, "0"]


@pytest.mark.alone
def test_the_resource_tracker_is_killed_and_later_the_learner(tmp_path: Path) -> None:
    """The tracker that Python starts anew is given the names of the run's memory."""
    (tmp_path / "wait").touch()
    with learner(tmp_path) as process:
        wait_for(process, tmp_path / "update-1")
        segments, first = segments_of_processes(family(process.pid)), tracker_of(process)
        assert len(segments) == 3
        assert first is not None
        kill(first)
        (tmp_path / "wait").rename(tmp_path / "go")
        wait_for(process, tmp_path / "update-2")
        (tmp_path / "go").rename(tmp_path / "wait")
        wait_until(lambda: tracker_of(process) not in (None, first))
        members = family(process.pid)
        process.kill()
        process.wait()
    wait_until(lambda: all(map(is_gone, members)) and not any(path.exists() for path in segments), GONE_S)


# --- workers and what they have spawned ------------------------------------------------------------------------------


def test_what_an_environment_has_spawned_goes_with_its_worker(tmp_path: Path) -> None:
    """When the worker is killed, and when the run ends; the others' stay as long as they are needed."""

    def spawned() -> set[int]:
        return {int(file.name.partition("-")[2]) for file in tmp_path.glob("spawned-*")}

    case = CASES["noisy"].wrapped(partial(Spawns, folder=str(tmp_path)))
    with case.start(**processes(2)) as run:
        episodes = case.advance(run, 1)
        first = spawned()
        victim = run.source.place.workers.pids[0]
        lost = first & family(victim)
        assert (len(first), len(lost)) == (case.n_envs, 7)
        kill(victim)
        episodes += case.advance(run, case.updates - 1)
        wait_until(lambda: all(map(is_gone, lost)), GONE_S)
        assert not any(map(is_gone, spawned() - lost))
        assert len(spawned()) == case.n_envs + 7
        assert bits_of(run, episodes) == calm("noisy")
    wait_until(lambda: all(map(is_gone, spawned())), GONE_S)


# --- spares ----------------------------------------------------------------------------------------------------------


def test_a_spare_takes_the_place_of_a_worker(caplog: pytest.LogCaptureFixture) -> None:
    """The very process that waited; another one is started behind it. A spare that is killed is nobody's loss."""
    case = CASES["noisy"]
    with case.start(**processes(2)) as run:
        episodes = case.advance(run, 1)
        wait_until(lambda: spare_of(run) is not None)
        killed = spare_of(run)
        assert killed is not None
        kill(killed)
        episodes += case.advance(run, 1)
        waits = spare_of(run)
        assert waits not in (None, killed)
        assert (warnings_in(caplog), run.source.place.replaced.restarts) == ([], 0)
        kill(run.source.place.workers.pids[1])
        episodes += case.advance(run, case.updates - 2)
        assert run.source.place.workers.pids[1] == waits
        assert spare_of(run) not in (None, waits)
        assert run.source.place.replaced.restarts == 1
        assert bits_of(run, episodes) == calm("noisy")


def test_no_spares() -> None:
    """spares=0: nobody waits, and a worker that dies is replaced all the same."""
    case = CASES["noisy"]
    with case.start(**processes(2, spares=0)) as run:
        episodes = case.advance(run, 2)
        assert spare_of(run) is None
        kill(run.source.place.workers.pids[0])
        episodes += case.advance(run, case.updates - 2)
        assert spare_of(run) is None
        assert run.source.place.replaced.restarts == 1
        assert bits_of(run, episodes) == calm("noisy")


# --- the fork server -------------------------------------------------------------------------------------------------


def test_the_fork_server_is_killed_at_rest(caplog: pytest.LogCaptureFixture) -> None:
    """No worker notices; another server comes up behind them, and forks a spare again."""
    case = CASES["noisy"]
    with case.start(**processes(2)) as run:
        episodes = case.advance(run, 1)
        workers, (server,) = run.source.place.workers.pids, server_of(run)
        kill(server)
        episodes += case.advance(run, 1)
        assert run.source.place.workers.pids == workers
        assert server_of(run) not in ([], [server])
        wait_until(lambda: run.source.place.replace_lost() == [] and spare_of(run) is not None)
        episodes += case.advance(run, case.updates - 2)
        assert run.source.place.workers.pids == workers
        assert (warnings_in(caplog), run.source.place.replaced.restarts) == ([], 0)
        assert bits_of(run, episodes) == calm("noisy")


@pytest.mark.parametrize("spares", [0, 1])
def test_the_fork_server_is_killed_with_a_worker(spares: int, caplog: pytest.LogCaptureFixture) -> None:
    """With a spare nobody waits for the new server; without one, the worker's successor comes from it."""
    case = CASES["noisy"]
    with case.start(**processes(2, spares=spares)) as run:
        episodes = case.advance(run, 2)
        (server,) = server_of(run)
        kill(server)
        kill(run.source.place.workers.pids[1])
        episodes += case.advance(run, case.updates - 2)
        assert run.source.place.replaced.restarts == 1
        assert server_of(run) not in ([], [server])
        assert bits_of(run, episodes) == calm("noisy")
    (warning,) = warnings_in(caplog)
    assert "worker 1 (environments 7-12) died: exit code unknown, because the fork server" in warning


def test_a_worker_that_can_not_be_replaced_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one clear error, and nothing left behind."""
    case = CASES["noisy"]
    monkeypatch.setattr(standby, "_PAUSE_S", 0.01)
    with case.start(**processes(2, spares=0)) as run:
        case.advance(run, 2)
        kill(run.source.place.workers.pids[1])
        monkeypatch.setattr(ForkServer, "fork", out_of_processes)
        with pytest.raises(
            HeadraceError, match=r"headrace-worker-1 could not be started, 5 times in a row; last: .*EAGAIN"
        ):
            case.advance(run, 2)
        assert run.source.place.replaced.restarts == 0


def test_orders_do_not_overtake_a_long_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that takes another's place is ordered at once, before it has read where its environments stand."""
    case = CASES["noisy"]
    monkeypatch.setattr(child, "_AT_ONCE", 0)  # every assignment counts as long
    with case.start(**processes(2)) as run:
        episodes = case.advance(run, 2)
        kill(run.source.place.workers.pids[1])
        episodes += case.advance(run, case.updates - 2)
        assert run.source.place.replaced.restarts == 1
        assert bits_of(run, episodes) == calm("noisy")


def test_a_spare_that_was_stopped_takes_nobodys_place() -> None:
    """SIGSTOP, then a worker dies: the learner does not wait for a process that never listens."""
    case = CASES["noisy"]
    with case.start(**processes(2)) as run:
        episodes = case.advance(run, 2)
        wait_until(lambda: spare_of(run) is not None)
        stopped = spare_of(run)
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        kill(run.source.place.workers.pids[1])
        episodes += case.advance(run, case.updates - 2)
        assert stopped not in run.source.place.workers.pids
        assert run.source.place.replaced.restarts == 1
        assert bits_of(run, episodes) == calm("noisy")
    assert is_gone(stopped)


def out_of_processes(server: ForkServer, name: str) -> None:
    raise BlockingIOError("EAGAIN")


def test_the_fork_server_is_killed_while_workers_start() -> None:
    """As soon as there is one: before its imports are done, when the workers' requests wait for it."""
    case = CASES["noisy"]
    with case.start(**processes(2)) as run:
        before = server_of(run)  # of the tests so far
        for server in before:
            kill(server)
        wait_until(lambda: not server_of(run))
        killed: list[int] = []

        def strike() -> None:
            def seen() -> bool:  # looked for once: a moment later it may be another one, or none
                killed.extend(server_of(run))
                return bool(killed)

            wait_until(seen)
            os.kill(killed[0], signal.SIGKILL)

        killer = threading.Thread(target=strike)
        killer.start()
        episodes = case.advance(run, case.updates)
        killer.join()
        assert killed
        assert not set(before) & set(killed)
        assert server_of(run) not in ([], killed)
        assert run.source.place.replaced.restarts == 0
        assert bits_of(run, episodes) == calm("noisy")


# --- any of them, at random ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.full) for seed in (2, 3, 4))])
def test_kills_at_random(seed: int) -> None:
    """Between two updates and in the middle of one: a worker, the spare or the fork server, sometimes two at once."""
    case, draw = CASES["long"], random.Random(seed)
    with case.start(**processes(3)) as run:
        episodes, killed, spares = case.advance(run, 1), set(), 0
        for _ in range(case.updates - 1):
            workers = {
                pid for pid in run.source.place.workers.pids if not is_gone(pid)
            }  # one may be dead and not noticed yet
            victims = draw.sample(
                [*sorted(workers), *standby_of(run).spare_pids, *server_of(run)], draw.choice((0, 1, 1, 2))
            )
            killed |= workers & set(victims)
            spares += len(set(standby_of(run).spare_pids) & set(victims))
            timer = threading.Timer(draw.choice((0.0, 0.005)), partial(list, map(kill, victims)))
            timer.start()
            episodes += case.advance(run, 1)
            timer.join()
        assert bits_of(run, episodes) == calm("long")
        for _ in range(2):  # a worker that died after the last rollout is noticed, and replaced, too
            run.source.run_ahead()
        assert len(killed) > 3
        assert 0 <= run.source.place.replaced.restarts - len(killed) <= spares, (
            "a spare may have become a worker when it was killed"
        )
