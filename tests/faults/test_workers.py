"""Worker processes that die, fail or are left alone: replaced or told in one error, and nothing stays behind.

    killed                         replaced, named in a warning, counted; the run's bits are the calm run's
    the learner killed, signalled  workers and shared memory are gone with it; a signalled run resumes
    factories and steps that raise one error with the worker's whole traceback, and the message of an inline run
    what can't be mended           one clear error: a pool that resets itself, a worker that never comes up

The fixture in conftest looks for processes, threads, shared memory and descriptors after every test.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.build import build_run
from headrace.checkpoints.snapshot import find_latest
from headrace.envs.seeds import Purpose, leaf
from headrace.errors import EnvError, HeadraceError, LedgerError
from headrace.train import Run
from support.command import PATHS, TINY, Outcome, end, result_of, run, start
from support.faulty_envs import Faulty
from support.topology_runs import CASES, INLINE, SEED, Case, bits_of, calm, processes, threads
from support.waiting import family, idle, is_gone, segments_of_processes, wait_until
from support.worker_envs import Ordered, order

STEADY = "support.faulty_envs:Steady"
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
N_STEPS, UPDATES = 16, 5
STEPS_PER_UPDATE = 4 * N_STEPS
LENGTH = ("--n-envs", "4", "--n-steps", str(N_STEPS), "--total-timesteps", str(UPDATES * STEPS_PER_UPDATE))
PROCESSES = ("--topology", "processes", "--workers", "2")
INLINE_OPTIONS = ("--topology", "inline", "--workers", "auto")
TINY_SEED = 7  # of TINY


def segments_of(run: Run) -> list[Path]:
    """The run's entries in shared memory."""
    names = (run.source.ring.segment.name, run.weights.store.segment.name)
    return [Path("/dev/shm") / name for name in names if name is not None]


def obedient(case: Case, folder: Path) -> Case:
    return case.wrapped(partial(Ordered, folder=str(folder)))


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


def killed(worker: int, envs: str, *at: int) -> str:
    """What is said of a worker that was killed, in a step of (env, episode, step) or while it was idle."""
    where = ""
    if at:
        env, episode, step = at
        seed = leaf(SEED, Purpose.ENV, env, episode)
        where = f" in step() of env {env}, episode {env}:{episode}, seed {seed}, step {step}"
    how = f"killed by signal 9 (SIGKILL){where}"
    return f"worker {worker} (environments {envs}) died: {how}; replaying its episodes"


# --- workers die -----------------------------------------------------------------------------------------------------


def test_killed_while_idle(caplog: pytest.LogCaptureFixture) -> None:
    """Between two updates, and gone for good before the next one begins."""
    case = CASES["noisy"]
    with case.start(**processes(2)) as run:
        episodes = case.advance(run, 2)
        victim = run.source.place.workers.pids[1]
        wait_until(lambda: idle(victim))
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: is_gone(victim))
        episodes += case.advance(run, case.updates - 2)
        assert run.source.place.replaced.restarts == 1
        assert victim not in run.source.place.workers.pids
        assert bits_of(run, episodes) == calm("noisy")
    assert told(caplog) == [killed(1, "7-12")]


