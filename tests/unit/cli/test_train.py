"""`headrace train`: the plan, what a run directory holds, exit codes, and going on with a run."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.checkpoints.snapshot import load
from headrace.session_result import Result
from headrace.telemetry.sinks import read_records
from support.command import TINY, files_in, result_of, run

STEADY = "support.faulty_envs:Steady"
EVERYTHING = ("--total-timesteps", "64", "--checkpoint-every", "16", "--eval-every", "16", "--n-eval-episodes", "3")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with everything switched on, left as it came out."""
    folder = tmp_path_factory.mktemp("finished")
    outcome = run("train", STEADY, *TINY, *EVERYTHING, "--run-dir", "out", cwd=folder, has_report=True)
    assert outcome.code == 0, outcome.err
    return folder / "out"


# ------------------------------------------------------------------------------------------------------------- the plan


@pytest.mark.usefixtures("measures_cheap")
def test_a_dry_run_says_what_would_run_and_why_and_writes_nothing(tmp_path: Path) -> None:
    outcome = run("train", "CartPole-v1", *TINY, "--dry-run", cwd=tmp_path)
    assert (outcome.code, outcome.err) == (0, "")
    for line in (
        "environment  CartPole-v1 x 2, Box -> Discrete",
        "topology     inline, 1 shard, max_lag 0, inference local",
        "rollout      4 x 2 = 8 steps",
        "algorithm    ppo, 2 epochs of minibatches of 4, gradients closed form",
        "seed         7",
    ):
        assert line in outcome.out.splitlines()
    assert [line.split()[1].split("=")[0] for line in outcome.out.splitlines() if line.startswith("why")] == [
        "topology",
        "shards",
    ]
    assert files_in(tmp_path) == set()


def test_a_dry_run_of_a_resume_says_where_it_would_go_on(finished: Path) -> None:
    before = files_in(finished)
    outcome = run("train", "--resume", "out", "--total-timesteps", "128", "--dry-run", cwd=finished.parent)
    assert outcome.code == 0
    assert outcome.out.startswith("resumes      step_000000000064 at 64 of 128 steps\n")
    assert files_in(finished) == before


