"""Signals and sudden death of `headrace train`, a real process each time.

    SIGINT -> 130, SIGTERM -> 143     a whole checkpoint, result.json, and a resume that ends in the calm run's bits
    before training begins            the exit code and at most one line: no traceback, no half-made directory
    twice Ctrl-C                      ends at once
    kill -9                           the last periodic checkpoint goes on to the calm run's bits

A signal is sent once the run is where the test wants it: when the environment touches a file, not after a sleep.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

import headrace as hr
from headrace.checkpoints.snapshot import find_latest
from support.command import PATHS, TINY, WITHOUT_REPORT, Outcome, end, files_in, result_of, run, start
from support.faulty_envs import Announces

ENV = "support.faulty_envs:Announces"
# In the foreground of a terminal of its own, also if the tests were started by nohup, which ignores SIGHUP.
OWN_TERMINAL = """
import fcntl, signal, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
"""
N_STEPS, UPDATES = 32, 6
STEPS_PER_UPDATE = 2 * N_STEPS
TOTAL = UPDATES * STEPS_PER_UPDATE
LENGTH = ("--n-steps", str(N_STEPS), "--total-timesteps", str(TOTAL))
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody interrupts."""
    folder = tmp_path_factory.mktemp("calm")
    assert run("train", ENV, *TINY, *LENGTH, "--run-dir", "out", cwd=folder).code == 0
    return folder / "out"


def start_run(cwd: Path, *more: str, announce: int, instance: int = 1, hold_s: float = 30.0) -> subprocess.Popen[str]:
    """A run in which an instance of the environment stops at step `announce`, says so, and waits for what comes.

    Instance 0 is the one that is only looked at; the first that trains is 1.
    """
    at = {"STEP": announce, "INSTANCE": instance, "FILE": cwd / "announced", "HOLD_S": hold_s}
    variables = {f"ANNOUNCE_{name}": str(value) for name, value in at.items()}
    where = () if "--topology" in more else ("--topology", "inline")  # auto may make further ones to measure them
    options = (*TINY, *LENGTH, "--run-dir", "out", *where, *more)
    return start("train", ENV, *options, cwd=cwd, has_report=False, **variables)


def wait_for(reached: Callable[[], bool], process: subprocess.Popen[str], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not reached():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"never got there, exit code {process.returncode}:\n{out}\n{err}")
        time.sleep(0.005)


def interrupt(process: subprocess.Popen[str], number: signal.Signals, cwd: Path) -> Outcome:
    wait_for((cwd / "announced").exists, process)
    process.send_signal(number)
    return end(process)


def assert_resumes_to(calm: Path, cwd: Path) -> None:
    """Same weights, optimiser, ledger and list of episodes as if nothing had happened."""
    resumed = run("train", "--resume", "out", "--quiet", cwd=cwd)
    assert resumed.code == 0, resumed.err
    got, want = result_of(cwd / "out"), result_of(calm)
    for name in ("weights_sha256", "optimizer_sha256", "ledger", "steps", "updates", "episodes", "mean_return"):
        assert got[name] == want[name], name
    assert (cwd / "out" / "episodes.jsonl").read_text() == (calm / "episodes.jsonl").read_text()


@pytest.mark.parametrize(
    ("number", "announce"),
    [
        pytest.param(signal.SIGINT, 5, id="SIGINT in the first rollout"),
        pytest.param(signal.SIGTERM, 2 * N_STEPS + 17, id="SIGTERM in the middle of the third"),
        pytest.param(signal.SIGINT, UPDATES * N_STEPS - 1, id="SIGINT in the last row of all"),
    ],
)
def test_a_signal_while_collecting(number: signal.Signals, announce: int, calm: Path, tmp_path: Path) -> None:
    outcome = interrupt(start_run(tmp_path, announce=announce), number, tmp_path)
    assert outcome.code == CODES[number]
    assert outcome.err == ""
    updates = announce // N_STEPS
    assert outcome.out.startswith(f"{number.name}: {updates * STEPS_PER_UPDATE:,} steps, ")
    result = result_of(tmp_path / "out")
    assert (result["exit_reason"], result["exit_code"]) == (number.name, CODES[number])
    assert (result["updates"], result["steps"]) == (updates, updates * STEPS_PER_UPDATE)
    found, snapshot, damaged = find_latest(tmp_path / "out")
    assert (found.name, damaged) == (f"step_{result['steps']:012d}", [])
    assert snapshot.state["hashes"]["weights_sha256"] == result["weights_sha256"]
    assert_resumes_to(calm, tmp_path)