def test_killed_while_filling(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It holds in the middle of its third slab when it is killed from outside, whatever the other worker does."""
    case = obedient(CASES["long"], tmp_path)
    held = order(tmp_path, "hold", SEED, 9, 0, 2 * case.n_steps + 3)
    with case.start(**processes(2)) as run:

        def strike() -> None:
            wait_until(held.exists)
            os.kill(run.source.place.workers.pids[1], signal.SIGKILL)

        killer = threading.Thread(target=strike)
        killer.start()
        episodes = case.advance(run, case.updates)
        killer.join()
        assert run.source.place.replaced.restarts == 1
        assert bits_of(run, episodes) == calm("long")
    assert told(caplog) == [killed(1, "7-12", 9, 0, 2 * case.n_steps + 3)]


def test_killed_twice_in_a_row(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The second time in the very slab that its successor fills again."""
    case = obedient(CASES["long"], tmp_path)
    for step in (25, 26):
        order(tmp_path, "kill", SEED, 0, 0, step)
    with case.start(**processes(2)) as run:
        got = bits_of(run, case.advance(run, case.updates))
        assert run.source.place.replaced.restarts == 2
    assert got == calm("long")
    assert told(caplog) == [killed(0, "0-6", 0, 0, step) for step in (25, 26)]


@pytest.mark.parametrize("step", [0, 20], ids=["first step", "third slab"])
def test_all_killed_at_once(step: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    case = obedient(CASES["long"], tmp_path)
    for env in (0, 5, 9):
        order(tmp_path, "kill", SEED, env, 0, step)
    with case.start(**processes(3)) as run:
        got = bits_of(run, case.advance(run, case.updates))
        assert run.source.place.replaced.restarts == 3
    assert got == calm("long")
    assert sorted(told(caplog)) == [
        killed(index, envs, env, 0, step) for index, (envs, env) in enumerate((("0-4", 0), ("5-8", 5), ("9-12", 9)))
    ]


def test_restarts_are_in_the_record_and_the_result(tmp_path: Path) -> None:
    records: list[dict[str, float]] = []
    order(tmp_path, "kill", 3, 1, 0, 9)
    env = "support.worker_envs:ordered"
    with hr.PPO(
        "MlpPolicy", env, env_kwargs={"folder": str(tmp_path)}, n_envs=2, n_steps=8, seed=3, **processes(2)
    ) as model:
        model.learn(48, records.append)
        assert model.result is not None
        assert model.result.restarts == 1
    assert [record["headrace/restarts"] for record in records] == [0.0, 1.0, 1.0]


# --- the learner dies ------------------------------------------------------------------------------------------------

LEARNER = """
import json, os, sys
import headrace as hr
with hr.PPO("MlpPolicy", "support.worker_envs:dawdling", env_kwargs={"delay_s": 1e-3}, n_envs=4, n_steps=16, seed=1,
            topology="processes", workers=2, start_method=sys.argv[1], max_lag=int(sys.argv[2])) as model:
    def tell(record):
        reader, store = model.parts.reader, model.parts.weights.store
        told = {"pids": reader.place.workers.pids, "names": [reader.ring.segment.name, store.segment.name]}
        with open("told.partial", "w") as file:
            json.dump(told, file)
        os.rename("told.partial", "told")
    model.learn(10**9, tell)
"""


@pytest.mark.parametrize(
    ("method", "max_lag"),
    [
        ("forkserver", 1),
        pytest.param("forkserver", 0, marks=pytest.mark.full),
        pytest.param("spawn", 0, marks=pytest.mark.full),
    ],
)
@pytest.mark.alone
def test_the_learner_is_killed(method: str, max_lag: int, tmp_path: Path) -> None:
    """SIGKILL, which nobody can catch: its workers notice, and the shared memory goes with the last of them."""
    environment = {**os.environ, "PYTHONPATH": PATHS}
    learner = subprocess.Popen([sys.executable, "-c", LEARNER, method, str(max_lag)], cwd=tmp_path, env=environment)
    try:
        wait_until(lambda: (tmp_path / "told").exists() or learner.poll() is not None)
        facts = json.loads((tmp_path / "told").read_text())
        assert len(facts["pids"]) == 2
        assert not any(map(is_gone, facts["pids"]))
        segments, members = [Path("/dev/shm") / name for name in facts["names"]], family(learner.pid)
        assert all(path.exists() for path in segments)
    finally:
        learner.kill()
        learner.wait()
    wait_until(lambda: all(map(is_gone, facts["pids"])), 5.0)
    wait_until(lambda: not any(path.exists() for path in segments), 5.0)
    wait_until(lambda: all(map(is_gone, members)))  # the fork server takes its time to unload torch


# --- signals ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command's run that nobody interrupts, inline."""
    folder = tmp_path_factory.mktemp("undisturbed")
    arguments = ("support.worker_envs:ordered", *TINY, *LENGTH, "--env-kwargs", json.dumps({"folder": str(folder)}))
    assert run("train", *arguments, "--topology", "inline", "--run-dir", "out", cwd=folder).code == 0
    return folder / "out"


def start_command(folder: Path, *more: str, **popen: Any) -> subprocess.Popen[str]:
    kwargs = ("--env-kwargs", json.dumps({"folder": str(folder)}))
    arguments = ("support.worker_envs:ordered", *TINY, *LENGTH, *kwargs, *PROCESSES, "--run-dir", "out", *more)
    return start("train", *arguments, cwd=folder, has_report=False, **popen)


def interrupted(folder: Path, number: signal.Signals, update: int) -> Outcome:
    """The command, signalled while both workers hold in the middle of an update's rollout."""
    held = [order(folder, "hold", TINY_SEED, env, 0, update * N_STEPS + 5) for env in (0, 2)]
    process = start_command(folder)
    return signalled(process, held, partial(process.send_signal, number), folder / "out" / "log.txt")


def signalled(process: subprocess.Popen[str], held: list[Path], strike: Callable[[], None], log: Path) -> Outcome:
    """Strike while workers hold, let them go once the run has kept its checkpoint, and see all of it end."""
    try:
        wait_until(lambda: all(file.exists() for file in held) or process.poll() is not None)
        members = family(process.pid)
        segments = segments_of_processes(members)
        strike()
        wait_until(lambda: "checkpoint at step" in log.read_text() or process.poll() is not None)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    for file in held:
        file.unlink(missing_ok=True)
    outcome = end(process)
    assert len(members) >= 3, f"two workers and who started them: {outcome.err}"
    assert len(segments) == 3, "the ring's, the weights' and the crash notes'"
    assert not any(path.exists() for path in segments)
    wait_until(lambda: all(map(is_gone, members)))
    return outcome


@pytest.mark.parametrize(
    ("number", "resume"),
    [
        pytest.param(signal.SIGINT, (), id="SIGINT, processes"),
        pytest.param(signal.SIGTERM, INLINE_OPTIONS, id="SIGTERM, inline"),
        pytest.param(signal.SIGINT, INLINE_OPTIONS, id="SIGINT, inline", marks=pytest.mark.full),
        pytest.param(signal.SIGTERM, (), id="SIGTERM, processes", marks=pytest.mark.full),
    ],
)
def test_a_signal_while_workers_fill(
    number: signal.Signals, resume: tuple[str, ...], undisturbed: Path, tmp_path: Path
) -> None:
    """Exit code, whole checkpoint, nothing left; and it goes on, in processes or inline, to the calm run's bits."""
    outcome = interrupted(tmp_path, number, update=1)
    assert (outcome.code, outcome.err) == (CODES[number], "")
    result = result_of(tmp_path / "out")
    assert (result["exit_reason"], result["updates"]) == (number.name, 1)
    found, snapshot, damaged = find_latest(tmp_path / "out")
    assert (found.name, damaged) == (f"step_{STEPS_PER_UPDATE:012d}", [])
    assert snapshot.state["hashes"]["weights_sha256"] == result["weights_sha256"]
    resumed = run("train", "--resume", "out", "--quiet", *resume, cwd=tmp_path)
    assert resumed.code == 0, resumed.err
    got, want = result_of(tmp_path / "out"), result_of(undisturbed)
    for name in ("weights_sha256", "optimizer_sha256", "ledger", "steps", "updates", "episodes", "mean_return"):
        assert got[name] == want[name], name
    assert (tmp_path / "out" / "episodes.jsonl").read_text() == (undisturbed / "episodes.jsonl").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_a_signal_to_the_whole_group(number: signal.Signals, tmp_path: Path) -> None:
    """As a terminal sends Ctrl-C, and a batch system SIGTERM: workers get it too, and nobody prints a traceback."""
    held = order(tmp_path, "hold", TINY_SEED, 0, 0, 5)
    command = [sys.executable, "-m", "headrace", "train", "support.worker_envs:ordered", *TINY, *LENGTH, *PROCESSES]
    process = subprocess.Popen(
        [*command, "--env-kwargs", json.dumps({"folder": str(tmp_path)}), "--run-dir", "out"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PATHS},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    outcome = signalled(process, [held], lambda: os.killpg(process.pid, number), tmp_path / "out" / "log.txt")
    assert (outcome.code, outcome.err) == (CODES[number], "")


# --- environments that fail ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [processes(2), processes(3, shards=4)], ids=["2 workers", "3 workers"])
def test_a_factory_that_fails_in_a_worker_only(place: dict[str, Any], tmp_path: Path) -> None:
    """One error: the original message, the worker's traceback, at once if nothing is tried again."""
    file = tmp_path / "asked"
    case = Case("unlicensed", "support.worker_envs:fails_in_worker", n_envs=4, kwargs={"file": str(file)})
    with case.start(**place, env_retries=0) as run:
        segments = segments_of(run)
        with pytest.raises(EnvError, match="OSError: no licence for the simulator in a worker") as caught:
            case.advance(run, 1)
        raised_s = time.monotonic()
    closed_s, failed_s = time.monotonic(), float(file.read_text().split()[0])
    assert raised_s - failed_s < 2.0
    assert closed_s - raised_s < 2.0
    (note,) = caught.value.__notes__
    assert note.startswith("In headrace-worker-")
    assert "Traceback (most recent call last)" in note
    assert "in fails_in_worker" in note
    assert 'OSError("no licence' in note or "OSError: no licence" in note
    assert caught.value.__context__ is None, "one error, not a chain of them"
    assert not any(path.exists() for path in segments)


@pytest.mark.parametrize("place", [INLINE, threads(2), processes(2)], ids=["inline", "threads", "processes"])
def test_a_factory_that_fails_everywhere_is_asked_once(place: dict[str, Any], tmp_path: Path) -> None:
    """Before any worker is started: here, or for worker processes in a process of its own."""
    file = tmp_path / "asked"
    case = Case("unlicensed", "support.worker_envs:fails_everywhere", n_envs=4, kwargs={"file": str(file)})
    with pytest.raises(EnvError, match=r"could not be made.*OSError: no licence for the simulator anywhere"):
        build_run(case.config(**place))
    (pid,) = file.read_text().split()
    assert (int(pid) == os.getpid()) == (place["topology"] != "processes")


FAULTS = ("step_raises", "reset_raises", "nan_reward", "nan_obs", "shape")


def failure(fault: str, place: dict[str, Any]) -> HeadraceError:
    """What a faulty environment comes out as."""
    options: dict[str, Any] = {"n_envs": 4, "n_steps": 4, "batch_size": 8, "seed": Faulty.SEED}
    env = "support.faulty_envs:Faulty"
    with (
        pytest.raises(HeadraceError) as caught,
        hr.PPO("MlpPolicy", env, env_kwargs={"fault": fault}, **options, **place) as model,
    ):
        model.learn(400)
    return caught.value


@pytest.mark.parametrize("place", [threads(2), processes(2)], ids=["threads", "processes"])
@pytest.mark.parametrize("fault", [*FAULTS[:3], *(pytest.param(fault, marks=pytest.mark.full) for fault in FAULTS[3:])])
def test_an_environment_that_fails_says_the_same_everywhere(fault: str, place: dict[str, Any]) -> None:
    """Environment, episode, seed and step, and the same kind of error as inline."""
    want, got = failure(fault, INLINE), failure(fault, place)
    assert Faulty.PLACE in str(want) or fault == "reset_raises"
    assert (type(got), str(got)) == (type(want), str(want))
    assert place["topology"] == "threads" or "Traceback (most recent call last)" in got.__notes__[0]


def test_the_command_shows_the_workers_traceback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As inline: the whole traceback of somebody else's code above the one line."""
    arguments = ("support.faulty_envs:Faulty", *TINY, *LENGTH, "--run-dir", "out")
    here = run("train", *arguments, "--topology", "inline", cwd=tmp_path / _made(tmp_path, "inline"))
    there = run("train", *arguments, *PROCESSES, cwd=tmp_path / _made(tmp_path, "processes"))
    assert (there.code, there.error) == (here.code, here.error) == (1, here.error)
    for words in ("Traceback (most recent call last):", "RuntimeError: the simulator fell over", "faulty_envs.py"):
        assert words in here.err
        assert words in there.err
    caplog.clear()  # the logged exception holds the run, and so its memory


def _made(folder: Path, name: str) -> str:
    (folder / name).mkdir()
    return name


def test_a_worker_that_dies_at_its_first_start(caplog: pytest.LogCaptureFixture) -> None:
    case = Case("deadly", "support.worker_envs:dies_in_worker", n_envs=4)
    begun = time.monotonic()
    with (
        case.start(**processes(2)) as run,
        pytest.raises(HeadraceError, match=r"worker \d died before it was ready: .*\(environments \d-\d\)") as caught,
    ):
        case.advance(run, 1)
    assert "Traceback" not in str(caught.value)
    assert time.monotonic() - begun < 20.0


def test_a_worker_that_dies_at_every_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It came up once, and never again: told after a few attempts instead of for ever."""
    file = tmp_path / "from now on"
    case = Case("deadly", "support.worker_envs:dies_if_told", n_envs=4, kwargs={"file": str(file)})
    with case.start(**processes(2)) as run:
        case.advance(run, 2)
        file.touch()
        os.kill(run.source.place.workers.pids[0], signal.SIGKILL)
        with pytest.raises(
            HeadraceError,
            match=r"worker 0 was started 5 times in a row without a result, last: exit code 3 in make\(\) of env 0 "
            r"\(environments 0-1\)",
        ):
            case.advance(run, 2)
        assert run.source.place.replaced.restarts == 5
    assert len(told(caplog)) == run.source.place.replaced.restarts


# --- scripts ---------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
import gymnasium as gym
import numpy as np
import headrace as hr

class Mine(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def __init__(self, scale=1.0):
        self.scale = scale
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen(), {}
    def step(self, action):
        return self.seen(), self.scale * float(action), False, bool(self.np_random.random() < 0.1), {}
    def seen(self):
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

print("ran")
scale = 0.5
where = {} if sys.argv[1] == "inline" else {"workers": 2, "start_method": sys.argv[1]}
model = hr.PPO("MlpPolicy", lambda: Mine(scale), n_envs=4, n_steps=16, n_epochs=2, seed=5,
               topology="inline" if sys.argv[1] == "inline" else "processes", **where)
model.learn(192)
print(model.result.weights_sha256)
model.close()
"""


def said_by_script(folder: Path, where: str) -> list[str]:
    (folder / "mine.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-W", "error", "mine.py", where], cwd=folder, text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.full)])
