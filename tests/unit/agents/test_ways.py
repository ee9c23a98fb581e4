"""Where environments run: from a first look, as a pure function, and from what is seen on the way."""

import time
from collections.abc import Callable

import pytest

from headrace.agents import ways
from headrace.agents.environments.text_env import Step, TextEnvSpec
from headrace.agents.ways import Computing, StepTime, choose, look


@pytest.mark.parametrize(
    ("step_s", "computing", "backend", "told"),
    [
        (5e-5, 1.0, "sequential", "a step of A takes 50 us, 100% of it computing"),
        (1e-4, 0.1, "sequential", "would cost as much"),
        (4e-4, 0.1, "threading", "waiting is done side by side"),
        (3e-3, 0.9, "sequential", "a step of A takes 3 ms"),
        (2e-2, 0.9, "loky", "3 cores can share that"),
        (2e-2, 0.1, "threading", "a step of A takes 20 ms, 10% of it computing"),
    ],
)
def test_the_slowest_decides(
    step_s: float, computing: float, backend: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.agents.ways.cores", lambda: 3)
    choice = choose([StepTime("B", 1e-6, 1.0), StepTime("A", step_s, computing)], -1, 8)
    assert choice.backend == backend
    assert told in choice.reason
    assert choice.n_jobs == (3 if backend == "loky" else 1)


def test_a_number_that_was_asked_for_is_kept() -> None:
    choice = choose([StepTime("A", 1e-5, 1.0)], 4, 8)
    assert (choice.backend, choice.n_jobs) == ("threading", 4)


def test_what_the_look_did_not_show_is_played_in_threads() -> None:
    """Until it shows that environments compute: then in processes, if there are cores for them."""
    looks = [None, StepTime("A", 1e-5, 1.0)]
    assert choose(looks, -1, 8).backend == "threading"
    assert choose(looks, 2, 8, does_compute=True).backend == "loky"
    assert choose(looks, 1, 8, does_compute=True).backend == "threading", "one worker was asked for"


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


def test_an_environment_that_waits_is_not_waited_for() -> None:
    """Nor is one that hangs; and its thread closes it when it comes back."""
    started = time.monotonic()
    assert look(TextEnvSpec("Sleepy", Sleepy, {"step_s": 0.5})) is None
    assert time.monotonic() - started < 0.4


def test_an_environment_that_fails_is_left_to_its_first_episode() -> None:
    assert look(TextEnvSpec("Sleepy", Sleepy, {"unknown": 1})) is None


def test_a_cheap_environment_is_seen_to_be_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "_GLANCE_S", 5.0)  # beside a busy machine
    got = look(TextEnvSpec("Sleepy", Sleepy, {"step_s": 0.0}))
    assert got is not None
    assert got.step_s < 0.1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [100.0]
    monkeypatch.setattr(ways, "now_s", lambda: now[0])

    def go_on(seconds: float) -> None:
        now[0] += seconds

    return go_on


@pytest.mark.parametrize(
    ("count", "computing_s", "passed_s", "is_heavy"),
    [
        (100, 0.008, 1.0, True),
        (100, 0.008, 2.0, False),  # half of the time the interpreter has nothing to do
        (2000, 0.0005, 1.2, False),  # too little to send it away
        (10, 0.008, 0.1, False),  # too early to say
    ],
)
def test_what_keeps_the_interpreter_busy(
    count: int, computing_s: float, passed_s: float, is_heavy: bool, clock: Callable[[float], None]
) -> None:
    computing = Computing()
    for _ in range(count):
        computing.stepped("A", 0.0, computing_s)
    clock(passed_s)
    assert computing.is_heavy == is_heavy
