"""Environments that fail: the place named to the step, their whole traceback shown, and the run so far kept.

Exit code 1. The run directory says what happened, its checkpoints are whole, and the run goes on once they are mended.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import headrace as hr
from headrace.checkpoints.snapshot import load
from headrace.errors import EnvError, NumericsError
from support.command import TINY, Outcome, assert_says, end, files_in, result_of, run, start
from support.faulty_envs import Faulty, Steady

STEADY, FAULTY = "support.faulty_envs:Steady", "support.faulty_envs:Faulty"


def train(*arguments: str | Path, cwd: Path) -> Outcome:
    return run("train", *arguments, *TINY, cwd=cwd)


@pytest.mark.parametrize(
    ("arguments", "said", "traceback_of"),
    [
        (["support.faulty_envs:raises"], ["could not be made", "no licence for the simulator"], "in raises"),
        (["CartPole-v1", "--env-kwargs", '{"gravity": 3}'], ["{'gravity': 3}", "gravity"], "registration.py"),
        ([STEADY, "--env-kwargs", '{"speed": 3}'], ["{'speed': 3}", "speed"], "spec.py"),
        ([STEADY, "--wrappers", "json:loads"], ["wrapper json:loads raised TypeError"], "in loads"),
        (
            [STEADY, "--wrappers", "gymnasium.wrappers:TimeLimit"],
            ["missing 1 required positional argument", "in text 'module:attribute {\"key\": value}'"],
            "in _wrap",
        ),
        (["broken:Env"], ["importing broken raised ZeroDivisionError"], "broken.py"),
        (["needy:Env"], ["importing needy failed", "No module named 'no_such_dependency'"], "needy.py"),
    ],
    ids=[
        "factory",
        "kwargs of an id",
        "kwargs of a class",
        "wrapper",
        "wrapper's kwargs",
        "module",
        "module's imports",
    ],
)
def test_what_can_not_be_made(arguments: list[str], said: list[str], traceback_of: str, tmp_path: Path) -> None:
    """The traceback of the code that raised is there, whole, above the one line."""
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "needy.py").write_text("import no_such_dependency\n")
    outcome = train(*arguments, "--run-dir", "out", cwd=tmp_path)
    assert outcome.code == 1
    assert_says(outcome.error, said)
    assert "Traceback (most recent call last):" in outcome.err
    assert traceback_of in outcome.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("factory", "said"),
    [("support.faulty_envs:makes_a_number", "expected a gymnasium.Env, got builtins.int")],
)
def test_a_factory_that_makes_something_else(factory: str, said: str, tmp_path: Path) -> None:
    outcome = train(factory, "--run-dir", "out", cwd=tmp_path)
    assert outcome.code == 1
    assert said in outcome.only_error
    assert files_in(tmp_path) == set()


STEP_FAULTS: dict[str, list[str]] = {
    "step_raises": [Faulty.PLACE, "raised RuntimeError: the simulator fell over"],
    "four_values": [
        Faulty.PLACE,
        "the environment returned 4 values, expected 5 (obs, reward, terminated,",
    ],
    "text_reward": [Faulty.PLACE, "expected a number", "'much'"],
    "nan_reward": [Faulty.PLACE, "the reward is nan", "finite"],
    "nan_obs": [Faulty.PLACE, "NaN or infinity", "nan"],
    "inf_obs": [Faulty.PLACE, "NaN or infinity", "inf"],
    "shape": [Faulty.PLACE, "(3,)", "(4,)"],
    "dtype": [Faulty.PLACE, "uint8", "float64"],
    "reset_raises": [f"env {Faulty.ENV},", f"reset(seed={Faulty.fault_seed()})", "the simulator did not come up"],
}


def train_faulty(fault: str, cwd: Path) -> Outcome:
    """A fault after the first update; a checkpoint after every one."""
    kwargs = json.dumps({"fault": fault, "dtype": "uint8" if fault == "dtype" else "float32"})
    lasts = ("--total-timesteps", "64", "--checkpoint-every", "8", "--keep-checkpoints", "0")
    return train(FAULTY, "--env-kwargs", kwargs, "--run-dir", "out", *lasts, cwd=cwd)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What comes out of the same runs without the fault, by the dtype of observations."""
    folders = {dtype: tmp_path_factory.mktemp(dtype) for dtype in ("float32", "uint8")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Faulty, "is_mended", True)
        for dtype, folder in folders.items():
            assert train_faulty("dtype" if dtype == "uint8" else "nan_obs", folder).code == 0
    return {dtype: folder / "out" for dtype, folder in folders.items()}


