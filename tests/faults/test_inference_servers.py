"""Kills of inference servers and of workers that ask them: replaced at once, nothing hangs, and the calm run's bits.

a server       killed or stopped at any moment: another one finds the requests that were not answered
a worker       killed while its request is in flight: the answer to it is nobody's
the policy     raises in a server: the run ends with what it raised, where, and in which process
the learner    killed: servers and their shared memory are gone with it
"""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.build import build_run
from headrace.clock import now_s
from headrace.collecting.processes import Processes
from headrace.errors import HeadraceError
from headrace.inference.servers import Servers
from headrace.inference.slots import REPLY, REQUEST
from headrace.memory.spaces import Box, Discrete
from headrace.train import Run
from support.learners import learner, wait_for
from support.mutant_servers import StopsOnce, dies_at_once
from support.topology_runs import CASES, bits_of, calm, processes
from support.toy_policies import Tiring
from support.waiting import family, is_gone, segments_of_processes, wait_until

CASE = CASES["long"]


def central(workers: int, servers: int = 1, **more: Any) -> dict[str, Any]:
    return processes(workers, inference="central", inference_servers=servers, **{"double_buffering": "off", **more})


def servers_of(run: Run) -> Servers:
    assert isinstance(run.source.place, Processes)
    assert run.source.place._servers is not None
    return run.source.place._servers


def server_pids(run: Run) -> list[int]:
    return [child.pid for child in list(servers_of(run).children.values())]


@pytest.mark.parametrize(("name", "seed"), [("long", 1), ("lstm", 1), pytest.param("long", 2, marks=pytest.mark.full)])
def test_servers_and_workers_are_killed_at_random(name: str, seed: int) -> None:
    """Between two updates and in the middle of one; as many restarts as kills, and the ledger balances."""
    case = CASES[name]
    draw, servers, workers = random.Random(seed), set(), set()
    with case.start(**central(2, 2, shards=4, double_buffering="on")) as run:
        episodes = case.advance(run, 1)
        for _ in range(case.updates - 1):
            servers.add(draw.choice(server_pids(run)))
            if draw.random() < 0.3:
                workers.add(draw.choice(run.source.place.workers.pids))
            victims = [pid for pid in servers | workers if not is_gone(pid)]
            timer = threading.Timer(draw.choice((0.0, 0.002, 0.005)), partial(list, map(kill, victims)))
            timer.start()
            episodes += case.advance(run, 1)
            timer.join()
        assert bits_of(run, episodes) == calm(name)
        for _ in range(2):  # who died after the last rollout is noticed, and replaced, too
            run.source.run_ahead()
        assert len(servers) > case.updates // 2
        assert (servers_of(run).restarts, run.source.place.replaced.restarts) == (len(servers), len(workers))
        assert run.source.place.replaced.servers == len(servers)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid))


@pytest.mark.alone
@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.full)])
def test_a_killed_server_is_replaced_within_two_seconds(method: str) -> None:
    case = CASES["noisy"]
    with case.start(**central(2, start_method=method)) as run:
        episodes = case.advance(run, 2)
        wait_until(lambda: run.source.place.replace_lost() == [] and bool(servers_of(run)._standby.spare_pids))
        begun = now_s()
        kill(server_pids(run)[0])
        episodes += case.advance(run, 1)
        assert now_s() - begun < 2.0
        episodes += case.advance(run, case.updates - 3)
        assert bits_of(run, episodes) == calm("noisy")


@pytest.mark.parametrize("name", ["masked", "normalized", "masked_lstm", "gru", "dict"])
def test_servers_and_workers_die_with_masks_statistics_states_and_several_arrays(name: str) -> None:
    """A new server takes the statistics from the store with the weights; masks come with the requests."""
    case = CASES[name]
    with case.start(**central(2, 2)) as run:
        episodes = case.advance(run, 2)
        kill(server_pids(run)[1])
        episodes += case.advance(run, 1)
        kill(run.source.place.workers.pids[0])
        episodes += case.advance(run, case.updates - 3)
        assert (run.source.place.replaced.restarts, servers_of(run).restarts) == (1, 1)
        assert bits_of(run, episodes) == calm(name)


