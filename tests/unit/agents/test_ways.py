"""auto.choose(): where environments run, from a measurement, as a pure function."""

import time

import pytest

from headrace.agents.environments.text_env import Step, TextEnvSpec
from headrace.agents.ways import StepTime, choose, measure


@pytest.mark.parametrize(
    ("step_s", "computing", "is_in_process", "backend", "told"),
    [
        (5e-5, 1.0, False, "sequential", "a step of A takes 50 us, 100% of it computing"),
        (1e-4, 0.1, False, "sequential", "would cost as much"),
        (4e-4, 0.1, False, "lock-step", "they wait side by side"),
        (1e-3, 0.1, False, "threading", "waiting is done side by side"),
        (1e-3, 0.1, True, "lock-step", "a step of A takes 1 ms"),
        (1e-3, 0.9, True, "sequential", "would cost as much"),
        (3e-3, 0.1, True, "threading", "a step of A takes 3 ms"),
        (3e-3, 0.9, False, "sequential", "too little to share out"),
        (2e-2, 0.9, False, "loky", "3 cores can share that"),
    ],
)
def test_the_slowest_decides(
    step_s: float, computing: float, is_in_process: bool, backend: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.agents.ways.cores", lambda: 3)
    choice = choose([StepTime("B", 1e-6, 1.0), StepTime("A", step_s, computing), None], -1, 8, is_in_process)
    assert choice.backend == backend
    assert told in choice.reason
    assert choice.n_jobs == (3 if backend in ("threading", "loky") else 1)


def test_a_number_that_was_asked_for_is_kept() -> None:
    choice = choose([StepTime("A", 1e-5, 1.0)], 4, 8)
    assert (choice.backend, choice.n_jobs) == ("threading", 4)


def test_nothing_measured_is_played_here() -> None:
    assert choose([None], -1, 8).backend == "sequential"


class Sleepy:
    """Steps that wait."""

    instructions, actions = "", ("go",)

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s

    def reset(self, seed: int) -> str:
        return ""

    def step(self, action: str) -> Step:
        time.sleep(self._step_s)
        return Step("", 0.0, False)

    def close(self) -> None:
        pass


def test_waiting_is_told_from_computing() -> None:
    got = measure(TextEnvSpec("Sleepy", Sleepy, {"step_s": 0.003}), 5.0)
    assert got is not None
    assert 0.003 <= got.step_s < 0.3, "sleeping takes longer on a busy machine"
    assert got.computing < 0.5
