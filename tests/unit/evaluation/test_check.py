"""`check_env`: the class of an environment, with its evidence, and what a step costs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import headrace as hr
from headrace.errors import EnvError
from headrace.evaluation import trace
from headrace.evaluation.check import Checked
from headrace.evaluation.trace import Trace, play
from support.faulty_envs import Busy, CarriesState, Faulty, Steady, UsesGlobalRandom


def vector_of(num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    return SyncVectorEnv([Steady] * num_envs)


def test_class_a_a_function_of_seed_and_actions() -> None:
    found = hr.check_env("CartPole-v1")
    assert found.env_class == "A"
    assert "episode 5 alone in a fresh process is the same to the last bit" in found.evidence
    assert found.step_us is not None
    assert found.slowest_step_us is not None
    assert 0 < found.step_us <= found.slowest_step_us
    assert "guarantee     a run stops and resumes bit for bit" in found.text()


@pytest.mark.parametrize(
    ("spec", "first_difference"),
    [
        pytest.param(
            hr.EnvSpec("CartPole-v1", wrappers=(gym.wrappers.NormalizeObservation,)),
            "the observation of the reset",
            id="running normalisation",
        ),
        pytest.param(hr.EnvSpec(UsesGlobalRandom), "the observation after step 0", id="global random numbers"),
        pytest.param(hr.EnvSpec(CarriesState), "the flags of step 5", id="state across resets"),
    ],
)
def test_class_c_with_the_first_difference_named(spec: hr.EnvSpec, first_difference: str) -> None:
    found = hr.check_env(spec)
    assert found.env_class == "C"
    assert found.evidence == f"episode 5 alone in a fresh process differs in {first_difference}"
    assert "NOT: same bits" in found.text()


def test_class_b_a_pool_that_resets_itself() -> None:
    found = hr.check_env(vector_of)
    assert (found.env_class, found.step_us) == ("B", None)
    assert "resets itself" in found.evidence
    assert "NOT: resume of live episodes" in found.text()
    assert "step cost" not in found.text()


def test_what_a_step_costs_is_measured() -> None:
    found = hr.check_env(Busy)
    assert found.step_us is not None
    assert 2_000 <= found.step_us < 6_000
    assert f"step cost     {found.step_us:.1f} us" in found.text()
    assert "at most" in found.text()


def test_spaces_and_progress_are_told() -> None:
    said: list[str] = []
    found = hr.check_env(hr.EnvSpec(Steady, {"length": 3}), progress=said.append)
    assert isinstance(found, Checked)
    assert "observation   Box(shape=(3,), float32)" in found.text()
    assert "action        Discrete(n=2, int64)" in found.text()
    assert said == [
        *(f"playing episode {number} of 5 in one instance" for number in range(1, 6)),
        "playing episode 5 alone in a fresh process",
    ]
    assert "(15 steps played)" in found.evidence


def test_a_slow_environment_is_judged_by_fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a thousand steps of a second each; both processes play equally far."""

    class Slow(Steady):
        def step(self, action: Any) -> Any:
            time.sleep(0.02)
            return super().step(action)

    monkeypatch.setattr("headrace.evaluation.check.play", lambda *args: play(*args, most_s=0.1))
    found = hr.check_env(lambda: Slow(length=10_000))
    assert found.env_class == "A"
    played = int(found.evidence.split("(")[1].split()[0])
    assert 5 <= played <= 5 * 6


def test_an_environment_that_raises_is_named_with_its_cause() -> None:
    class Breaks(Steady):
        def step(self, action: Any) -> Any:
            raise RuntimeError("the simulator fell over")

    with pytest.raises(EnvError, match=r"Breaks: episode 1 of the check raised RuntimeError: the simulator") as caught:
        hr.check_env(Breaks)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_one_that_breaks_only_elsewhere_shows_the_other_processes_traceback() -> None:
    here = trace.__file__  # any fact of this process that the other one does not share would do

    def make() -> gym.Env[Any, Any]:
        if "pytest" not in sys.modules:
            raise OSError(f"no display, unlike {here}")
        return Steady()

    with pytest.raises(EnvError, match=r"(?s)could not be played in a fresh process .*Traceback.*no display"):
        hr.check_env(make)


def test_a_module_of_the_current_directory_is_found_by_the_fresh_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "local_env_of_test_check.py").write_text(
        "from support.faulty_envs import Steady\nclass Local(Steady): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert hr.check_env("local_env_of_test_check:Local").env_class == "A"


# --------------------------------------------------------------------------------------------------------------- traces


def a_trace(**changed: Any) -> Trace:
    arrays = {
        "obs": np.arange(8.0).reshape(4, 2),
        "reward": np.array([1.0, np.nan, 3.0]),
        "flags": np.array([[False, False], [False, False], [True, False]]),
        "step_s": np.ones(3),
        "reset_s": 1.0,
    }
    return Trace(**(arrays | changed))


def with_change(name: str, index: Any, value: Any) -> Trace:
    array = np.copy(getattr(a_trace(), name))
    array[index] = value
    return a_trace(**{name: array})


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (a_trace(step_s=np.zeros(3), reset_s=9.0), None),
        (with_change("obs", (0, 0), 5.0), "the observation of the reset"),
        (with_change("obs", (0, 0), -0.0), "the observation of the reset"),
        (with_change("obs", (3, 1), 5.0), "the observation after step 2"),
        (with_change("reward", 0, 2.0), "the reward of step 0: 1.0 and 2.0"),
        (with_change("flags", (2, 1), True), "the flags of step 2"),
        (a_trace(obs=a_trace().obs[:3], reward=a_trace().reward[:2], flags=a_trace().flags[:2]), "the length: 3 and 2"),
    ],
)
def test_where_two_traces_part(other: Trace, difference: str | None) -> None:
    """To the last bit (0 is not -0, NaN is NaN), but without times."""
    found = a_trace().difference(other)
    assert (found is None) if difference is None else (found or "").startswith(difference)


def test_a_trace_depends_on_seed_and_episode_only() -> None:
    first = play(Steady(), 1, 2)
    assert first.difference(play(Steady(), 1, 2)) is None
    assert first.difference(play(Steady(), 1, 3)) is not None
    assert first.difference(play(Steady(), 2, 2)) is not None
    assert play(Faulty("nan_obs"), 1, 2).difference(first) is None, "its fault is at another seed"
