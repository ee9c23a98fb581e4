"""Checkpoints that are damaged, missing or another run's: said clearly, the last whole one used, none harmed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import headrace as hr
from headrace.checkpoints.snapshot import load
from headrace.errors import CheckpointError, HeadraceError, SchemaError, UsageError
from support.command import TINY, Outcome, assert_says, files_in, result_of, run
from support.faulty_envs import Steady

STEADY = "support.faulty_envs:Steady"
TRAINED_STEPS = 64


def train(*arguments: str | Path, cwd: Path) -> Outcome:
    return run("train", *arguments, *TINY, cwd=cwd)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with its last three checkpoints."""
    folder = tmp_path_factory.mktemp("trained")
    steps = ("--total-timesteps", str(TRAINED_STEPS), "--checkpoint-every", "16")
    assert run("train", STEADY, *TINY, *steps, "--run-dir", "out", cwd=folder).code == 0
    return folder / "out"


@pytest.fixture
def damaged(trained: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(trained, tmp_path / "out"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


FILES = ["weights.safetensors", "optimizer.safetensors", "episodes.safetensors", "state.json", "manifest.json"]
DAMAGE: list[Callable[[Path], None]] = [flip, cut_short, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", FILES)
def test_damage_to_the_newest_checkpoint(name: str, damage: Callable[[Path], None], damaged: Path) -> None:
    """It is named, the one before it is used, and the run comes out as it would have."""
    newest = damaged / "checkpoints" / f"step_{TRAINED_STEPS:012d}"
    damage(newest / name)
    before = result_of(damaged)

    evaluated = run("eval", "out", "--n-eval-episodes", "2", cwd=damaged.parent)
    assert evaluated.code == 0
    assert_says(evaluated.err, ["headrace: warning:", str(newest.relative_to(damaged.parent)), name])
    assert f"step_{TRAINED_STEPS - 16:012d} at {TRAINED_STEPS - 16} steps" in evaluated.out

    resumed = run("train", "--resume", "out", "--quiet", cwd=damaged.parent)
    assert resumed.code == 0, resumed.err
    assert_says(resumed.err, ["headrace: warning:", name])
    assert result_of(damaged)["weights_sha256"] == before["weights_sha256"]
    assert load(newest).state["hashes"]["optimizer_sha256"] == before["optimizer_sha256"]


@pytest.mark.parametrize("command", [("eval",), ("train", "--quiet", "--resume")], ids=["eval", "resume"])
def test_no_whole_checkpoint(command: tuple[str, ...], damaged: Path) -> None:
    for folder in (damaged / "checkpoints").iterdir():
        flip(folder / "weights.safetensors")
    before = files_in(damaged)
    outcome = run(*command, "out", cwd=damaged.parent)
    assert outcome.code == 1
    assert_says(outcome.only_error, ["no checkpoint is whole", "weights.safetensors is damaged", "SHA-256"])
    assert files_in(damaged) == before


@pytest.mark.parametrize("command", [("eval",), ("train", "--quiet", "--resume")], ids=["eval", "resume"])
@pytest.mark.parametrize("what", ["nothing", "empty", "file"])
def test_no_checkpoint_at_all(command: tuple[str, ...], what: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    before = files_in(tmp_path)
    outcome = run(*command, what, cwd=tmp_path)
    assert outcome.code == 1
    assert_says(outcome.only_error, [what, "expected a checkpoint or a run directory", "found none"])
    assert files_in(tmp_path) == before


def test_a_damaged_config_of_a_run(damaged: Path) -> None:
    cut_short(damaged / "config.json")
    outcome = run("train", "--resume", "out", cwd=damaged.parent)
    assert outcome.code == 1
    assert_says(outcome.only_error, ["out/config.json can't be read", "--total-timesteps"])


def test_damaged_evaluations_cost_only_themselves(damaged: Path) -> None:
    (damaged / "evaluations.npz").write_bytes(b"PK nonsense")
    more = ("--total-timesteps", "160", "--eval-every", "32", "--n-eval-episodes", "2")
    assert run("train", "--resume", "out", "--quiet", *more, cwd=damaged.parent).code == 0
    assert "evaluations start anew" in (damaged / "log.txt").read_text()


def test_a_disk_that_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint that does not fit fails the run; the ones before it stay whole, and the run can go on."""
    import headrace.checkpoints.snapshot as snapshot

    really_write = snapshot._write_synced

    def full(path: Path, data: bytes) -> None:
        if "000000000096" in str(path) and path.name == "optimizer.safetensors":
            raise OSError(28, "No space left on device")
        really_write(path, data)

    monkeypatch.setattr(snapshot, "_write_synced", full)
    outcome = train(STEADY, "--run-dir", "out", "--total-timesteps", "128", "--checkpoint-every", "32", cwd=tmp_path)
    assert outcome.code == 1
    assert_says(outcome.only_error, ["could not write a checkpoint", "No space left", "the previous one is untouched"])
    checkpoints = tmp_path / "out" / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == [f"step_{steps:012d}" for steps in (32, 64)]
    assert load(checkpoints / "step_000000000064").state["steps"] == 64
    monkeypatch.setattr(snapshot, "_write_synced", really_write)
    assert run("train", "--resume", "out", "--quiet", cwd=tmp_path).code == 0


# --------------------------------------------------------------------------------------------- another run's directory


def test_a_new_run_does_not_mix_with_an_old_one(damaged: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in damaged.rglob("*")}
    outcome = train(STEADY, "--run-dir", "out", cwd=damaged.parent)
    assert outcome.code == 2
    assert_says(outcome.only_error, ["run directory out already holds a run", "--resume out"])
    assert {path: path.stat().st_mtime_ns for path in damaged.rglob("*")} == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--n-envs", "4"], ["n_envs is 2, got 4"]),
        (["--n-steps", "8"], ["n_steps is 4, got 8"]),
        (["--seed", "8"], ["seed is 7, got 8"]),
        (["--learning-rate", "lin_1e-3"], ["learning_rate is 0.0003, got 'lin_1e-3'"]),
        (["--net-arch", "32"], ["net_arch is None, got (32,)"]),
        (["--env-kwargs", '{"length": 9}'], ["env_kwargs is '{}'", '{"length": 9}']),
        (["CartPole-v1"], [f"env is '{STEADY}', got 'CartPole-v1'"]),
    ],
)
def test_a_resumed_run_keeps_its_options(change: list[str], said: list[str], damaged: Path) -> None:
    """Silently ignoring what was asked for would be worse than refusing it."""
    before = files_in(damaged)
    outcome = run("train", *change, "--resume", "out", cwd=damaged.parent)
    assert outcome.code == 2
    assert_says(outcome.only_error, ["--resume goes on with the run as it was", *said, "start a new run"])
    assert files_in(damaged) == before


def test_resume_with_another_schema(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of that name has other observations by now."""

    class Grown(Steady):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gym.spaces.Box(0, 1, (5,))

    monkeypatch.setattr("support.faulty_envs.Steady", Grown)
    before = files_in(damaged)
    outcome = run("train", "--resume", "out", "--quiet", cwd=damaged.parent)
    assert outcome.code == 1
    assert_says(outcome.only_error, ["does not fit this run", "observation_space", "(5,)", "(3,)"])
    assert files_in(damaged) == before


def test_an_environment_that_changed_its_mind_since(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same spaces, other numbers: the replayed episode does not end where the recorded one did."""

    class Shifted(Steady):
        def _seen(self) -> Any:
            return super()._seen() * 0.5

    monkeypatch.setattr("support.faulty_envs.Steady", Shifted)
    outcome = run("train", "--resume", "out", "--quiet", "--total-timesteps", "256", cwd=damaged.parent)
    assert outcome.code == 1
    assert_says(outcome.only_error, ["env 0", "seed", "not the one that was recorded", "headrace check"])


@pytest.mark.parametrize(
    ("option", "value", "code", "said"),
    [
        ("--env", "CartPole-v1", 1, ["expected observation_space", "(3,)", "(4,)"]),
        ("--env", "CartPol-v1", 2, ["did you mean CartPole-v1"]),
        ("--n-eval-episodes", "0", 2, ["--n-eval-episodes", "at least 1"]),
        ("--json", "no_such_folder/eval.json", 2, ["--json no_such_folder/eval.json", "existing directory"]),
    ],
)
def test_an_evaluation_that_can_not_be(option: str, value: str, code: int, said: list[str], trained: Path) -> None:
    outcome = run("eval", "out", option, value, cwd=trained.parent)
    assert outcome.code == code
    assert_says(outcome.only_error, said)


def test_a_checkpoint_that_does_not_fit(tmp_path: Path) -> None:
    with hr.PPO("MlpPolicy", Steady, n_envs=2, n_steps=8, seed=7) as model:
        model.save(tmp_path / "model")
    with pytest.raises(SchemaError, match=r"observation_space.*\(4,\).*\(3,\)"):
        hr.PPO.load(tmp_path / "model", env="CartPole-v1")
    with pytest.raises(UsageError, match=r"built by functions \(Steady\).* pass env="):
        hr.PPO.load(tmp_path / "model")
    with pytest.raises(CheckpointError, match="expected a checkpoint"):
        hr.PPO.load(tmp_path)


def test_saving_where_something_else_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with (
        hr.PPO("MlpPolicy", Steady, n_envs=2, n_steps=8) as model,
        pytest.raises(HeadraceError, match="is no checkpoint"),
    ):
        model.save(tmp_path / "mine")
    assert files_in(tmp_path) == {"mine", "mine/thesis.tex"}


def test_a_damaged_newest_checkpoint_is_told_in_python_too(damaged: Path) -> None:
    flip(damaged / "checkpoints" / f"step_{TRAINED_STEPS:012d}" / "state.json")
    with pytest.warns(UserWarning, match=r"state.json is damaged"):
        hr.PPO.load(damaged).close()
