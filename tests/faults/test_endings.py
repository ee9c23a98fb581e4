"""However a session ends: children first, then what can be kept, and always the run's own error.

Ctrl-C, on a busy machine       all children are gone within 5 s; workers are, before the report is drawn
while it learns, or draws       workers end at once, the update is finished, the report is broken off
odd messages, a bad report      the error that comes out is the environment's, cut and printable; files hold it too
a crash inline or in threads    leaves a stack and a result.json that says so; the next session names it
a hang inline                   leaves a stack and says what to do; nobody is killed
two sessions in one directory   the second is refused at once, and nothing is mixed
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.checkpoints.snapshot import find_latest
from headrace.errors import CheckpointError, EnvError, UsageError
from headrace.learning.ppo import Ppo
from headrace.plain_text import MAX_MESSAGE
from headrace.run_lock import RunLock
from support.command import TINY, Outcome, end, result_of, run, start
from support.ending_envs import LONG_BYTES, ODD, ODD_SHOWN, Ending
from support.faulty_envs import Faulty, Steady
from support.waiting import family, is_gone, segments_of_processes, wait_until

ENDING = "support.ending_envs:Ending"
OPTIONS: dict[str, Any] = {"n_envs": 2, "n_steps": 8, "batch_size": 8, "n_epochs": 1, "seed": Faulty.SEED}
INLINE = {"topology": "inline"}
THREADS = {"topology": "threads", "workers": 1}
PROCESSES = {"topology": "processes", "workers": 1, "env_retries": 0}  # what is raised ends the run
every_place = pytest.mark.parametrize("place", [INLINE, THREADS, PROCESSES], ids=lambda place: place["topology"])


@pytest.fixture(autouse=True)
def from_the_first_step(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    Ending.steps = 0
    yield
    caplog.get_records("call").clear()  # it keeps tracebacks, and they keep the models


@contextmanager
def spinning(count: int = 2) -> Iterator[None]:
    """A busy machine."""
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------


@pytest.mark.alone
def test_ctrl_c_on_a_busy_machine(tmp_path: Path) -> None:
    """Workers, fork server and resource tracker: all of them, within 5 s of the first Ctrl-C, and the checkpoint is."""
    slow = ("support.worker_envs:dawdling", "--env-kwargs", json.dumps({"delay_s": 0.05}))
    where = ("--topology", "processes", "--workers", "2", "--run-dir", "out", "--total-timesteps", "100000")
    metrics = tmp_path / "out" / "metrics.jsonl"
    process = start("train", *slow, *TINY, *where, cwd=tmp_path)
    try:
        wait_until(lambda: (metrics.exists() and metrics.stat().st_size > 0) or process.poll() is not None)
        members = family(process.pid)
        segments = segments_of_processes(members)
        with spinning():
            process.send_signal(signal.SIGINT)
            took_s = wait_until(lambda: process.poll() is not None and all(map(is_gone, members)), 60.0)
    finally:
        process.kill()
        outcome = end(process)
    assert (outcome.code, outcome.err) == (130, "")
    assert len(members) == 5, "two workers, a spare, the fork server, the resource tracker"
    assert took_s < 5.0
    assert len(segments) == 3, "the ring's, the weights', and the crash notes"
    assert not any(path.exists() for path in segments)
    assert find_latest(tmp_path / "out")[1].state["steps"] == result_of(tmp_path / "out")["steps"] > 0


@pytest.mark.parametrize("fault", ["signal", "error"])
def test_workers_end_before_the_report_is_drawn(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []
    drawn: list[list[bool]] = []

    def ends(record: dict[str, float]) -> None:
        pids.extend(model.parts.reader.place.workers.pids)
        if fault == "error":
            raise RuntimeError("of a callback")
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(
        "headrace.views.report.write_report", lambda run_dir, has_figure: drawn.append([is_gone(pid) for pid in pids])
    )
    with hr.PPO("MlpPolicy", Steady, **OPTIONS, **PROCESSES) as model:
        with pytest.raises(RuntimeError if fault == "error" else KeyboardInterrupt):
            model.learn(64, ends, run_dir=tmp_path / "out")
        assert drawn == [[True]]
        model.learn(16)  # and it goes on, with new workers
        assert model.num_timesteps == 32


def test_ctrl_c_while_learning_ends_the_workers_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The update is finished and kept, however long it takes; its rollouts are already there."""
    seen: list[bool] = []
    original = Ppo.epochs

    def epochs(self: Ppo, *arguments: Any) -> Any:
        if len(calls) == 1:
            (pid,) = model.parts.reader.place.workers.pids
            signal.raise_signal(signal.SIGINT)
            seen.append(is_gone(pid))
        calls.append(0)
        return original(self, *arguments)

    calls: list[int] = []
    monkeypatch.setattr(Ppo, "epochs", epochs)
    with hr.PPO("MlpPolicy", Steady, **OPTIONS, **PROCESSES, max_lag=1) as model:
        with pytest.raises(KeyboardInterrupt):
            model.learn(640)
        assert seen == [True]
        assert (model.num_timesteps, model.run.updates) == (32, 2)
        monkeypatch.undo()
        model.learn(16)