def test_a_script_without_a_main_guard(method: str, tmp_path: Path) -> None:
    """Its own class, a lambda and a global, and it runs once."""
    said = said_by_script(tmp_path, method)
    assert said[0] == "ran"
    assert said == said_by_script(tmp_path, "inline")


# --- pools that reset themselves -------------------------------------------------------------------------------------

POOL = Case("pool", "support.worker_envs:pool", n_envs=6, updates=4)
ENVPOOL = Case("envpool", "envpool:CartPole-v1", n_envs=6, updates=4)


@pytest.mark.parametrize("place", [threads(2), processes(2)], ids=["threads", "processes"])
def test_class_b_gives_the_same_bits(place: dict[str, Any]) -> None:
    want = POOL.play(**INLINE)
    assert want.episodes
    assert POOL.play(**place) == want


@pytest.mark.parametrize("case", [POOL, ENVPOOL], ids=lambda case: case.name)
def test_the_death_of_class_b_is_refused(case: Case) -> None:
    """Its episodes can't be replayed, and going on with others would be a lie."""
    with case.start(**processes(2)) as run:
        case.advance(run, 1)
        os.kill(run.source.place.workers.pids[1], signal.SIGKILL)
        with pytest.raises(HeadraceError, match=r"worker 1 \(environments 3-5\) died: killed by signal 9.*class B"):
            case.advance(run, 2)
        assert run.source.place.replaced.restarts == 0


