"""The shipped environments and the adapters: golden transcripts, the contract, and levels that can be solved."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agents.environments.adapters import GymnasiumText, RagenStyle, TrlStyle, adapted, parsed_call
from headrace.agents.environments.bandit import Bandit
from headrace.agents.environments.countdown import Countdown, evaluate
from headrace.agents.environments.frozen_lake import FrozenLake
from headrace.agents.environments.instructed import instructed
from headrace.agents.environments.lookup import Lookup
from headrace.agents.environments.registry import SHIPPED, as_specs, spec_of
from headrace.agents.environments.reuse import is_reusable
from headrace.agents.environments.sokoban import Sokoban, generate, solve
from headrace.agents.environments.text_env import TextEnv, TextEnvSpec, checked_observation, checked_step, task_of
from headrace.agents.ways import look
from headrace.errors import HeadraceError, UsageError
from support.agent_envs import Counting, Forgetful, spec

GOLDEN = Path(__file__).parent / "golden"


def transcript(env: TextEnv, seed: int, actions: list[str] | None = None) -> list[Any]:
    """What an environment says, as plain data."""
    rng = random.Random(seed)
    told: list[Any] = [env.reset(seed)]
    given_actions = iter(actions or [])
    for _ in range(12):
        action = next(given_actions, None) or (rng.choice(env.actions) if env.actions else "1 + 2")
        step = env.step(action)
        told.append([action, step.observation, round(step.reward, 6), step.is_done, dict(step.facts)])
        if step.is_done:
            break
    return told


class RagenToy:
    """RAGEN's interface, as its users write it."""

    ACTION_LOOKUP: ClassVar[dict[int, str]] = {1: "Left", 2: "Right"}

    def reset(self, seed: int | None = None, **_: Any) -> str:
        self._at = random.Random(seed).randrange(3)
        return f"at {self._at}"

    def step(self, action: int) -> tuple[str, float, bool, dict[str, Any]]:
        self._at += 1 if action == 2 else -1
        has_won = self._at == 4
        return f"at {self._at}", float(has_won), has_won, {"success": has_won, "note": "text is no number"}


class TrlToy:
    """TRL's interface: public methods are tools."""

    def __init__(self) -> None:
        self.done = False
        self._secret = 0
        self._score = 0.0

    def reset(self, **kwargs: Any) -> str:
        self._secret = random.Random(kwargs.get("seed")).randrange(10)
        self._score, self.done = 0.0, False
        return "Guess a digit."

    def guess(self, digit: int) -> str:
        """Guess the digit.

        Args:
            digit: from 0 to 9
        """
        if not isinstance(digit, int):
            raise ValueError("a digit is a number")
        self.done = digit == self._secret
        self._score = 1.0 if self.done else -0.1
        return "right" if self.done else ("more" if digit < self._secret else "less")

    def get_reward(self) -> float:
        return self._score


CASES: dict[str, tuple[Any, list[str] | None]] = {
    "bandit": (lambda: Bandit(pulls=4), None),
    "frozen_lake": (FrozenLake, None),
    "frozen_lake_slippery": (lambda: FrozenLake(size=5, is_slippery=True), None),
    "sokoban": (lambda: Sokoban(size=6, boxes=2), None),
    "countdown": (Countdown, None),
    "lookup": (lambda: Lookup(wait_ms=(0, 0)), None),
    "ragen": (lambda: adapted(RagenToy), None),
    "gymnasium": (lambda: adapted(gym.make, id="Taxi-v4", render_mode="ansi"), None),
    "trl": (lambda: adapted(TrlToy), ["guess(5)", 'guess(digit="x")', "guess(digit=2)", "fly()", "guess(7)"]),
}


@pytest.mark.parametrize("name", CASES)
def test_golden_transcripts(name: str) -> None:
    """Three seeds each. A change here is a change of what agents see: delete the file to write it anew."""
    factory, actions = CASES[name]
    got = []
    for seed in (1, 2, 3):
        env = factory()
        try:
            got.append([env.instructions, transcript(env, seed, actions)])
        finally:
            env.close()
    path = GOLDEN / f"{name}.json"
    if not path.exists():  # pragma: no cover - written once, by hand
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(got, indent=1))
        pytest.fail(f"{path} was not there; look at it, and commit it")
    assert got == json.loads(path.read_text())


@pytest.mark.parametrize("name", CASES)
def test_the_contract(name: str) -> None:
    """Text, numbers and flags; the same again from the same seed, in the same and in a fresh instance."""
    factory, actions = CASES[name]
    env, other = factory(), factory()
    try:
        first = transcript(env, 5, actions)
        transcript(env, 6, actions)
        assert transcript(env, 5, actions) == first == transcript(other, 5, actions)
        checked_observation(env.reset(7))
        checked_step(env.step(env.actions[0] if env.actions else "1 + 1"))
    finally:
        env.close()
        other.close()
        env.close()


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_environments_may_be_used_again(name: str) -> None:
    assert is_reusable(
        as_specs(
            {
                name: next(
                    tag
                    for tag in ("Bandit", "Sokoban", "FrozenLake", "Countdown", "Lookup")
                    if spec_of(tag).factory is SHIPPED[name]
                )
            }
        )[0]
    )


def test_one_that_carries_something_over_may_not() -> None:
    assert not is_reusable(spec(Forgetful))
    assert is_reusable(spec(Counting))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), boxes=st.integers(1, 2))