def test_a_signal_is_not_forgotten_where_collecting_cannot_be_broken_off() -> None:
    """It strikes between two waits; the next wait does not begin. Else a slow rollout would be waited for."""
    with hr.PPO("MlpPolicy", Steady, **OPTIONS, **INLINE, shards=2) as model:
        reader = model.parts.reader
        waits: list[int] = []
        take, wait = reader.ring.take, reader.place.wait

        def struck() -> Any:
            taken = take()
            if len(waits) == 1:
                signal.raise_signal(signal.SIGINT)
            return taken

        reader.ring.take = struck  # type: ignore[method-assign]
        reader.place.wait = lambda: (waits.append(0), wait())[1]  # type: ignore[func-returns-value, method-assign]
        with pytest.raises(KeyboardInterrupt):
            model.learn(64)
        assert (len(waits), model.num_timesteps) == (1, 0)


@pytest.mark.parametrize("fails", [False, True], ids=["of a run that is done", "of a run that failed"])
def test_ctrl_c_breaks_off_the_drawing(fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an end, but never hides an error."""

    def draws(run_dir: Path, has_figure: bool) -> None:
        signal.raise_signal(signal.SIGINT)
        (run_dir / "drawn").touch()

    monkeypatch.setattr("headrace.views.report.write_report", draws)
    env = "support.faulty_envs:Faulty" if fails else Steady
    with hr.PPO("MlpPolicy", env, **OPTIONS, **INLINE) as model:
        with pytest.raises(EnvError if fails else KeyboardInterrupt):
            model.learn(200 if fails else 16, run_dir=tmp_path / "out")
        assert not (tmp_path / "out" / "drawn").exists()
        result = result_of(tmp_path / "out")
        if fails:
            assert (result["exit_reason"][:6], result["exit_code"]) == ("error:", 1)
        else:
            assert (result["exit_reason"], result["exit_code"], result["steps"]) == ("SIGINT", 130, 16)
            model.learn(16)  # nothing is torn


def test_no_figure_for_a_run_of_seconds(tmp_path: Path) -> None:
    """The page says how to draw it, and that works; a run that was not broken off has one at once."""
    folder = tmp_path / "out"
    kwargs = {"how": "signals itself", "at": 40}
    with (
        pytest.raises(KeyboardInterrupt),
        hr.PPO("MlpPolicy", ENDING, env_kwargs=kwargs, **OPTIONS, **INLINE) as model,
    ):
        model.learn(200, run_dir=folder)
    assert "matplotlib" not in _imported_by_a_report(folder)
    assert not (folder / "report.png").exists()
    assert f"headrace report {folder}" in (folder / "report.html").read_text()
    assert f"headrace report {folder}" in (folder / "log.txt").read_text()
    told = run("report", "out", cwd=tmp_path, has_report=True)
    assert (told.code, told.out, told.err) == (0, "report in out/report.html\n", "")
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")
    assert "headrace report" not in (folder / "report.html").read_text()


def _imported_by_a_report(folder: Path) -> str:
    script = (
        "import sys; from pathlib import Path; from headrace.views.report import write_report\n"
        "write_report(Path(sys.argv[1]), has_figure=False); print(*sys.modules)"
    )
    command = [sys.executable, "-c", script, str(folder)]
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout


# --- the run's own error ---------------------------------------------------------------------------------------------


def failed(how: str, place: dict[str, Any], folder: Path) -> Outcome:
    """`headrace train` on an environment that ends like this in its third update."""
    where = [text for name, value in place.items() for text in (f"--{name}", str(value))]
    arguments = (ENDING, "--env-kwargs", json.dumps({"how": how, "at": 20}), *TINY, "--total-timesteps", "400")
    return run("train", *arguments, *where, "--run-dir", "out", cwd=folder, has_report=True)


@every_place
@pytest.mark.parametrize(
    ("how", "said"),
    [("odd", ODD_SHOWN), ("long", "begin xxx"), ("unspeakable", "can't be shown")],
    ids=["odd", "long", "unspeakable"],
)
def test_odd_messages_come_out_printable_and_cut(how: str, said: str, place: dict[str, Any], tmp_path: Path) -> None:
    outcome = failed(how, place, tmp_path)
    assert (outcome.code, outcome.out) == (1, "")
    assert said in outcome.error
    assert "step 4: the environment raised" in outcome.error
    assert len(outcome.err) < 200_000
    assert "\x1b" not in outcome.err
    outcome.err.encode()
    folder = tmp_path / "out"
    log = (folder / "log.txt").read_text(encoding="utf-8")
    assert said in log
    assert "Traceback (most recent call last)" in log
    assert "\x1b" not in log
    result = result_of(folder)
    assert result["exit_code"] == 1
    assert result["exit_reason"].startswith("error: env 1, episode")
    assert (ODD if how == "odd" else said) in result["exit_reason"]
    assert (folder / "report.html").exists()
    assert sum(file.stat().st_size for file in folder.iterdir()) < 500_000
    if how == "long":
        assert f" [... {LONG_BYTES + 10 - MAX_MESSAGE:,} characters left out ...] " in outcome.error
        assert outcome.error.endswith("x end")
    assert find_latest(folder)[1].state["steps"] == 16


@every_place
def test_sys_exit_in_an_environment_is_an_error(place: dict[str, Any], tmp_path: Path) -> None:
    """Not a run that ended with code 0, without a checkpoint and without a word."""
    outcome = failed("sys.exit", place, tmp_path)
    assert outcome.code == 1
    assert "the environment raised SystemExit: 0" in outcome.error
    assert result_of(tmp_path / "out")["exit_code"] == 1
    assert find_latest(tmp_path / "out")[1].state["steps"] == 16


@pytest.mark.parametrize("error", [UnicodeEncodeError("ascii", "é", 0, 1, "of a report"), MemoryError("of a report")])
def test_a_report_that_fails_hides_nothing(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(run_dir: Path, has_figure: bool) -> None:
        raise error

    monkeypatch.setattr("headrace.views.report.write_report", fails)
    outcome = failed("raises, and close raises", INLINE, tmp_path)
    assert outcome.error.endswith("the environment raised RuntimeError: the first thing that went wrong")
    assert "the report could not be written" in (tmp_path / "out" / "log.txt").read_text()
    done = run(
        "train", "support.faulty_envs:Steady", *TINY, "--total-timesteps", "16", "--run-dir", "two", cwd=tmp_path
    )
    assert done.code == 0


@pytest.mark.parametrize("full", ["log.txt", "episodes.jsonl"])
def test_a_full_disk_hides_nothing(full: str, tmp_path: Path) -> None:
    """The file can't even be closed: what it could not take is still in its buffer."""
    with hr.PPO("MlpPolicy", ENDING, env_kwargs={"how": "odd", "at": 40}, **OPTIONS, **INLINE) as model:

        def fill(record: dict[str, float]) -> None:
            device = os.open("/dev/full", os.O_WRONLY)
            for link in Path("/proc/self/fd").iterdir():
                if link.exists() and link.resolve() == tmp_path / "out" / full:
                    os.dup2(device, int(link.name))
            os.close(device)

        with pytest.raises(EnvError, match="fell over"):
            model.learn(200, fill, run_dir=tmp_path / "out")


def test_an_ascii_terminal_and_a_reader_that_went_away(tmp_path: Path) -> None:
    """Neither ends the run, nor changes its exit code, nor prints a traceback."""
    options = [option for option in TINY if option != "--quiet"]
    arguments = ("support.faulty_envs:Steady", *options, "--topology", "inline", "--total-timesteps", "24")
    ascii_only = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    outcome = end(start("train", *arguments, "--run-dir", "é\U0001f600", cwd=tmp_path, has_report=False, **ascii_only))
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.isascii()
    assert outcome.out.endswith("/report.html\n")
    buffered = {"PYTHONUNBUFFERED": ""}
    process = start("train", *arguments, "--run-dir", "out", cwd=tmp_path, has_report=False, **buffered)
    assert process.stdout is not None
    process.stdout.close()  # as `| head -0`
    process.stdout = None
    outcome = end(process)
    assert (outcome.code, outcome.err) == (0, "")
    assert result_of(tmp_path / "out")["exit_reason"] == "done"


@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 0), (["check"], 3)])
def test_output_that_nobody_reads_changes_no_exit_code(arguments: list[str], code: int) -> None:
    """What is still in the buffer at the end: Python would complain, and exit with 120. A full disk is an error."""
    script = (
        "import sys, types; from headrace.cli import main\n"
        "sys.modules['headrace.cli.check_command'] = types.SimpleNamespace(main=lambda argv: print('x') or 3)\n"
        f"sys.exit(main.main({arguments}))"
    )

    def run_into(output: int) -> tuple[int, bytes]:
        environment = {**os.environ, "PYTHONUNBUFFERED": ""}
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, env=environment, check=False)
        os.close(output)
        return done.returncode, done.stderr

    nobody, output = os.pipe()
    os.close(nobody)
    assert run_into(output) == (code, b"")
    full = run_into(os.open("/dev/full", os.O_WRONLY))
    assert full == (code or 1, b"headrace: error: not all could be printed: [Errno 28] No space left on device\n")