# --- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [INLINE, threads(2), processes(2)], ids=["inline", "threads", "processes"])
def test_close_twice(place: dict[str, Any]) -> None:
    run, _ = build_run(CASES["noisy"].config(**place))
    segments = segments_of(run)
    CASES["noisy"].advance(run, 1)
    run.close()
    run.close()
    assert not any(path.exists() for path in segments)


@pytest.mark.parametrize("place", [INLINE, threads(2), processes(2)], ids=["inline", "threads", "processes"])
def test_close_before_the_first_update(place: dict[str, Any]) -> None:
    run, _ = build_run(CASES["noisy"].config(**place))
    segments = segments_of(run)
    assert bool(segments) == (place["topology"] == "processes")
    run.close()
    assert not any(path.exists() for path in segments)


@pytest.mark.parametrize("max_lag", [0, 2])
def test_close_while_workers_fill(max_lag: int, tmp_path: Path) -> None:
    """Broken off while both hold in the middle of a slab; they end once they may, whatever leases wait for them."""
    case = obedient(CASES["long"], tmp_path)
    held = [order(tmp_path, "hold", SEED, env, 0, 19) for env in (0, 12)]
    run, _ = build_run(case.config(**processes(2, max_lag=max_lag)))
    segments = segments_of(run)
    try:
        case.advance(run, 1)

        def stop(*_: Any) -> None:
            raise TimeoutError("enough")

        before = signal.signal(signal.SIGUSR1, stop)
        striker = threading.Thread(
            target=lambda: (
                wait_until(lambda: all(file.exists() for file in held)),
                os.kill(os.getpid(), signal.SIGUSR1),
            )
        )
        try:
            with pytest.raises(TimeoutError, match="enough"):  # noqa: PT012  # it may come at any moment from here on
                striker.start()
                case.advance(run, 5)
        finally:
            signal.signal(signal.SIGUSR1, before)
            striker.join()
        pids = run.source.place.workers.pids
    finally:
        for file in held:
            file.unlink(missing_ok=True)
        run.close()
    assert all(map(is_gone, pids))
    assert not any(path.exists() for path in segments)