def test_a_seed_that_is_not_given_is_drawn_and_kept(tmp_path: Path) -> None:
    options = ("--n-envs", "2", "--n-steps", "4", "--total-timesteps", "8", "--quiet")
    for name in ("one", "two"):
        assert run("train", STEADY, *options, "--run-dir", name, cwd=tmp_path).code == 0
    seeds = [json.loads((tmp_path / name / "config.json").read_text())["seed"] for name in ("one", "two")]
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize("name", ["my_envs:Mine", "my_envs:Nested.Mine", "my_envs:make"])
def test_an_environment_of_the_current_directory(name: str, tmp_path: Path) -> None:
    (tmp_path / "my_envs.py").write_text(
        "from support.faulty_envs import Steady\n"
        "class Mine(Steady): pass\n"
        "class Nested:\n    Mine = Mine\n"
        "def make(length=4): return Mine(length)\n"
    )
    options = (*TINY, "--total-timesteps", "16", "--env-kwargs", '{"length": 3}', "--run-dir", "out")
    outcome = run("train", name, *options, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    lengths = {json.loads(line)["length"] for line in (tmp_path / "out" / "episodes.jsonl").read_text().splitlines()}
    assert lengths == {3}
    assert run("train", "--resume", "out", "--total-timesteps", "24", "--quiet", cwd=tmp_path).code == 0


# ------------------------------------------------------------------------------------------------------ what is left


def test_the_run_directory_holds_what_users_expect(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    events = {name for name in names if name.startswith("events.out.tfevents.")}
    assert len(events) == 1
    assert names - events == {
        "config.json",
        "versions.json",
        "metrics.jsonl",
        "episodes.jsonl",
        "evaluations.npz",
        "journal",
        "checkpoints",
        "best",
        "log.txt",
        "report.html",
        "report.png",
        "result.json",
    }
    assert {path.name for path in (finished / "checkpoints").iterdir()} == {
        f"step_{steps:012d}" for steps in (32, 48, 64)
    }
    for folder in (finished / "best", *(finished / "checkpoints").iterdir()):
        assert load(folder).state["steps"] in (16, 32, 48, 64)
    assert not [name for name in files_in(finished) if name.endswith((".partial", ".old"))]


def test_the_result_says_how_it_ended(finished: Path) -> None:
    result = result_of(finished)
    assert set(result) == set(Result.__dataclass_fields__)
    wanted: dict[str, Any] = {
        "exit_reason": "done",
        "exit_code": 0,
        "steps": 64,
        "updates": 8,
        "restarts": 0,
        "episodes": 12,  # 32 steps of each of two environments, 5 to an episode
        "ledger": {"produced": 64, "consumed": 64, "rejected": 0, "discarded": {}},
    }
    assert {name: result[name] for name in wanted} == wanted
    assert result["sps"] == pytest.approx(64 / result["wall_time_s"])
    assert 0 <= result["mean_return"] <= 5
    assert 0 <= result["eval_mean_reward"] <= 5
    hashes = load(finished / "checkpoints" / "step_000000000064").state["hashes"]
    assert {name: result[name] for name in hashes} == hashes


def test_config_and_versions(finished: Path) -> None:
    config = json.loads((finished / "config.json").read_text())
    assert config["env"] == {"env": STEADY, "kwargs": {}, "wrappers": [], "action_repeat": 1, "seed_bits": 63}
    assert (config["seed"], config["topology"]["n_steps"], config["topology"]["n_envs"]) == (7, 4, 2)
    assert config["algorithm"]["name"] == "ppo"
    assert config["session"]["total_timesteps"] == 64
    versions = json.loads((finished / "versions.json").read_text())
    assert {"python", "headrace", "torch", "numpy", "gymnasium"} <= set(versions)


def test_evaluations_are_kept_as_sb3_does(finished: Path) -> None:
    with np.load(finished / "evaluations.npz") as kept:
        assert set(kept) == {"timesteps", "results", "ep_lengths"}
        assert kept["timesteps"].tolist() == [16, 32, 48, 64]
        assert kept["results"].shape == kept["ep_lengths"].shape == (4, 3)
        assert (kept["ep_lengths"] == 5).all()
        best = int(np.argmax(kept["results"].mean(1)))  # the first of equals
    assert load(finished / "best").state["steps"] == (16, 32, 48, 64)[best]


def test_every_finished_episode_is_listed_once(finished: Path) -> None:
    episodes = [json.loads(line) for line in (finished / "episodes.jsonl").read_text().splitlines()]
    assert sorted((one["env_index"], one["episode"]) for one in episodes) == [(e, n) for e in (0, 1) for n in range(6)]
    for one in episodes:
        assert (one["length"], one["terminated"]) == (5, False)
        assert 0 <= one["total_reward"] <= 5
    assert [one["steps"] for one in episodes] == sorted(one["steps"] for one in episodes)


def test_metrics_have_sb3s_names_and_ours(finished: Path) -> None:
    records = read_records(finished / "metrics.jsonl")
    assert [record["time/total_timesteps"] for record in records] == [8 * n for n in range(1, 9)]
    for tag in (
        *("time/fps", "time/iterations", "train/approx_kl", "train/clip_fraction", "train/entropy_loss", "train/loss"),
        *("train/explained_variance", "train/policy_gradient_loss", "train/value_loss", "train/learning_rate"),
        *("rollout/ep_rew_mean", "rollout/ep_len_mean", "eval/mean_reward", "eval/mean_ep_length"),
        *("headrace/sps", "headrace/lag", "headrace/collect_s", "headrace/update_s", "headrace/ledger/produced"),
    ):
        assert tag in records[-1]


def test_the_log_tells_the_story(finished: Path) -> None:
    log = (finished / "log.txt").read_text()
    told = [
        "from step 0 to 64",
        "evaluation at step 16",
        "checkpoint at step 16",
        "checkpoint at step 64",
        "ended: done",
    ]
    places = [log.index(words) for words in told]
    assert places == sorted(places)
    assert log.count("checkpoint at step 64") == 1


def test_the_default_directory_is_named_after_the_run(tmp_path: Path) -> None:
    options = (*TINY, "--total-timesteps", "8")
    for _ in range(2):
        assert run("train", STEADY, *options, cwd=tmp_path).code == 0
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert len(names) == 2, "two runs within one second have a directory each"
    for name in names:
        assert re.fullmatch(r"support\.faulty_envs_Steady__ppo__7__\d{8}-\d{6}(-2)?", name)


@pytest.mark.parametrize(("keep", "kept"), [("1", [64]), ("2", [48, 64]), ("0", [16, 32, 48, 64])])
def test_how_many_checkpoints_are_kept(keep: str, kept: list[int], tmp_path: Path) -> None:
    options = (*TINY, "--total-timesteps", "64", "--checkpoint-every", "16", "--keep-checkpoints", keep)
    assert run("train", STEADY, *options, "--run-dir", "out", cwd=tmp_path).code == 0
    assert sorted(path.name for path in (tmp_path / "out" / "checkpoints").iterdir()) == [
        f"step_{steps:012d}" for steps in kept
    ]


# ------------------------------------------------------------------------------------------------------- the terminal


def test_plain_lines_when_nobody_watches(tmp_path: Path) -> None:
    options = [option for option in TINY if option != "--quiet"]
    outcome = run("train", STEADY, *options, "--total-timesteps", "64", "--run-dir", "out", cwd=tmp_path)
    lines = outcome.out.splitlines()
    assert outcome.code == 0
    assert "\x1b" not in outcome.out
    assert lines[0].startswith(f"environment  {STEADY} x 2")
    assert lines[6].startswith("step 8/64 ")
    assert lines[-3].startswith("step 64/64 (100%)")
    assert lines[-2].startswith("done: 64 steps, ")
    assert lines[-1] == "results in out/, report in out/report.html"


def test_quiet_says_only_how_it_ended(tmp_path: Path) -> None:
    outcome = run("train", STEADY, *TINY, "--total-timesteps", "8", "--run-dir", "out", cwd=tmp_path)
    assert [line.split()[0] for line in outcome.out.splitlines()] == ["done:", "results"]


def test_a_person_at_a_terminal_sees_a_panel_without_colours_if_asked(tmp_path: Path) -> None:
    """Through a real terminal. What the panel looks like, colours too, is tested in views."""
    leader, follower = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "FORCE_COLOR")}
    program = (
        "import sys; from headrace.views import report; report.write_report = lambda run_dir, has_figure=True: None;"
        "from headrace.cli.main import main; sys.exit(main())"
    )
    options = [option for option in TINY if option != "--quiet"]
    arguments = ["train", "CartPole-v1", *options, "--total-timesteps", "16", "--run-dir", "out"]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=tmp_path,
        env={**environment, "TERM": "xterm-256color", "NO_COLOR": "1"},
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    shown = b""
    try:
        while part := os.read(leader, 65536):
            shown += part
    except OSError:
        pass  # the terminal's other end was closed: the process is done
    finally:
        os.close(leader)
    assert process.wait(timeout=200) == 0
    assert b"headrace" in shown
    assert b"steps/s" in shown
    assert b"\x1b[" in shown, "it is redrawn in place"
    assert not re.search(rb"\x1b\[[0-9;]*[39][0-9][0-9;]*m", shown)
    assert shown.endswith(b"results in out/, report in out/report.html\r\n")