# --- crashes and hangs that nothing can replace ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of the run whose environment never ends."""
    folder = tmp_path_factory.mktemp("calm")
    arguments = (ENDING, "--env-kwargs", json.dumps({"how": "no", "at": 0}), *TINY, "--total-timesteps", "64")
    assert run("train", *arguments, "--run-dir", "out", cwd=folder).code == 0
    return result_of(folder / "out")


@pytest.mark.parametrize(
    ("how", "place", "code", "named"),
    [
        ("SIGSEGV", INLINE, -signal.SIGSEGV, "Segmentation fault, with its stack in out/log.txt"),
        ("os._exit", THREADS, 0, "an environment ended the process"),
    ],
    ids=["SIGSEGV inline", "os._exit in a thread"],
)
def test_a_crash_leaves_a_stack_and_a_result_that_says_so(
    how: str, place: dict[str, Any], code: int, named: str, calm: dict[str, Any], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    where = [text for name, value in place.items() for text in (f"--{name}", str(value))]
    arguments = (ENDING, "--env-kwargs", json.dumps({"how": how, "at": 44}), *TINY, "--total-timesteps", "64")
    options = (*arguments, *where, "--run-dir", "out", "--checkpoint-every", "16")
    outcome = end(start("train", *options, cwd=tmp_path, has_report=False))
    assert (outcome.code, outcome.out) == (code, "")
    result = result_of(tmp_path / "out")
    assert result["exit_reason"].startswith("did not end")
    assert (result["exit_code"], result["steps"], result["updates"]) == (None, 32, 4)
    log = (tmp_path / "out" / "log.txt").read_text()
    assert ("Fatal Python error: Segmentation fault" in log) == (how == "SIGSEGV")
    assert ("ending_envs.py" in log) == (how == "SIGSEGV"), "the stack names the environment's line"
    monkeypatch.setenv("HEADRACE_TEST_MENDED", "1")
    resumed = run("train", "--resume", "out", "--quiet", cwd=tmp_path)
    assert resumed.code == 0
    assert resumed.err.startswith("headrace: warning: the last session in out did not end: ")
    assert named in resumed.err
    assert "its last checkpoint is of step 32" in resumed.err
    assert "did not end" in (tmp_path / "out" / "log.txt").read_text()
    ours = result_of(tmp_path / "out")
    assert (ours["exit_reason"], ours["weights_sha256"]) == ("done", calm["weights_sha256"])
    again = run("train", "--resume", "out", "--quiet", "--total-timesteps", "72", cwd=tmp_path)
    assert (again.code, again.err) == (0, ""), "it is said once"


def test_a_calm_end_and_a_signal_are_no_crash(tmp_path: Path) -> None:
    """Also not after a session that crashed before: the stack of that one is still in the log."""
    arguments = ("support.faulty_envs:Steady", *TINY, "--total-timesteps", "16", "--run-dir", "out")
    assert run("train", *arguments, cwd=tmp_path).code == 0
    with (tmp_path / "out" / "log.txt").open("a") as log:
        log.write("Fatal Python error: Segmentation fault\n")
    resumed = run("train", "--resume", "out", "--quiet", "--total-timesteps", "32", cwd=tmp_path)
    assert (resumed.code, resumed.err) == (0, "")
    result = tmp_path / "out" / "result.json"
    result.write_text(json.dumps(json.loads(result.read_text()) | {"exit_code": None}))
    resumed = run("train", "--resume", "out", "--quiet", "--total-timesteps", "48", cwd=tmp_path)
    assert "an environment ended the process" in resumed.err, "the crash in the log was of a session before"


@pytest.mark.alone
@pytest.mark.parametrize("place", [INLINE, THREADS], ids=["inline", "threads"])
def test_a_hang_leaves_a_stack_and_nobody_is_killed(place: dict[str, Any], tmp_path: Path) -> None:
    """It was only slow: the run goes on to its end."""
    kwargs = {"how": "hangs", "at": 5, "seconds": 4.0}
    with hr.PPO("MlpPolicy", ENDING, env_kwargs=kwargs, **OPTIONS, **place) as model:
        model.learn(64, run_dir=tmp_path, stall_after_s=2.0)
    log = (tmp_path / "log.txt").read_text()
    assert log.count("Timeout (0:00:02)!") == 1, "and not for the updates after it"
    assert "ending_envs.py" in log
    assert log.count("no update for 2 s: an environment may hang") == 1
    assert "Ctrl-C ends the run at its last update" in log
    assert str(os.getpid()) in log
    assert result_of(tmp_path)["exit_reason"] == "done"


@pytest.mark.alone
def test_ctrl_c_gets_out_of_a_thread_that_hangs(tmp_path: Path) -> None:
    """The thread is left behind, the checkpoint is not."""
    before = threading.active_count()
    kwargs = {"how": "hangs", "at": 40, "seconds": 8.0}
    main = threading.main_thread().ident
    assert main is not None
    began = time.monotonic()
    with hr.PPO("MlpPolicy", ENDING, env_kwargs=kwargs, **OPTIONS, **THREADS) as model:

        def strike() -> None:
            wait_until(lambda: Ending.steps == 40)
            signal.pthread_kill(main, signal.SIGINT)

        striker = threading.Thread(target=strike)
        striker.start()
        with pytest.raises(KeyboardInterrupt):
            model.learn(64, run_dir=tmp_path / "out")
        striker.join()
        assert result_of(tmp_path / "out")["exit_reason"] == "SIGINT"
        assert find_latest(tmp_path / "out")[1].state["steps"] == 32
    assert time.monotonic() - began < 7.5, "it was not waited for"
    wait_until(lambda: threading.active_count() == before, 20.0)


# --- one writer ------------------------------------------------------------------------------------------------------


@pytest.mark.alone
def test_a_second_session_is_refused_at_once_and_nothing_is_mixed(tmp_path: Path) -> None:
    """A real second process, while the first is between two updates: before it has read or loaded anything."""
    arguments = ("support.faulty_envs:Steady", *TINY, "--topology", "inline", "--run-dir", "out")
    assert run("train", *arguments, "--total-timesteps", "16", cwd=tmp_path).code == 0
    folder, seen = tmp_path / "out", []

    def files() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}

    def second(record: dict[str, float]) -> None:
        if not seen:
            before = files()
            began = time.monotonic()
            seen.append(end(start("train", "--resume", "out", "--quiet", cwd=tmp_path)))
            seen.append(time.monotonic() - began)
            seen.append(run("train", "--resume", "out/checkpoints/step_000000000016", "--quiet", cwd=tmp_path))
            seen.append(run("train", *arguments, "--total-timesteps", "16", cwd=tmp_path))
            assert files() == before
            assert run("train", "--resume", "out", "--dry-run", cwd=tmp_path).code == 0, "reading is allowed"

    with hr.PPO.load(folder, env="support.faulty_envs:Steady") as model:
        model.learn(32, second, run_dir=folder)
    refused, took_s, *others = seen
    for outcome in (refused, *others):
        assert outcome.code == 2
        who = f"another program writes to it (process {os.getpid()})"
        assert outcome.only_error.startswith(f"run directory out: {who}; wait until it has ended")
    assert took_s < 3.0  # a second on a calm machine, of which most is Python's and tyro's own
    assert result_of(folder)["steps"] == 48
    assert run("train", "--resume", "out", "--quiet", "--total-timesteps", "64", cwd=tmp_path).code == 0