def test_a_worker_is_killed_while_its_request_is_in_flight() -> None:
    """The server stands still meanwhile; going on, it answers a worker that is dead. Its successor's rows are right."""
    case = CASES["noisy"]
    with case.start(**central(1)) as run:
        episodes = case.advance(run, 1)
        (server,), slots = server_pids(run), servers_of(run)._slots
        at = slots.slots[0].at

        def strike() -> None:
            wait_until(lambda: bool(slots.words[at + REQUEST] != slots.words[at + REPLY]))
            kill(run.source.place.workers.pids[0])
            os.kill(server, signal.SIGCONT)

        os.kill(server, signal.SIGSTOP)
        striker = threading.Thread(target=strike)
        striker.start()
        episodes += case.advance(run, case.updates - 1)
        striker.join()
        assert (run.source.place.replaced.restarts, servers_of(run).restarts) == (1, 0)
        assert bits_of(run, episodes) == calm("noisy")


@pytest.mark.alone
def test_a_server_that_stands_still_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    """SIGSTOP: killed at its limit and replaced. The workers that wait for it are not taken for hung."""
    case = CASES["noisy"]
    with case.start(**central(2, hang_floor_s=1.0, hang_ceiling_s=20.0)) as run:
        episodes = case.advance(run, 2)
        wait_until(lambda: run.source.place.replace_lost() == [] and servers_of(run)._patience.has_seen("batch"))
        (server,) = server_pids(run)
        os.kill(server, signal.SIGSTOP)
        episodes += case.advance(run, case.updates - 2)
        assert is_gone(server)
        assert (run.source.place.replaced.restarts, servers_of(run).restarts) == (0, 1)
        assert bits_of(run, episodes) == calm("noisy")
    (text,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    said = re.match(r"inference server 0 hung: it gave no sign of life for ([\d.]+) s \(limit ([\d.]+) s\)", text)
    assert said is not None
    assert 1.0 <= float(said[2]) <= 20.0
    assert float(said[1]) <= float(said[2]) + 1.5, "one look, and one second"


@pytest.mark.timeout(100)
def test_a_server_that_stands_still_before_it_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start of a run: it is not waited for for ever."""
    monkeypatch.setattr("headrace.inference.servers._NEW_S", 8.0)
    monkeypatch.setattr("headrace.inference.servers.run_server", StopsOnce(tmp_path / "stopped"))
    case = CASES["noisy"]
    with case.start(**central(1, hang_ceiling_s=30.0, hang_floor_s=8.0)) as run:
        servers_of(run)._patience.took("batch", 0.0)  # as of a run that has had a batch: the ceiling is not waited for
        episodes = case.advance(run, case.updates)
        assert (tmp_path / "stopped").exists()
        assert (run.source.place.replaced.restarts, servers_of(run).restarts) == (0, 1)
        assert bits_of(run, episodes) == calm("noisy")


def test_a_server_that_never_comes_up_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.inference.servers.run_server", dies_at_once)
    message = "inference server 0 died before it was ready: died: exit code 3; look at the policy"
    with CASE.start(**central(1)) as run, pytest.raises(HeadraceError, match=message):
        CASE.advance(run, 1)


def test_what_the_policy_raises_ends_the_run() -> None:
    case = CASES["cartpole"]
    policy = Tiring(Box((4,), "float32", (-3.0,), (3.0,)), Discrete(2))
    run, _ = build_run(case.config(**central(2)), policy)
    try:
        with pytest.raises(HeadraceError, match="failed in the inference server: ValueError: acted 30 times") as caught:
            case.advance(run, case.updates)
        notes = "".join(caught.value.__notes__)
        assert "In the inference server:\nTraceback" in notes
        assert "toy_policies.py" in notes
    finally:
        run.close()


@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_learner(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    with learner(tmp_path, inference="central", inference_servers=2) as process:
        wait_for(process, tmp_path / "update-1")
        members = family(process.pid)
        segments = segments_of_processes({process.pid, *members})
        assert len(segments) == 5, "the ring's, the weights', the slots' and two of last words"
        process.send_signal(number)
        (tmp_path / "wait").unlink()  # a callback is not interrupted
        process.wait(60.0)
    wait_until(lambda: all(map(is_gone, members)) and not any(path.exists() for path in segments), 10.0)