def test_the_terminal_is_closed(calm: Path, tmp_path: Path) -> None:
    """A run in the foreground of a terminal that goes away: SIGHUP, and nobody to print for."""
    ours, theirs = os.openpty()
    variables = {"STEP": 2 * N_STEPS + 17, "INSTANCE": 1, "FILE": tmp_path / "announced", "HOLD_S": 30.0}
    options = [option for option in TINY if option != "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-c", f"{OWN_TERMINAL}\n{WITHOUT_REPORT}",
         "train", ENV, *options, *LENGTH, "--run-dir", "out", "--topology", "inline"],
        cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**os.environ, "PYTHONPATH": PATHS} | {f"ANNOUNCE_{name}": str(value) for name, value in variables.items()},
    )  # fmt: skip
    os.close(theirs)
    try:
        deadline = time.monotonic() + 100.0
        while not (tmp_path / "announced").exists():
            assert time.monotonic() < deadline
            if select.select([ours], [], [], 0.01)[0]:  # a terminal that nobody reads stops whoever writes
                os.read(ours, 1 << 16)
        os.close(ours)
        assert process.wait(60.0) == 129
    finally:
        process.kill()
        process.wait()
    result = result_of(tmp_path / "out")
    assert (result["exit_reason"], result["exit_code"], result["updates"]) == ("SIGHUP", 129, 2)
    assert_resumes_to(calm, tmp_path)


def test_nohup(calm: Path, tmp_path: Path) -> None:
    """SIGHUP is ignored where it was when headrace began: the run comes to its end."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = start_run(tmp_path, announce=2 * N_STEPS + 17, hold_s=0.5)
    finally:
        signal.signal(signal.SIGHUP, before)
    outcome = interrupt(process, signal.SIGHUP, tmp_path)
    assert outcome.code == 0
    assert result_of(tmp_path / "out")["weights_sha256"] == result_of(calm)["weights_sha256"]


def test_a_signal_at_any_moment(calm: Path, tmp_path: Path) -> None:
    """Wherever it strikes: in a rollout, an update or a checkpoint. Sleepless polling decides."""
    records, metrics = 2, tmp_path / "out" / "metrics.jsonl"
    process = start_run(tmp_path, "--checkpoint-every", "64", announce=(records + 2) * N_STEPS)
    wait_for(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= records, process)
    process.send_signal(signal.SIGTERM)
    outcome = end(process)
    assert outcome.code == 143
    assert result_of(tmp_path / "out")["exit_reason"] == "SIGTERM"
    assert result_of(tmp_path / "out")["updates"] in (records, records + 1, records + 2)
    assert_resumes_to(calm, tmp_path)


@pytest.mark.parametrize("inside", ["headrace.learning.ppo.Ppo.epochs", "headrace.session.save"])
def test_a_signal_while_learning_or_saving(
    inside: str, calm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is broken off: the update, or the checkpoint, is finished first."""
    module, _, name = inside.rpartition(".")
    owner = resolve_name(module)
    original, calls = getattr(owner, name), []

    def interrupted(*arguments: Any) -> Any:
        calls.append(name)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        where = ("--topology", "inline")  # auto would rehearse an update of its own
        options = (*TINY, *LENGTH, *where, "--run-dir", "out", "--checkpoint-every", str(STEPS_PER_UPDATE))
        outcome = run("train", ENV, *options, cwd=tmp_path)
    assert (outcome.code, outcome.err) == (130, "")
    assert result_of(tmp_path / "out")["updates"] == 2
    assert_resumes_to(calm, tmp_path)


def test_a_signal_during_an_evaluation(calm: Path, tmp_path: Path) -> None:
    """It is broken off, since nobody waits for the end of a long one; the update before it is told all the same."""
    often = ("--eval-every", str(STEPS_PER_UPDATE), "--n-eval-episodes", "3")
    process = start_run(tmp_path, *often, instance=3, announce=20)  # 1 and 2 train, 3 is the first to evaluate
    outcome = interrupt(process, signal.SIGINT, tmp_path)
    assert (outcome.code, outcome.err) == (130, "")
    assert result_of(tmp_path / "out")["updates"] == 1
    assert (tmp_path / "out" / "metrics.jsonl").read_text().count("\n") == 1
    assert not (tmp_path / "out" / "evaluations.npz").exists()
    assert_resumes_to(calm, tmp_path)


