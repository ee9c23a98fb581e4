"""choose(): where actors run, as a pure function of measured numbers; it measures only if the answer hangs on it."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.build import build_algorithm
from headrace.cli.main import main
from headrace.collecting.topology import TopologyConfig, resolve
from headrace.envs.building import build_envs
from headrace.envs.spec import EnvSpec
from headrace.errors import UsageError
from headrace.launch import auto
from headrace.launch.auto import survey
from headrace.launch.decision import WORKER_BYTES, Machine, Measured, choose
from headrace.launch.measuring import FreeCores, measure
from headrace.launch.rehearsal import Rehearsal, rehearse
from headrace.launch.repeating import repeated
from headrace.learning.config import PpoConfig
from headrace.memory.spaces import Box, Discrete, MultiDiscrete
from headrace.policies.config import PolicyConfig
from headrace.policies.networks import build_policy
from headrace.weights.flat import tensors_sha256
from support.faulty_envs import Steady, Toils

GIB = 2**30
BOX = Box((4,), "float32", (-1.0,), (1.0,))


def never() -> Measured:
    raise AssertionError("the answer does not depend on a measurement")


def sees(
    step_us: float, two_threads: float = 1.0, act_us: float = 0.0, update_ms: float = 0.0, **more: float
) -> Callable[[], Measured]:
    return lambda: Measured(step_us * 1e-6, 0.1, two_threads, Rehearsal(act_us * 1e-6, update_ms * 1e-3), **more)


LONG, SHORT = 10_000_000, 5_120
CHEAP, PYTHON, RELEASES = sees(5), sees(200), sees(200, two_threads=1.95)


@pytest.mark.parametrize(
    ("look", "cores", "place", "workers"),
    [
        (CHEAP, 2, "inline", 1),
        (PYTHON, 2, "processes", 2),
        (PYTHON, 4, "processes", 4),
        (PYTHON, 64, "processes", 8),
        (RELEASES, 2, "threads", 2),
        (sees(200, two_threads=1.1), 2, "processes", 2),
    ],
    ids=["cheap", "Python", "4 cores", "64 cores", "releases the GIL", "hardly does"],
)
def test_what_a_measurement_leads_to(look: Callable[[], Measured], cores: int, place: str, workers: int) -> None:
    choice = choose(TopologyConfig(n_envs=8), Machine(cores), look)
    assert (choice.topology, choice.workers) == (place, workers)
    assert choice.reason.startswith(f"topology={place}")
    assert "us" in choice.reason
    assert "\n" not in choice.reason


@pytest.mark.parametrize(
    ("max_lag", "look", "place", "workers"),
    [
        (0, sees(5, act_us=30, update_ms=30), "inline", 1),
        (1, sees(5, act_us=30, update_ms=20), "processes", 1),
        (1, sees(5, act_us=30, update_ms=500), "inline", 1),
        (0, sees(200, act_us=30, update_ms=30), "processes", 2),
        (0, sees(200, act_us=30, update_ms=3000), "inline", 1),
        (0, sees(5, act_us=2000), "processes", 2),
        (1, sees(200, 1.95, act_us=30, update_ms=1), "threads", 2),
    ],
    ids=[
        "cheap: nothing to share out",
        "one worker collects while the learner learns",
        "the learner takes all the time",
        "Python, quick learner",
        "Python, slow learner",
        "cheap, but acting is not",
        "threads, while the learner learns",
    ],
)
def test_what_acting_and_learning_cost_decides_too(
    max_lag: int, look: Callable[[], Measured], place: str, workers: int
) -> None:
    choice = choose(TopologyConfig(n_envs=32, n_steps=32, max_lag=max_lag), Machine(2), look, LONG)
    assert (choice.topology, choice.workers) == (place, workers), choice.reason
    assert "acting for all" in choice.reason


TRUTHS_AND_LIES = {
    "workers take longer to start than they save": ((sees(200), SHORT), (sees(200), LONG)),
    "all cores but one are taken": ((sees(200, free_cores=1.05), LONG), (sees(200, free_cores=1.9), LONG)),
    "the numbers did not repeat": ((sees(200, update_ms=150, doubt=1.6), LONG), (sees(200, update_ms=150), LONG)),
    "but a promise may be larger than the doubt": (
        (sees(200, update_ms=150, doubt=1.6), LONG),
        (sees(200, doubt=1.6), LONG),
    ),
    "the same, of the policy": (
        (lambda: Measured(2e-4, 0.1, 1.0, Rehearsal(0.0, 0.15, doubt=1.6)), LONG),
        (lambda: Measured(2e-4, 0.1, 1.0, Rehearsal(0.0, 0.15)), LONG),
    ),
    "cheap steps": ((sees(20), LONG), (sees(200), LONG)),
    "threads on cores that are taken": (
        (sees(200, two_threads=1.95, free_cores=1.1), LONG),
        (sees(200, two_threads=1.95, free_cores=2.0), LONG),
    ),
    "the learner takes the time": ((sees(200, update_ms=3000), LONG), (sees(200, update_ms=30), LONG)),
}  # fmt: skip


@pytest.mark.parametrize("case", TRUTHS_AND_LIES)
def test_inline_for_a_reason_that_would_be_a_lie_elsewhere(case: str) -> None:
    """The second measurement differs from the first in one number, and the same verdict would be wrong."""
    config, machine = TopologyConfig(n_envs=32, n_steps=32), Machine(2)
    (stays, steps), (goes, other_steps) = TRUTHS_AND_LIES[case]
    choice = choose(config, machine, stays, steps)
    assert choice.topology == "inline", choice.reason
    other = choose(config, machine, goes, other_steps)
    assert other.topology != "inline", other.reason


def test_the_reason_has_the_numbers() -> None:
    config, machine = TopologyConfig(n_envs=32, n_steps=32), Machine(2)
    short = choose(config, machine, PYTHON, SHORT).reason
    assert short == (
        "topology=inline: a step takes 200 us (spread 10%); 5,120 steps should take 1.0 s inline, 3.5 s with "
        "2 worker processes, 3 s of that to start"
    )
    busy = choose(config, machine, sees(200, free_cores=1.05), LONG).reason
    assert "other programs leave 1.1 of 2 cores" in busy
    doubtful = choose(config, machine, sees(200, update_ms=150, doubt=1.6), LONG).reason
    assert "not enough, as measurements differed by 1.6x" in doubtful
    assert "100,000 steps (total_timesteps is not known yet)" in choose(config, machine, PYTHON).reason


@pytest.mark.parametrize(
    ("seen", "rounds", "seconds", "doubt"),
    [
        ([1.0, 1.02, 1.05], 3, 1.0, 1.02),
        ([9.0, 1.0, 5.0, 1.05, 7.0], 4, 1.0, 1.05),
        ([9.0, 1.0, 5.0, 3.0, 7.0, 8.0], 6, 1.0, 3.0),
    ],
    ids=["steady", "until the two fastest agree", "never steady"],
)
def test_a_measurement_is_repeated_until_it_repeats(
    seen: list[float], rounds: int, seconds: float, doubt: float
) -> None:
    left = iter(seen)
    assert repeated(lambda: [next(left)], 3, 6) == ([seconds], pytest.approx(doubt))
    assert len(list(left)) == len(seen) - rounds


@pytest.mark.alone
def test_a_core_that_another_program_takes_is_not_free() -> None:
    """Beside as many busy processes as there are cores, there is less left than alone in the extreme."""
    cores = auto.cpus()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * cores)]
    try:
        _burn(0.3)
        free = FreeCores()
        _burn(0.5)
        assert free.seen() < max(1.01, 0.75 * cores)
    finally:
        for one in busy:
            one.kill()
            one.wait()


@pytest.mark.alone
def test_a_resumed_run_beside_a_busy_program_stays_inline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A step of 10 ms of Python: workers would be right for a long run, not for the 96 steps that are left."""
    run = ["--run-dir", str(tmp_path / "run"), "--quiet", "--check-episodes", "0"]
    options = ["--n-envs", "8", "--n-steps", "4", "--batch-size", "32", "--n-epochs", "1", "--seed", "1"]
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(auto.cpus())]
    try:
        assert main(["train", "support.faulty_envs:Toils", *options, "--total-timesteps", "32", *run]) == 0
        resume = ["train", "--resume", str(tmp_path / "run"), "--total-timesteps", "128", "--trust"]
        capsys.readouterr()
        assert main([*resume, "--dry-run"]) == 0
        plan = capsys.readouterr().out
        assert "topology     inline" in plan
        assert re.search(r"other programs leave \d\.\d of \d+ cores; 96 steps should take \d+(\.\d)? s inline", plan)
        assert main([*resume, "--quiet"]) == 0
    finally:
        for one in busy:
            one.kill()
            one.wait()
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("topology=inline") == 2
    assert "topology=processes" not in log