def test_close_does_not_wait_for_one_stuck_worker_after_the_other(tmp_path: Path) -> None:
    """All get the same few seconds, at the same time; then they are ended."""
    case = obedient(CASES["long"], tmp_path)
    held = [order(tmp_path, "hold", SEED, env, 0, case.n_steps + 3) for env in (0, 5, 9)]
    run, _ = build_run(case.config(**processes(3, max_lag=1)))
    try:
        case.advance(run, 1)
        wait_until(lambda: all(file.exists() for file in held))
        pids, begun = run.source.place.workers.pids, time.monotonic()
    finally:
        run.close()
    assert time.monotonic() - begun < 8.0
    assert all(map(is_gone, pids))


@pytest.mark.parametrize("place", [threads(2), processes(2), processes(2, max_lag=1)], ids=str)
def test_an_exception_in_the_middle_of_an_update(place: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Between taking a batch and handing it back."""

    def fails(*_: Any) -> None:
        raise MemoryError("no room for the batch")

    case = CASES["noisy"]
    with case.start(**place) as run:
        segments = segments_of(run)
        case.advance(run, 1)
        monkeypatch.setattr("headrace.learning.ppo.complete", fails)
        with pytest.raises(MemoryError):
            case.advance(run, 1)
        assert not run.is_whole
    assert not any(path.exists() for path in segments)


@pytest.mark.timeout(60)
def test_a_failed_run_says_so_again_and_closes(tmp_path: Path) -> None:
    """Another update after a failure is refused by an error of ours, not by multiprocessing's insides."""
    case = Case("unlicensed", "support.worker_envs:fails_in_worker", n_envs=4, kwargs={"file": str(tmp_path / "asked")})
    with case.start(**processes(2)) as run:
        for _ in range(2):
            with pytest.raises(HeadraceError):
                case.advance(run, 1)


# --- the books -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [INLINE, threads(2), processes(2)], ids=["inline", "threads", "processes"])
def test_a_gap_in_the_sequence_numbers(place: dict[str, Any]) -> None:
    """The rollout that was lost is expected."""
    case, last = CASES["noisy"], 0 if place["topology"] == "inline" else 1
    with case.start(**place) as run:
        case.advance(run, 2)
        run.source.numbering.next[last] -= 1
        with pytest.raises(LedgerError, match=f"shard {last}: expected rollout 1, got 2: a dropped batch"):
            case.advance(run, 1)


def test_a_batch_read_twice() -> None:
    case = CASES["noisy"]
    with case.start(**processes(2)) as run:
        case.advance(run, 2)
        run.source.numbering.next[0] += 1
        with pytest.raises(LedgerError, match="shard 0: expected rollout 3, got 2: a batch read twice"):
            case.advance(run, 1)


@pytest.mark.parametrize("max_lag", [1, 2])
def test_a_failure_of_who_runs_ahead_leaves_a_checkpoint_and_every_record(max_lag: int, tmp_path: Path) -> None:
    """The environment fails during an update: that update is whole, is kept, and the failure is told after it."""
    env, folder = "support.worker_envs:RaisesLate", tmp_path / "run"
    options = ("--n-envs", "4", "--n-steps", "16", "--batch-size", "32", "--n-epochs", "40", "--seed", "1")
    ahead = ("--max-lag", str(max_lag), "--total-timesteps", "10000", "--run-dir", str(folder), "--env-retries", "0")
    outcome = end(start("train", env, *options, *PROCESSES, *ahead, cwd=tmp_path, has_report=False))
    assert outcome.code == 1
    assert "enough" in outcome.err
    updates = json.loads((folder / "result.json").read_text())["updates"]
    assert updates > 2
    assert find_latest(folder) is not None
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == updates