@pytest.mark.alone
def test_twice_ctrl_c_ends_at_once(calm: Path, tmp_path: Path) -> None:
    """The first one can't get through: the environment swallows it. The checkpoints so far are whole."""
    process = start_run(tmp_path, "--checkpoint-every", "64", announce=2 * N_STEPS + 3, hold_s=-30.0)
    wait_for((tmp_path / "announced").exists, process)
    process.send_signal(signal.SIGINT)
    wait_for((tmp_path / "swallowed").exists, process)
    assert process.poll() is None
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    outcome = end(process)
    assert time.monotonic() - sent < 5.0
    assert outcome.code == 130
    assert outcome.err == "headrace: interrupted\n"
    result = result_of(tmp_path / "out")
    assert (result["exit_reason"][:12], result["exit_code"]) == ("SIGINT twice", 130)
    assert (result["steps"], result["updates"]) == (2 * STEPS_PER_UPDATE, 2), "those of the last checkpoint"
    assert find_latest(tmp_path / "out")[1].state["steps"] == 2 * STEPS_PER_UPDATE
    assert_resumes_to(calm, tmp_path)


def test_kill_9_in_the_middle_of_a_rollout(calm: Path, tmp_path: Path) -> None:
    """The last periodic checkpoint goes on; what came after it is done once more and told once."""
    process = start_run(tmp_path, "--checkpoint-every", "128", announce=3 * N_STEPS + 9)
    wait_for((tmp_path / "announced").exists, process)
    process.kill()
    assert end(process).code == -signal.SIGKILL
    out = tmp_path / "out"
    result = result_of(out)
    assert (result["exit_reason"][:11], result["exit_code"], result["updates"]) == ("did not end", None, 2)
    assert find_latest(out)[1].state["updates"] == 2
    steps = [json.loads(line)["steps"] for line in (out / "episodes.jsonl").read_text().splitlines()]
    assert max(steps) > find_latest(out)[1].state["steps"], "the kill must come later than the checkpoint"
    with (out / "episodes.jsonl").open("a") as file:
        file.write('{"env_index": 0, "epi')  # a line torn by the kill
    (out / "checkpoints" / ".step_000000000192.0badcafe.partial").mkdir()  # and a checkpoint
    assert_resumes_to(calm, tmp_path)
    assert not list((out / "checkpoints").glob(".*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.full)])
@pytest.mark.parametrize("moment", ["imports", "torch", "environment"])
def test_a_signal_before_training(number: signal.Signals, moment: str, tmp_path: Path) -> None:
    """While Python, torch or the environments come up: the exit code says it, and at most one line."""
    (tmp_path / "stops.py").write_text(STOPS)
    where = {"imports": "tyro", "torch": "torch", "environment": ""}[moment]
    (tmp_path / "sitecustomize.py").write_text("import stops\nstops.before_import()\n")
    process = start(
        *("train", "stops:make", *TINY),
        cwd=tmp_path,
        STOP_AT=where,
        PYTHONPATH=f"{tmp_path}:{PATHS}",
    )
    wait_for((tmp_path / "stopped").exists, process)
    process.send_signal(number)
    outcome = end(process)
    assert outcome.code == CODES[number]
    assert outcome.err in ("", "headrace: interrupted\n")
    assert not any("runs" in name for name in files_in(tmp_path))


STOPS = """
import builtins, os, time

def stop():
    open("stopped", "w").close()
    time.sleep(30)

def before_import():
    name, original = os.environ.get("STOP_AT"), builtins.__import__
    def importing(module, *rest, **kwargs):
        if module == name:
            builtins.__import__ = original
            stop()
        return original(module, *rest, **kwargs)
    if name:
        builtins.__import__ = importing

def make():
    stop()
"""


@pytest.mark.parametrize("first", [11, 2 * N_STEPS + 11], ids=["first rollout", "third rollout"])
def test_ctrl_c_in_python_comes_out_and_the_model_goes_on(first: int, calm: Path, tmp_path: Path) -> None:
    """As in a notebook: learn() raises KeyboardInterrupt, the model is whole, and learns on to the same bits."""
    steps = 0

    class Interrupts(Announces):
        def step(self, action: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == 2 * first:
                signal.raise_signal(signal.SIGINT)
            return super().step(action)

    options: dict[str, Any] = {"n_envs": 2, "n_steps": N_STEPS, "batch_size": 4, "n_epochs": 2, "seed": 7}
    with hr.PPO("MlpPolicy", Interrupts, topology="inline", **options) as model:  # auto would step one to measure it
        with pytest.raises(KeyboardInterrupt):
            model.learn(TOTAL)
        assert model.result is not None
        updates = first // N_STEPS
        assert (model.result.exit_reason, model.num_timesteps) == ("SIGINT", updates * STEPS_PER_UPDATE)
        model.save(tmp_path / "saved")
        policy = model.policy
        model.learn(TOTAL - model.num_timesteps)
        assert model.policy is policy
        assert model.result.weights_sha256 == result_of(calm)["weights_sha256"]
    with hr.PPO.load(tmp_path / "saved", env=ENV) as loaded:
        loaded.learn(TOTAL - loaded.num_timesteps)
        assert loaded.result is not None
        assert loaded.result.weights_sha256 == result_of(calm)["weights_sha256"]