def test_two_sessions_of_one_process(tmp_path: Path) -> None:
    with (
        hr.PPO("MlpPolicy", Steady, **OPTIONS, **INLINE) as one,
        hr.PPO("MlpPolicy", Steady, **OPTIONS, **INLINE) as two,
    ):

        def also(record: dict[str, float]) -> None:
            assert result_of(tmp_path)["exit_code"] is None, "from the first moment, not from the first checkpoint"
            with pytest.raises(UsageError, match="another program writes to it"):
                two.learn(16, run_dir=tmp_path)

        one.learn(16, also, run_dir=tmp_path)
        one.learn(16, run_dir=tmp_path)


def test_a_lock_dies_with_its_process_and_is_not_inherited(tmp_path: Path) -> None:
    """kill -9 leaves none behind, also if a process that it had forked lives on."""
    script = (
        "import os, sys, time; from pathlib import Path; from headrace.run_lock import RunLock\n"
        "lock = RunLock.take(Path('.'))\n"
        "child = os.fork()\n"
        "print(child, flush=True) if child else None\n"
        "time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        with pytest.raises(UsageError, match=f"process {holder.pid}"):
            RunLock.take(tmp_path)
    finally:
        holder.kill()
        holder.wait()
    try:
        RunLock.take(tmp_path).release()
        assert not is_gone(child)
    finally:
        os.kill(child, signal.SIGKILL)
        holder.stdout.close()


def test_who_removes_the_log_does_not_lift_the_lock(tmp_path: Path) -> None:
    with RunLock.take(tmp_path) as lock:
        (tmp_path / "log.txt").unlink()
        for take in (RunLock.take, RunLock.take_early):
            with pytest.raises(UsageError, match=f"another program writes to it \\(process {os.getpid()}\\)"):
                take(tmp_path)
        assert not list(tmp_path.iterdir())
        (tmp_path / "log.txt").touch()
        assert lock.is_of(tmp_path)
    RunLock.take(tmp_path).release()


def test_a_lock_through_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.txt").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"log.txt is a link"):
        RunLock.take(tmp_path / "run")


# --- start-up of children --------------------------------------------------------------------------------------------

STARTS = """
import os, sys
from headrace.runtime.child import Child
from headrace.runtime.fork_server import ForkServer

def work(line, payload):
    line.send(repr((os.environ.get("PYTHONSAFEPATH"), "" in sys.path)).encode())

method, *preload = sys.argv[1:]
child = Child.spawn("child", preload) if method == "spawn" else ForkServer.shared(preload).fork("child")
child.assign(work, None)
print(child.line.receive())
child.end(20.0)
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_children_do_not_import_from_the_working_directory(method: str, tmp_path: Path) -> None:
    """The directory of the script is another one: an unpacked archive does not get a word in."""
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "mine.py").write_text(STARTS)
    (tmp_path / "archive").mkdir()
    for name in ("socket", "selectors", "tempfile", "_strptime", "pickle", "signal", "multiprocessing"):
        (tmp_path / "archive" / f"{name}.py").write_text("open('imported', 'w').close()")
    done = subprocess.run(
        [sys.executable, tmp_path / "script" / "mine.py", method],
        cwd=tmp_path / "archive", text=True, capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout == "b'(None, False)'\n", "what an environment starts finds its modules as ever"
    assert done.stderr == ""
    assert not (tmp_path / "archive" / "imported").exists()


def test_ctrl_c_while_a_fork_server_imports(tmp_path: Path) -> None:
    """A terminal sends it to all: no traceback, nobody left."""
    (tmp_path / "slow.py").write_text("import time\nopen('importing', 'w').close()\ntime.sleep(60)")
    (tmp_path / "mine.py").write_text(STARTS)
    process = subprocess.Popen(
        [sys.executable, "mine.py", "forkserver", "slow"], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        process_group=0, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    try:
        wait_until((tmp_path / "importing").exists, 30.0)
        members = family(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        wait_until(lambda: all(map(is_gone, members)), 5.0)
    finally:
        process.kill()
        _, err = process.communicate()
    assert len(members) == 2
    assert err.count("Traceback") == 1, f"our own script's, and no other:\n{err}"


def test_a_fork_server_that_imports_ends_with_its_parent(tmp_path: Path) -> None:
    """kill -9 of the parent alone: it would import for a minute first."""
    (tmp_path / "slow.py").write_text("import time\nopen('importing', 'w').close()\ntime.sleep(60)")
    (tmp_path / "mine.py").write_text(STARTS)
    process = subprocess.Popen(
        [sys.executable, "mine.py", "forkserver", "slow"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    try:
        wait_until((tmp_path / "importing").exists, 30.0)
        members = family(process.pid)
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: all(map(is_gone, members)), 5.0)


# --- once more -------------------------------------------------------------------------------------------------------


def test_ctrl_c_again_while_the_command_ends() -> None:
    """Who holds Ctrl-C down gets the exit code, and no traceback of ours."""
    script = (
        "import os, signal, sys, types; from headrace.cli import main\n"
        "press = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.modules['headrace.cli.check_command'] = types.SimpleNamespace(main=press)\n"
        "end = main.end_spawned\n"
        "main.end_spawned = lambda others: press() or end(others)\n"
        "sys.argv = ['headrace', 'check']\n"
        "sys.exit(main.main())"
    )
    done = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, "headrace: interrupted\n")


def test_a_checkpoint_that_can_not_be_written_is_the_end_in_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the periodic one nor the last: result.json does not say that the run goes on."""

    def full(*_: object) -> None:
        raise CheckpointError("could not write a checkpoint: no space left")

    monkeypatch.setattr("headrace.session.save", full)
    with (
        hr.PPO("MlpPolicy", Steady, **OPTIONS, **INLINE) as model,
        pytest.raises(CheckpointError, match="no space left"),
    ):
        model.learn(64, run_dir=tmp_path, checkpoint_every=16)
    result = result_of(tmp_path)
    assert (result["exit_reason"], result["exit_code"]) == ("error: could not write a checkpoint: no space left", 1)
