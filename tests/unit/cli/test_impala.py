"""`headrace train --algorithm impala`: its options and its help, from files, on resume, and who may be mixed up."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headrace.checkpoints.snapshot import load
from headrace.telemetry.sinks import read_records
from support.command import TINY, assert_says, files_in, result_of, run

STEADY = "support.faulty_envs:Steady"
SMALL = ("--n-envs", "2", "--n-steps", "4", "--batch-size", "4", "--seed", "7", "--quiet")
IMPALA = ("--algorithm", "impala", *SMALL)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 64 steps, and a checkpoint after every other update."""
    folder = tmp_path_factory.mktemp("finished")
    steps = ("--total-timesteps", "64", "--checkpoint-every", "16", "--keep-checkpoints", "0")
    outcome = run("train", STEADY, *IMPALA, *steps, "--run-dir", "out", cwd=folder)
    assert (outcome.code, outcome.err) == (0, "")
    return folder / "out"


def test_a_run_says_which_algorithm_it_was(finished: Path) -> None:
    config = json.loads((finished / "config.json").read_text())
    assert config["algorithm"]["name"] == "impala"
    assert config["algorithm"]["batch_size"] == 4
    assert not {"n_epochs", "clip_range", "n_steps"} & set(config["algorithm"])
    assert config["topology"]["n_steps"] == 4
    result = result_of(finished)
    assert (result["exit_reason"], result["steps"], result["updates"]) == ("done", 64, 8)
    assert load(finished / "checkpoints" / "step_000000000064").state["config"]["algorithm"]["name"] == "impala"
    record = read_records(finished / "metrics.jsonl")[-1]
    assert {"train/loss", "train/value_loss", "train/explained_variance", "rollout/ep_rew_mean"} <= set(record)
    assert record["train/n_updates"] == 16.0, "each of 64 rows once, in minibatches of 4"


def test_the_default_directory_is_named_after_the_algorithm(tmp_path: Path) -> None:
    assert run("train", STEADY, *IMPALA, "--total-timesteps", "8", cwd=tmp_path).code == 0
    [name] = [path.name for path in (tmp_path / "runs").iterdir()]
    assert re.fullmatch(r"support\.faulty_envs_Steady__impala__7__\d{8}-\d{6}", name)


@pytest.mark.usefixtures("measures_cheap")
@pytest.mark.parametrize("typed", [["--algorithm", "impala"], ["--algorithm=impala"]], ids=" ".join)
def test_a_dry_run_without_options_has_its_own_rollouts(typed: list[str], tmp_path: Path) -> None:
    outcome = run("train", "CartPole-v1", *typed, "--seed", "7", "--dry-run", cwd=tmp_path)
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert "rollout      32 x 8 = 256 steps" in lines
    assert "algorithm    impala, one pass in minibatches of 256, V-trace, gradients autograd" in lines
    assert files_in(tmp_path) == set()


def options_in(text: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]*", text))