# -------------------------------------------------------------------------------------------------------- exit code 3


@pytest.mark.parametrize(
    ("reward", "code", "reason", "steps"),
    [("-1", 0, "stop_reward reached", 16), ("6", 3, "stop_reward not reached", 32)],
)
def test_a_reward_to_stop_at(reward: str, code: int, reason: str, steps: int, tmp_path: Path) -> None:
    """Steady's return is between 0 and 5."""
    options = (*TINY, "--total-timesteps", "32", "--eval-every", "16", "--n-eval-episodes", "2")
    outcome = run("train", STEADY, *options, f"--stop-reward={reward}", "--run-dir", "out", cwd=tmp_path)
    assert outcome.code == code
    assert outcome.out.startswith(f"{reason}: {steps} steps")
    result = result_of(tmp_path / "out")
    assert (result["exit_reason"], result["exit_code"], result["steps"]) == (reason, code, steps)


# ------------------------------------------------------------------------------------------------- going on with a run


def train_in_two(cwd: Path, *more: str) -> None:
    assert run("train", STEADY, *TINY, *EVERYTHING, "--total-timesteps", "40", "--run-dir", "out", cwd=cwd).code == 0
    resumed = run("train", "--resume", "out", "--quiet", "--total-timesteps", "64", *more, cwd=cwd)
    assert resumed.code == 0, resumed.err


def test_more_steps_come_to_the_same_as_all_at_once(finished: Path, tmp_path: Path) -> None:
    """Weights, episodes, evaluations; the options of the session are the run's own unless they are given again."""
    train_in_two(tmp_path)
    out = tmp_path / "out"
    for name in ("weights_sha256", "optimizer_sha256", "ledger", "episodes", "updates"):
        assert result_of(out)[name] == result_of(finished)[name]
    assert (out / "episodes.jsonl").read_text() == (finished / "episodes.jsonl").read_text()
    with np.load(out / "evaluations.npz") as got, np.load(finished / "evaluations.npz") as want:
        assert got["timesteps"].tolist() == [16, 32, 40, 48, 64]  # 40: the end of the first part
        assert (np.delete(got["results"], 2, 0) == want["results"]).all()
    assert json.loads((out / "config.json").read_text())["session"]["checkpoint_every"] == 16


