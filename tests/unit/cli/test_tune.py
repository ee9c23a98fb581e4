"""`headrace train --tune`: what is printed and kept, what stays as it was typed, failures, Ctrl-C.

Only what runs in this process is tried, for a moment, so these tests cost little. Which candidate wins is the machine's
business; what is done with it is ours.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from support.command import TINY, end, files_in, result_of, run, start

STEADY = "support.faulty_envs:Steady"
SHORT = ("--seed", "7", "--batch-size", "32", "--n-epochs", "1", "--total-timesteps", "512", "--quiet")
TUNE = ("--tune", "--tune-seconds", "2", "--topology", "inline")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A tuned run whose batch was left to the defaults, as far as --config has it: 8 x 64."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "first.json").write_text(json.dumps({"topology": {"n_envs": 8, "n_steps": 64}}))
    warm = run("train", STEADY, *SHORT, "--n-steps", "64", "--topology", "inline", "--run-dir", "warm", cwd=folder)
    assert warm.code == 0, warm.err  # what is compiled or imported once is not for the two seconds
    outcome = run("train", STEADY, *SHORT, *TUNE, "--config", "first.json", "--run-dir", "out", cwd=folder)
    assert outcome.code == 0, outcome.err
    return folder, outcome.out


def place_of(run_dir: Path) -> dict[str, Any]:
    place: dict[str, Any] = json.loads((run_dir / "config.json").read_text())["topology"]
    return place


def test_the_table_says_what_was_tried_and_what_was_chosen(tuned: tuple[Path, str]) -> None:
    _, out = tuned
    lines = out.splitlines()
    assert lines[0].startswith("tuning: ")
    assert lines[0].endswith("a batch stays 512 steps")
    assert sum(line.endswith("<- chosen") for line in lines) == 1
    assert any(line.startswith("chosen: --n-envs ") for line in lines)
    assert any(line.startswith("why: ") for line in lines)


def test_the_choice_is_in_config_json_and_nothing_of_it_is_open(tuned: tuple[Path, str]) -> None:
    folder, out = tuned
    place = place_of(folder / "out")
    assert place["n_envs"] * place["n_steps"] == 512
    assert place["topology"] in ("inline", "threads", "processes")
    assert place["workers"] != "auto" or place["topology"] == "inline"
    assert f"--n-envs {place['n_envs']} --n-steps {place['n_steps']} --topology {place['topology']}" in out
    kept = json.loads((folder / "out" / "tuning.json").read_text())
    assert kept["choice"]["n_envs"] == place["n_envs"]
    assert any(one["steps_per_s"] for one in kept["tried"])
    assert f"tune: {kept['why']}" in (folder / "out" / "log.txt").read_text()


def test_the_same_options_typed_by_hand_give_the_same_bits(tuned: tuple[Path, str]) -> None:
    folder, out = tuned
    typed = next(line for line in out.splitlines() if line.startswith("chosen: ")).removeprefix("chosen: ").split()
    assert run("train", STEADY, *SHORT, *typed, "--run-dir", "typed", cwd=folder).code == 0
    ours, theirs = result_of(folder / "out"), result_of(folder / "typed")
    assert ours["weights_sha256"] == theirs["weights_sha256"]
    assert place_of(folder / "out") == place_of(folder / "typed")


def test_a_rerun_and_a_resume_do_not_tune_again(tuned: tuple[Path, str]) -> None:
    folder, _ = tuned
    again = run("train", STEADY, "--config", "out/config.json", "--quiet", "--run-dir", "again", cwd=folder)
    assert again.code == 0, again.err
    assert "tuning" not in again.out
    assert place_of(folder / "again") == place_of(folder / "out")
    assert result_of(folder / "again")["weights_sha256"] == result_of(folder / "out")["weights_sha256"]
    longer = run("train", "--resume", "again", "--total-timesteps", "1024", "--quiet", "--trust", cwd=folder)
    assert longer.code == 0, longer.err
    assert place_of(folder / "again") == place_of(folder / "out")


def test_what_was_typed_stays(tmp_path: Path) -> None:
    outcome = run("train", STEADY, *TINY, *TUNE, "--total-timesteps", "64", "--run-dir", "out", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    place = place_of(tmp_path / "out")
    assert (place["n_envs"], place["n_steps"], place["topology"]) == (2, 4, "inline")
    assert "leave no choice" in outcome.out


def test_what_a_toml_file_says_stays(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text('n_envs = 4\nnum_steps = 32\ntopology = "inline"\n')
    options = (*SHORT, *TUNE, "--config", "my.toml", "--run-dir", "out")
    outcome = run("train", STEADY, *options, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    place = place_of(tmp_path / "out")
    assert (place["n_envs"], place["n_steps"], place["topology"]) == (4, 32, "inline")
    assert "leave no choice" in outcome.out


def test_a_candidate_that_fails_is_said_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    promised = {"inline": 1000.0, "threads": 9000.0, "processes": 1.0}
    monkeypatch.setattr("headrace.api.tuning.predicted", lambda one, *_: promised[one.topology])
    (tmp_path / "mine.py").write_text(
        "import threading\n"
        "from support.faulty_envs import Steady\n"
        "class Shy(Steady):\n"
        "    def step(self, action):\n"
        "        if threading.current_thread() is not threading.main_thread():\n"
        "            raise RuntimeError('not in this thread')\n"
        "        return super().step(action)\n"
    )
    options = ("--n-envs", "2", "--n-steps", "8", *SHORT, "--tune", "--tune-seconds", "10", "--run-dir", "out")
    outcome = run("train", "mine:Shy", *options, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert place_of(tmp_path / "out")["topology"] == "inline"
    threads = [line for line in outcome.out.splitlines() if "2 threads" in line and "failed" in line]
    assert len(threads) == 1
    assert "not in this thread" in threads[0]


def test_a_run_that_is_killed_has_its_table(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, signal\n"
        "from support.faulty_envs import Steady\n"
        "class Killed(Steady):\n"
        "    def step(self, action):\n"
        "        if os.path.exists('out/config.json'):  # it trains\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return super().step(action)\n"
    )
    process = start("train", "mine:Killed", *TINY, *TUNE, "--run-dir", "out", cwd=tmp_path, has_report=False)
    assert end(process).code == -signal.SIGKILL
    assert json.loads((tmp_path / "out" / "tuning.json").read_text())["choice"]["n_envs"] == 2


def test_an_environment_that_always_fails_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from support.faulty_envs import Steady\n"
        "class Broken(Steady):\n"
        "    def step(self, action):\n"
        "        raise RuntimeError('out of order')\n"
    )
    outcome = run("train", "mine:Broken", *SHORT, *TUNE, "--run-dir", "out", cwd=tmp_path)
    assert outcome.code == 1
    assert "could not be stepped; headrace check mine:Broken shows why" in outcome.error
    assert not (tmp_path / "out").exists()


def test_a_dry_run_says_what_it_would_try_and_tries_nothing(tmp_path: Path) -> None:
    begun = time.monotonic()
    outcome = run("train", STEADY, *SHORT, "--tune", "--tune-seconds", "3000", "--dry-run", cwd=tmp_path)
    assert time.monotonic() - begun < 1000
    assert outcome.code == 0, outcome.err
    line = next(line for line in outcome.out.splitlines() if line.startswith("tune "))
    assert "would spend up to 3000 s" in line
    assert "n_envs 4, 8, 16" in line
    assert files_in(tmp_path) == set()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--resume", "somewhere", "--tune"), "--resume goes on with what was chosen: leave --tune out"),
        (("--resume", "somewhere", "--tune-seconds", "5"), "leave --tune-seconds out"),
        (("--resume", "somewhere", "--tune-max-lag=1"), "leave --tune-max-lag out"),
        ((STEADY, "--tune", "--schedule", "x.jsonl"), "--tune: a replay runs inline"),
        ((STEADY, "--tune", "--tune-seconds", "0"), "--tune-seconds: expected more than 0"),
        ((STEADY, "--tune", "--tune-max-lag", "-1"), "tune_max_lag: expected 0 or more"),
        ((STEADY, "--tune-seconds", "5"), "--tune-seconds: expected --tune as well"),
    ],
)
def test_what_does_not_go_together_is_refused(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    outcome = run("train", *options, cwd=tmp_path)
    assert outcome.code == 2
    assert said in outcome.only_error


def test_ctrl_c_during_a_trial_leaves_nothing(tmp_path: Path) -> None:
    at = {"STEP": 3, "INSTANCE": 0, "FILE": tmp_path / "announced", "HOLD_S": 60}
    variables = {f"ANNOUNCE_{name}": str(value) for name, value in at.items()}
    options = ("--tune", "--tune-seconds", "200", "--topology", "processes", "--quiet", "--run-dir", "out")
    process = start("train", "support.faulty_envs:Announces", *options, cwd=tmp_path, has_report=False, **variables)
    deadline = time.monotonic() + 60
    while not (tmp_path / "announced").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    outcome = end(process)
    assert outcome.code == 130, outcome.err
    assert outcome.err == "headrace: interrupted\n"
    assert not (tmp_path / "out").exists()
    assert not [*Path("/dev/shm").glob(f"headrace-{process.pid}-*")]