def _burn(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def test_a_rehearsal_grows_with_the_work_and_leaves_the_policy_alone() -> None:
    module = build_policy(PolicyConfig(), BOX, Discrete(2), 1)
    before = tensors_sha256(dict(module.named_parameters()))

    def cost(**options: Any) -> Rehearsal:
        place, config = TopologyConfig(n_envs=16, n_steps=32), PpoConfig(batch_size=256, **options)
        return rehearse(module, BOX, Discrete(2), place, 0, config, build_algorithm)

    short, long = cost(n_epochs=1), cost(n_epochs=50)
    assert 0 < short.act_s < 1
    assert long.update_s > 5 * short.update_s > 0
    assert tensors_sha256(dict(module.named_parameters())) == before


@pytest.mark.parametrize(
    "action",
    [Discrete(3, start=2), MultiDiscrete((2, 3), (2,), (1, 4)), BOX],
    ids=["discrete", "multi-discrete", "box"],
)
def test_a_rehearsal_acts_within_the_space(action: Any) -> None:
    """Slabs hold choices from 0 on, whatever the environment calls its first one."""
    module = build_policy(PolicyConfig(), BOX, action, 1)
    place = TopologyConfig(n_envs=4, n_steps=8)
    told = rehearse(module, BOX, action, place, 0, PpoConfig(batch_size=16), build_algorithm)
    assert told.update_s > 0


class OneThread(Steady):
    """Can't be stepped by another thread."""

    def __init__(self) -> None:
        super().__init__()
        self._home = threading.get_ident()

    def step(self, action: Any) -> Any:
        time.sleep(2e-4)
        if threading.get_ident() != self._home:
            raise RuntimeError("not my thread")
        return super().step(action)


@pytest.mark.alone
@pytest.mark.parametrize("env", [Toils, OneThread])
def test_threads_are_not_promised_to_those_who_can_not_use_them(env: Any) -> None:
    envs = build_envs(EnvSpec(env), range(1), 0)
    try:
        measured = measure(EnvSpec(env), 0, envs)
    finally:
        envs.close()
    assert measured is not None
    assert measured.two_threads < 1.5


def test_as_many_workers_as_fit_into_memory() -> None:
    choice = choose(TopologyConfig(n_envs=8), Machine(4, 3 * WORKER_BYTES), PYTHON)
    assert (choice.topology, choice.workers) == ("processes", 3)


def test_a_policy_that_can_not_be_measured_is_complained_of_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(auto, "measure", lambda spec, seed, envs, n_envs: Measured(8e-6, 0.1, 1.0))

    def fails(observation: object, action: object) -> Rehearsal:
        raise ValueError("no such layer")

    found = survey(EnvSpec(Steady), 0, TopologyConfig(n_envs=4), fails)
    assert found.topology.topology == "inline"
    assert not caplog.records


@pytest.mark.parametrize(("n_envs", "cores", "why"), [(8, 1, "one core"), (1, 64, "one environment")])
def test_where_nothing_can_run_beside_it_is_inline(n_envs: int, cores: int, why: str) -> None:
    choice = choose(TopologyConfig(n_envs=n_envs), Machine(cores), never)
    assert (choice.topology, choice.workers) == ("inline", 1)
    assert why in choice.reason


@pytest.mark.parametrize("place", ["threads", "processes"])
@pytest.mark.parametrize(("n_envs", "cores", "workers"), [(8, 2, 2), (2, 16, 2), (8, 1, 1)])
def test_a_place_that_was_said_gets_a_worker_per_core(place: str, n_envs: int, cores: int, workers: int) -> None:
    choice = choose(TopologyConfig(n_envs=n_envs, topology=place), Machine(cores), never)
    assert (choice.topology, choice.workers) == (place, workers)
    assert f"workers={workers}" in choice.reason


@pytest.mark.parametrize(
    ("look", "place"),
    [(CHEAP, "processes"), (PYTHON, "processes"), (RELEASES, "threads")],
    ids=["cheap", "GIL", "free"],
)
@pytest.mark.parametrize("cores", [1, 2, 16])
def test_workers_that_were_said_are_kept(look: Callable[[], Measured], place: str, cores: int) -> None:
    """Whatever the machine has; only the place is chosen."""
    choice = choose(TopologyConfig(n_envs=8, workers="2"), Machine(cores), look)
    assert (choice.topology, choice.workers) == (place, 2)
    assert "was asked for" in choice.reason


def test_what_can_not_be_measured_is_inline() -> None:
    """Its first rollout names the step that failed."""
    choice = choose(TopologyConfig(n_envs=8), Machine(2), lambda: None)
    assert (choice.topology, choice.workers) == ("inline", 1)
    assert "could not be measured" in choice.reason


def test_processes_that_do_not_fit_into_memory_are_not_chosen() -> None:
    choice = choose(TopologyConfig(n_envs=8), Machine(2, GIB // 2), PYTHON)
    assert choice.topology == "inline"
    assert "memory for 1 workers only" in choice.reason


@pytest.mark.parametrize("place", ["auto", "threads", "processes"])
def test_a_choice_of_its_own_is_never_refused(place: str) -> None:
    """Fewer shards than cores: the user said nothing wrong, so fewer workers it is."""
    got = resolve(TopologyConfig(n_envs=8, topology=place, shards=1), lambda said: choose(said, Machine(4), PYTHON))
    assert (got.workers, got.shards) == (1, (range(8),))


def test_a_survey_builds_one_environment_and_closes_it() -> None:
    made: list[Steady] = []
    closed: list[Steady] = []

    class Watched(Steady):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def close(self) -> None:
            closed.append(self)
            super().close()

    found = survey(EnvSpec(Watched), 0, TopologyConfig(n_envs=4, topology="threads", workers="2"))
    assert found.topology.topology == "threads"
    assert len(made) == 1
    assert closed == made


def test_a_survey_closes_its_environment_when_it_refuses() -> None:
    closed: list[int] = []

    class Watched(Steady):
        def close(self) -> None:
            closed.append(1)
            super().close()

    with pytest.raises(UsageError, match="workers: expected at most"):
        survey(EnvSpec(Watched), 0, TopologyConfig(n_envs=2, topology="threads", workers="3"))
    assert closed == [1]


def test_a_replay_is_inline_with_the_recorded_shards() -> None:
    said = TopologyConfig(n_envs=4, topology="processes", max_lag=1)  # workers=auto: another machine may choose others
    got = survey(EnvSpec(Steady), 0, said, replayed_shards=2).topology
    assert (got.topology, got.workers, got.max_lag, len(got.shards)) == ("inline", 1, 1, 2)