@pytest.mark.parametrize("fault", STEP_FAULTS)
def test_an_environment_that_goes_wrong(
    fault: str, calm: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named to the step; the run so far is kept, goes wrong at the same place again, and goes on once mended."""
    outcome = train_faulty(fault, tmp_path)
    assert outcome.code == 1
    assert_says(outcome.error, STEP_FAULTS[fault])
    result = result_of(tmp_path / "out")
    assert result["exit_code"] == 1
    assert result["exit_reason"] == f"error: {outcome.error}"
    assert "Traceback" in (tmp_path / "out" / "log.txt").read_text()
    checkpoints = sorted((tmp_path / "out" / "checkpoints").iterdir())
    assert [path.name for path in checkpoints] == [f"step_{steps:012d}" for steps in range(8, result["steps"] + 1, 8)]
    for path in checkpoints:
        assert load(path).state["steps"] == int(path.name.removeprefix("step_"))

    assert run("train", "--resume", "out", "--quiet", cwd=tmp_path).error == outcome.error
    assert sorted((tmp_path / "out" / "checkpoints").iterdir()) == checkpoints

    monkeypatch.setattr(Faulty, "is_mended", True)
    assert run("train", "--resume", "out", "--quiet", cwd=tmp_path).code == 0
    expected = calm["uint8" if fault == "dtype" else "float32"]
    assert result_of(tmp_path / "out")["weights_sha256"] == result_of(expected)["weights_sha256"]
    assert (tmp_path / "out" / "episodes.jsonl").read_text() == (expected / "episodes.jsonl").read_text()


def test_the_whole_traceback_reaches_the_terminal(tmp_path: Path) -> None:
    kwargs = '{"fault": "step_raises"}'
    options = ("--env-kwargs", kwargs, *TINY, "--run-dir", "out")
    outcome = end(start("train", FAULTY, *options, cwd=tmp_path, has_report=False))
    assert outcome.code == 1
    assert outcome.err.startswith("Traceback (most recent call last):")
    assert 'raise RuntimeError("the simulator fell over")' in outcome.err
    assert_says(outcome.error, STEP_FAULTS["step_raises"])


@pytest.mark.parametrize("fault", ["shape", "dtype", "nan_reward", "nan_obs"])
def test_no_traceback_where_only_headrace_complains(fault: str, tmp_path: Path) -> None:
    """It would show headrace's own checks, not where the environment went wrong."""
    assert STEP_FAULTS[fault][0] in train_faulty(fault, tmp_path).only_error


def test_a_first_observation_that_is_no_number(tmp_path: Path) -> None:
    outcome = train("support.faulty_envs:FaultyStart", "--run-dir", "out", cwd=tmp_path)
    assert outcome.code == 1
    assert_says(outcome.only_error, ["env 0, episode 0:0", "seed", "inf"])


def test_an_environment_that_can_not_be_closed(tmp_path: Path) -> None:
    outcome = train("support.faulty_envs:FaultyClose", "--run-dir", "out", "--total-timesteps", "32", cwd=tmp_path)
    assert_says(outcome.error, ["env 0", "close", "the simulator does not answer"])
    assert "Traceback" in outcome.err


@pytest.mark.parametrize("place", ["inline", "threads", "processes"])
def test_one_that_can_not_be_closed_at_the_end_is_shown_and_the_run_is_done(place: str, tmp_path: Path) -> None:
    where = ("--topology", place, "--run-dir", "out", "--total-timesteps", "32")
    outcome = train("support.faulty_envs:TiredClose", *where, cwd=tmp_path)
    assert outcome.code == 0
    last = outcome.err.splitlines()[-1]
    assert last.startswith(("headrace: warning: env 0: could not be closed: ", "headrace: warning: env 1: could not"))
    assert "the simulator does not answer" in last
    assert "Traceback" in outcome.err
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["exit_reason"] == "done"
    assert last.endswith(result["not_closed"])


@pytest.mark.parametrize("fault", ["step_raises", "nan_reward", "nan_obs", "shape"])
def test_an_evaluation_that_goes_wrong(fault: str) -> None:
    class FaultyEvaluation(Faulty):
        @classmethod
        def fault_seed(cls) -> int:
            return first_seed

    with hr.PPO("MlpPolicy", Steady, n_envs=2, n_steps=8, seed=7) as model:
        seeds: list[int] = []

        class Remembers(Steady):
            def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
                seeds.append(seed or 0)
                return super().reset(seed=seed)

        hr.evaluate_policy(model, Remembers, n_eval_episodes=2)
        first_seed = seeds[1]
        with pytest.raises((EnvError, NumericsError), match="evaluation, env 1, episode 1:0, step 3: the "):
            hr.evaluate_policy(model, lambda: FaultyEvaluation(fault), n_eval_episodes=2)


def test_an_error_in_a_users_callback_is_their_own(tmp_path: Path) -> None:
    """It comes out as it is; the run so far is kept."""

    def callback(record: dict[str, float]) -> bool:
        raise KeyError("no such metric")

    with (
        mock.patch("headrace.views.report.write_report"),
        hr.PPO("MlpPolicy", Steady, n_envs=2, n_steps=8, batch_size=16, seed=7) as model,
    ):
        with pytest.raises(KeyError, match="no such metric"):
            model.learn(32, callback=callback, run_dir=tmp_path / "out")
        assert result_of(tmp_path / "out")["exit_reason"] == "error: KeyError: 'no such metric'"
        assert load(tmp_path / "out" / "checkpoints" / "step_000000000016").state["updates"] == 1
        assert model.learn(16).num_timesteps == 32