def test_every_sokoban_level_can_be_solved(seed: int, boxes: int) -> None:
    env = Sokoban(size=6, boxes=boxes, least_moves=3)
    env.reset(seed)
    solution = solve(env.level)
    assert solution is not None
    assert len(solution) >= 3
    steps = [env.step(action) for action in solution]
    assert steps[-1].is_done
    assert steps[-1].facts["success"] == 1.0
    assert not any(step.is_done for step in steps[:-1])
    assert sum(step.reward for step in steps) == pytest.approx(10 + boxes - 0.1 * len(steps))


def test_a_level_without_a_solution_is_seen() -> None:
    """The solver can fail: a box in a corner."""
    level = generate(1, 6, 1, 3)
    corner = min(level.floor)
    stuck = type(level)(
        frozenset({corner, (corner[0], corner[1] + 1), (9, 9)}),
        frozenset({(9, 9)}),
        frozenset({corner}),
        (corner[0], corner[1] + 1),
        6,
    )
    assert solve(stuck) is None
    with pytest.raises(HeadraceError, match="takes 500 moves"):
        generate(1, 5, 1, 500)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), count=st.integers(2, 4))
def test_every_countdown_has_an_answer(seed: int, count: int) -> None:
    env = Countdown(count=count)
    env.reset(seed)
    numbers = list(env._numbers)
    ways = [str(numbers[0])]
    for number in numbers[1:]:
        ways = [f"({way}) {sign} {number}" for way in ways for sign in "+-*"]
    assert any(evaluate(way)[0] == env._target for way in ways)
    right = next(way for way in ways if evaluate(way)[0] == env._target)
    step = env.step(right)
    assert (step.reward, step.is_done, step.facts["success"]) == (1.0, True, 1.0)


@pytest.mark.parametrize(
    "text", ["__import__('os')", "2 ** 999999", "1 // 0", "1 / 0", "a", "", "1,2", "9" * 300, "(" * 150, "True", "1.5"]
)
def test_countdown_reads_arithmetic_and_nothing_else(text: str) -> None:
    env = Countdown()
    env.reset(1)
    step = env.step(text)
    assert (step.reward, step.is_done) == (0.0, True)


def test_adapters_find_out_what_it_is() -> None:
    assert isinstance(adapted(RagenToy), RagenStyle)
    assert isinstance(adapted(TrlToy), TrlStyle)
    assert isinstance(adapted(Counting), Counting)
    lake = adapted(gym.make, id="FrozenLake-v1", action_names=["W", "S", "E", "N"])
    assert isinstance(lake, GymnasiumText)
    assert lake.actions == ("W", "S", "E", "N")
    lake.close()
    with pytest.raises(UsageError, match="expected a text environment"):
        adapted(dict)
    pendulum = gym.make("Pendulum-v1")
    with pytest.raises(UsageError, match="action_space: expected discrete actions"):
        GymnasiumText(pendulum)
    pendulum.close()


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ('move("up", 2)', ("move", ["up", 2], {})),
        ("guess(digit=3)", ("guess", [], {"digit": 3})),
        ('{"name": "guess", "arguments": {"digit": 3}}', ("guess", [], {"digit": 3})),
    ],
)
def test_calls(text: str, want: Any) -> None:
    assert parsed_call(text) == want


@pytest.mark.parametrize(
    "text",
    [
        "", "up", "a.b()", "f(x)", "f(*[1])(2)", "{", '{"name": 1, "arguments": 3}', "[1]", "f(__import__('os'))",
        "f({[1]: 2})",
        '{"name": "f", "arguments": ' + '{"a": ' * 100_000, "f(" + "[" * 100_000,
    ],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_what_is_no_call_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of them will do
        parsed_call(text)


def test_a_lookup_waits_and_computes_nothing() -> None:
    """What it is for: a call takes 20 to 50 ms of which nearly nothing is computing; its text does not hang on it."""
    assert look(spec_of("Lookup")) is None
    assert transcript(Lookup(), 5) == transcript(Lookup(wait_ms=(0, 0)), 5)
    for options in ({"depots": 1}, {"wait_ms": (5, 1)}, {"wait_ms": (1,)}):
        with pytest.raises(UsageError, match="expected"):
            Lookup(**options)  # type: ignore[arg-type]


def test_a_call_that_can_not_be_is_the_players_mistake() -> None:
    """Not the environment's: its episode would fail, and the group with it."""
    env = adapted(TrlToy)
    env.reset(1)
    step = env.step("guess({[1]: 2})")
    assert step.facts == {"action_is_effective": 0.0}
    assert "is no call of guess" in step.observation


def test_other_words_take_no_way_to_act_away() -> None:
    """A declared form and tools are part of how an environment is played, whatever it is introduced with."""
    pendulum = TextEnvSpec("Pendulum", partial(adapted, gym.make), {"id": "Pendulum-v1", "action_form": "json"})
    task = task_of(instructed(pendulum, "Swing it up.").build())
    assert task.form is not None
    assert task.form.complaint("up")
    assert task.instructions.startswith("Swing it up.\nAn action is JSON: ")
    guess = task_of(instructed(TextEnvSpec("Guess", partial(adapted, TrlToy)), "Guess it.").build())
    assert guess.instructions == "Guess it."
    assert [one["function"]["name"] for one in guess.tools] == ["guess"]


@pytest.mark.parametrize("kind", [":Env", ".envs:Env", "envs:", ":"])
def test_half_a_name_is_refused(kind: str) -> None:
    with pytest.raises(UsageError, match=f"env_type '{kind}': expected module:attribute"):
        as_specs([kind])


@pytest.mark.parametrize("frozen", [0, -1, 1.5])
def test_a_lake_without_ice_is_refused(frozen: float) -> None:
    """Gymnasium would look for a way over it for ever."""
    with pytest.raises(UsageError, match="frozen: expected a share above 0"):
        FrozenLake(frozen=frozen)