def test_a_session_option_may_change_on_resume(tmp_path: Path) -> None:
    train_in_two(tmp_path, "--keep-checkpoints", "1", "--eval-every", "0")
    assert [path.name for path in (tmp_path / "out" / "checkpoints").iterdir()] == ["step_000000000064"]
    with np.load(tmp_path / "out" / "evaluations.npz") as kept:
        assert kept["timesteps"].tolist() == [16, 32, 40]


def test_the_best_so_far_outlives_a_resume(tmp_path: Path) -> None:
    """The first evaluation after it is not the best one just because it is the first."""
    train_in_two(tmp_path)
    with np.load(tmp_path / "out" / "evaluations.npz") as kept:
        best = int(kept["timesteps"][np.argmax(kept["results"].mean(1))])
    assert load(tmp_path / "out" / "best").state["steps"] == best


def test_an_earlier_checkpoint_rewrites_the_history_after_it(tmp_path: Path) -> None:
    """What was there is set aside, not lost, and does not pass for the run's newest checkpoint."""
    assert run("train", STEADY, *TINY, *EVERYTHING, "--run-dir", "out", cwd=tmp_path).code == 0
    first = result_of(tmp_path / "out")["weights_sha256"]
    resumed = run(
        *("train", "--resume", "out/checkpoints/step_000000000032", "--total-timesteps", "48", "--quiet"), cwd=tmp_path
    )
    assert resumed.code == 0, resumed.err
    assert result_of(tmp_path / "out")["steps"] == 48
    assert {path.name for path in (tmp_path / "out" / "superseded").iterdir()} == {
        "step_000000000048",
        "step_000000000064",
    }
    assert run("train", "--resume", "out", "--total-timesteps", "64", "--quiet", cwd=tmp_path).code == 0
    assert result_of(tmp_path / "out")["weights_sha256"] == first
    steps = [json.loads(line)["steps"] for line in (tmp_path / "out" / "episodes.jsonl").read_text().splitlines()]
    assert len(steps) == 12


@pytest.mark.parametrize(("source", "goes_to"), [("out/best", "out"), ("saved", "runs"), ("out", "elsewhere")])
def test_where_a_resumed_run_goes_on(source: str, goes_to: str, tmp_path: Path) -> None:
    """In its own directory; a checkpoint that was saved on its own is left alone, and a new directory is made."""
    assert run("train", STEADY, *TINY, *EVERYTHING, "--run-dir", "out", cwd=tmp_path).code == 0
    shutil.copytree(tmp_path / "out" / "best", tmp_path / "saved")
    before = files_in(tmp_path / source)
    more = ("--run-dir", "elsewhere") if goes_to == "elsewhere" else ()
    resumed = run("train", "--resume", source, "--total-timesteps", "80", *more, "--quiet", cwd=tmp_path)
    assert resumed.code == 0, resumed.err
    [place] = (tmp_path / "runs").iterdir() if goes_to == "runs" else [tmp_path / goes_to]
    assert result_of(place)["steps"] == 80
    assert files_in(tmp_path / source) == before


def test_a_run_that_ended_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    """With its own configuration, under the rules of --config, to the bits of a run that was never broken off."""
    options = ("--n-envs", "2", "--n-steps", "4", "--total-timesteps", "16", "--seed", "5", "--quiet")
    assert run("train", STEADY, *options, "--run-dir", "out", cwd=tmp_path).code == 0
    out = tmp_path / "out"
    want = json.loads((out / "result.json").read_text())["weights_sha256"]
    shutil.rmtree(out / "checkpoints")
    (out / "checkpoints" / ".step_000000000008.abcd.partial").mkdir(parents=True)  # killed while it was written
    outcome = run("train", "--resume", "out", "--quiet", cwd=tmp_path)
    assert outcome.code == 0
    assert "out has no checkpoint: the run ended before its first one, and begins again" in outcome.err
    assert json.loads((out / "result.json").read_text())["weights_sha256"] == want
    assert len(read_records(out / "metrics.jsonl")) == 2, "of one run"
    shutil.rmtree(out / "checkpoints")
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({name: value for name, value in config.items() if name != "proof"}))
    outcome = run("train", "--resume", "out", "--quiet", cwd=tmp_path)
    assert outcome.code == 2
    assert "--trust" in outcome.err
