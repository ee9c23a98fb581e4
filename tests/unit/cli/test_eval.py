"""`headrace eval` and `headrace check`: what they print, and their exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.command import TINY, files_in, run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    options = ("--total-timesteps", "64", "--eval-every", "32", "--n-eval-episodes", "2", "--run-dir", "out")
    assert run("train", "CartPole-v1", *TINY, *options, cwd=folder).code == 0
    return folder


def mean_of(text: str) -> float:
    found = re.search(r"mean return ([\d.]+) \+/- [\d.]+ over \d+ episodes, mean length [\d.]+", text)
    assert found, text
    return float(found[1])


@pytest.mark.parametrize("source", ["out", "out/best", "out/checkpoints/step_000000000064"])
def test_a_run_or_a_checkpoint_is_evaluated_and_left_alone(source: str, trained: Path) -> None:
    before = files_in(trained)
    outcome = run("eval", source, "--n-eval-episodes", "3", cwd=trained)
    assert (outcome.code, outcome.err) == (0, "")
    assert "over 3 episodes" in outcome.out
    assert mean_of(outcome.out) > 5
    assert files_in(trained) == before


def test_an_evaluation_comes_out_the_same_every_time(trained: Path) -> None:
    for sampling in ((), ("--no-deterministic",)):
        first = run("eval", "out", "--n-eval-episodes", "4", *sampling, cwd=trained)
        assert first == run("eval", "out", "--n-eval-episodes", "4", *sampling, cwd=trained)


@pytest.mark.parametrize(("threshold", "code"), [("1", 0), ("501", 3)])
def test_a_reward_that_must_be_reached(threshold: str, code: int, trained: Path) -> None:
    outcome = run("eval", "out", "--n-eval-episodes", "3", "--reward-threshold", threshold, cwd=trained)
    assert outcome.code == code
    assert mean_of(outcome.out) > 0


def test_the_numbers_go_to_a_file(trained: Path, tmp_path: Path) -> None:
    outcome = run("eval", "out", "--n-eval-episodes", "3", "--json", tmp_path / "eval.json", cwd=trained)
    data = json.loads((tmp_path / "eval.json").read_text())
    assert set(data) == {"mean_reward", "std_reward", "returns", "lengths"}
    assert data["returns"] == [float(length) for length in data["lengths"]], "a CartPole step is worth 1"
    assert data["mean_reward"] == pytest.approx(mean_of(outcome.out), abs=0.01)


def test_another_environment_with_the_same_spaces(trained: Path) -> None:
    (trained / "short_pole.py").write_text(
        "import gymnasium\ndef make():\n    return gymnasium.make('CartPole-v1', max_episode_steps=6)\n"
    )
    outcome = run("eval", "out", "--n-eval-episodes", "3", "--env", "short_pole:make", cwd=trained)
    assert mean_of(outcome.out) == 6.0


def test_check_prints_spaces_class_cost_and_guarantees(tmp_path: Path) -> None:
    outcome = run("check", "CartPole-v1", "--env-kwargs", '{"max_episode_steps": 20}', cwd=tmp_path)
    assert (outcome.code, outcome.err) == (0, "")
    report = [line for line in outcome.out.splitlines() if not line.startswith("playing")]
    assert [line.split()[0] for line in report] == [
        *("environment", "observation", "action", "class", "step"),
        *["guarantee"] * 4,
    ]
    assert report[1].endswith("Box(shape=(4,), float32)")
    assert report[2].endswith("Discrete(n=2, int64)")
    assert "are the same to the last bit in a fresh process, and each one alone" in report[3]
    assert files_in(tmp_path) == set()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["CartPol-v1"], 2, "did you mean CartPole-v1"),
        (["CartPole-v1", "--env-kwargs", "[1]"], 2, "expected a JSON object"),
        (["support.faulty_envs:TextObservation"], 2, "unsupported observation space Text"),
        (["support.faulty_envs:raises"], 1, "no licence for the simulator"),
    ],
)
def test_check_refuses_clearly(arguments: list[str], code: int, said: str, tmp_path: Path) -> None:
    outcome = run("check", *arguments, cwd=tmp_path)
    assert outcome.code == code
    assert said in outcome.error