def test_help_shows_the_options_of_the_algorithm_that_is_named(tmp_path: Path) -> None:
    ppo = options_in(run("train", "--help", cwd=tmp_path).out)
    named = run("train", "--algorithm", "impala", "--help", cwd=tmp_path)
    assert named.code == 0
    assert named.out.startswith("usage: headrace train ")
    impala = options_in(named.out)
    assert {"--n-epochs", "--clip-range", "--target-kl", "--late"} <= ppo
    assert not {"--n-epochs", "--clip-range", "--target-kl", "--late"} & impala
    both = {"--algorithm", "--learning-rate", "--batch-size", "--late-clip", "--n-envs", "--n-steps", "--max-lag"}
    assert both <= ppo & impala
    (tmp_path / "run.toml").write_text('algorithm = "impala"\n')
    assert options_in(run("train", "--config", "run.toml", "--help", cwd=tmp_path).out) == impala


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--algorithm", "sac"], ["--algorithm: expected one of ppo, impala", "'sac'"]),
        (["--algorithm", "impala", "--late-clip", "0"], ["late_clip: expected more than 0", "0.0"]),
        (["--algorithm", "impala", "--batch-size", "0"], ["batch_size", "at least 1", "0"]),
        (["--algorithm", "impala", "--learning-rate", "fast"], ["learning_rate", "lin_NUMBER", "'fast'"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_what_can_not_be(arguments: list[str], said: list[str], tmp_path: Path) -> None:
    outcome = run("train", STEADY, *arguments, cwd=tmp_path)
    assert outcome.code == 2
    assert_says(outcome.only_error, said)
    assert files_in(tmp_path) == set()


def test_an_option_of_the_other_algorithm_is_refused(tmp_path: Path) -> None:
    outcome = run("train", STEADY, *IMPALA, "--n-epochs", "3", cwd=tmp_path)
    assert outcome.code == 2
    assert "--n-epochs" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.usefixtures("measures_cheap")
def test_a_file_names_the_algorithm(tmp_path: Path) -> None:
    """With its options; what is typed wins, and of two the last."""
    (tmp_path / "run.toml").write_text('env = "CartPole-v1"\nalgorithm = "impala"\nlate_clip = 2.0\nn_envs = 3\n')
    plan = run("train", "--config", "run.toml", "--n-steps", "16", "--dry-run", cwd=tmp_path)
    assert plan.code == 0, plan.err
    assert "rollout      16 x 3 = 48 steps" in plan.out
    assert "algorithm    impala" in plan.out
    (tmp_path / "any.toml").write_text('env = "CartPole-v1"\nalgorithm = "impala"\nn_envs = 3\n')
    for typed, wins in (
        (["ppo"], "ppo"),
        (["impala"], "impala"),
        (["impala", "ppo"], "ppo"),
        (["ppo", "impala"], "impala"),
    ):
        named = [argument for name in typed for argument in ("--algorithm", name)]
        plan = run("train", "--config", "any.toml", *named, "--dry-run", cwd=tmp_path)
        assert plan.code == 0, plan.err
        assert f"algorithm    {wins}, " in plan.out


def test_a_file_with_an_option_of_the_other_algorithm(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('algorithm = "impala"\nclip_range = 0.1\n')
    outcome = run("train", STEADY, "--config", "run.toml", cwd=tmp_path)
    assert outcome.code == 2
    assert_says(outcome.only_error, ["unknown key 'clip_range'"])
    (tmp_path / "run.toml").write_text('algorithm = "sac"\n')
    outcome = run("train", STEADY, "--config", "run.toml", cwd=tmp_path)
    assert outcome.code == 2
    assert_says(outcome.only_error, ["expected one of ppo, impala", "'sac'"])


def test_a_runs_own_config_makes_the_same_run_again(finished: Path, tmp_path: Path) -> None:
    config = str(finished / "config.json")
    again = run("train", STEADY, "--config", config, "--run-dir", "again", "--quiet", cwd=tmp_path)
    assert again.code == 0, again.err
    for name in ("weights_sha256", "optimizer_sha256", "ledger"):
        assert result_of(tmp_path / "again")[name] == result_of(finished)[name]


def test_a_resumed_run_comes_to_the_same_as_all_at_once(finished: Path, tmp_path: Path) -> None:
    assert run("train", STEADY, *IMPALA, "--total-timesteps", "40", "--run-dir", "out", cwd=tmp_path).code == 0
    resumed = run("train", "--resume", "out", "--quiet", "--total-timesteps", "64", cwd=tmp_path)
    assert resumed.code == 0, resumed.err
    got, want = result_of(tmp_path / "out"), result_of(finished)
    for name in ("weights_sha256", "optimizer_sha256", "ledger", "episodes", "updates"):
        assert got[name] == want[name], name
    assert (tmp_path / "out" / "episodes.jsonl").read_text() == (finished / "episodes.jsonl").read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--algorithm", "ppo"], ["algorithm is 'impala', got 'ppo'"]),
        (["--late-clip", "2"], ["late_clip is 1.0, got 2.0"]),
        (["--n-steps", "8"], ["n_steps is 4, got 8"]),
    ],
)
def test_a_resumed_run_keeps_its_options(change: list[str], said: list[str], finished: Path) -> None:
    before = files_in(finished)
    outcome = run("train", "--resume", "out", *change, "--total-timesteps", "80", cwd=finished.parent)
    assert outcome.code == 2
    assert_says(outcome.only_error, ["--resume goes on with the run as it was", *said, "start a new run"])
    assert files_in(finished) == before


def test_a_run_of_ppo_does_not_go_on_as_another(tmp_path: Path) -> None:
    assert run("train", STEADY, *TINY, "--total-timesteps", "8", "--run-dir", "out", cwd=tmp_path).code == 0
    outcome = run("train", "--resume", "out", "--algorithm", "impala", "--total-timesteps", "16", cwd=tmp_path)
    assert outcome.code == 2
    assert_says(outcome.only_error, ["algorithm is 'ppo', got 'impala'"])
    assert result_of(tmp_path / "out")["steps"] == 8


def test_eval_plays_whatever_trained_it(finished: Path) -> None:
    outcome = run("eval", "out", "--n-eval-episodes", "3", cwd=finished.parent)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("step_000000000064 at 64 steps: mean return ")
