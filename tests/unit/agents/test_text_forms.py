"""Gymnasium actions in a declared text form: what is told to the player, what is read, and what is refused."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.agents.engines.scripted import scripted
from headrace.agents.environments.adapters import GymnasiumText, adapted
from headrace.agents.environments.reuse import is_reusable
from headrace.agents.environments.text_env import TextEnvSpec, TextForm
from headrace.agents.environments.text_forms import json_form
from headrace.agents.episode import Rules, parse
from headrace.errors import UsageError

ARM = gym.spaces.Dict(
    {
        "move": gym.spaces.Box(np.array([-1, 0]), np.array([1, 2]), dtype=np.float32),
        "grip": gym.spaces.Discrete(3, start=1),
        "lamps": gym.spaces.MultiBinary(2),
        "then": gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Box(-5, 5, (), np.int64))),
    }
)
SPACES: dict[str, gym.Space[Any]] = {
    "Box": gym.spaces.Box(-2.0, 2.0, (1,)),
    "Box without bounds": gym.spaces.Box(-np.inf, np.inf, (2,), np.float64),
    "Box of whole numbers": gym.spaces.Box(0, 255, (2, 3), np.uint8),
    "MultiDiscrete": gym.spaces.MultiDiscrete([3, 2]),
    "MultiDiscrete with a start": gym.spaces.MultiDiscrete([3, 2], start=[10, -1]),
    "Dict": ARM,
}


def as_json(action: Any) -> Any:
    if isinstance(action, dict):
        return {name: as_json(part) for name, part in action.items()}
    return [as_json(part) for part in action] if isinstance(action, tuple) else np.asarray(action).tolist()


def same(one: Any, other: Any) -> bool:
    return bool(as_json(one) == as_json(other))


@pytest.mark.parametrize("name", SPACES)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31 - 1))
def test_every_action_can_be_written(name: str, seed: int) -> None:
    space = SPACES[name]
    space.seed(seed)
    action = space.sample()
    read = json_form(space).read(json.dumps(as_json(action)))
    assert space.contains(read)
    assert same(read, action)


@pytest.mark.parametrize("name", SPACES)
def test_the_example_is_an_action(name: str) -> None:
    form = json_form(SPACES[name])
    assert SPACES[name].contains(form.read(form.example))
    assert form.example in form.description


@settings(max_examples=100, deadline=None)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(ARM)), inner, max_size=4),
    ),
    name=st.sampled_from(sorted(SPACES)),
)
def test_whatever_is_written_is_an_action_or_refused(value: Any, name: str) -> None:
    form = json_form(SPACES[name])
    text = json.dumps(value)
    if not form.complaint(text):
        assert SPACES[name].contains(form.read(text))


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("Box", "[2.5]", "expected a number from -2 to 2, got 2.5"),
        ("Box", "2.0", "expected a list of 1, got 2.0"),
        ("Box", "[NaN]", "NaN is no number"),
        ("Box", "[true]", "expected a number"),
        ("Box", '["1"]', "expected a number"),
        ("Box", "[1, 1]", "expected a list of 1"),
        ("Box", "left", "it is no JSON"),
        ("Box without bounds", "[1e999, 0]", "expected a number"),
        ("Box of whole numbers", "[[1, 2, 3], [4, 5, 256]]", "from 0 to 255, got 256"),
        ("Box of whole numbers", "[[1, 2, 3], [4, 5, 6.5]]", "a whole number"),
        ("MultiDiscrete", "[0, 2]", "from 0 to 1, got 2"),
        ("MultiDiscrete with a start", "[0, 0]", "from 10 to 12, got 0"),
        ("Dict", "{}", "expected an object with grip, lamps, move, then, got {}"),
        (
            "Dict",
            '{"grip": 0, "lamps": [0, 1], "move": [0, 0], "then": [0, 0]}',
            "grip: expected a whole",
        ),
    ],
)
def test_what_is_no_action_is_refused(name: str, text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        json_form(SPACES[name]).read(text)


@pytest.mark.parametrize("digits", [310, 4200, 5000])
@pytest.mark.parametrize("name", sorted(SPACES))
def test_a_number_beyond_all_floats_is_refused(name: str, digits: int) -> None:
    """A model that goes on with digits; the error of arithmetic would fail its episode, and with it the group."""
    number = "1" + "0" * digits
    for text in (number, f"[{number}]", f"[{number}, {number}]", f"[[{number}, 1, 1], [1, 1, 1]]"):
        complaint = json_form(SPACES[name]).complaint(text)
        assert complaint
        assert "too large" not in complaint


def test_a_form_of_ones_own_may_fail_in_its_arithmetic() -> None:
    assert TextForm("a whole number", lambda text: int(float(text))).complaint("1e999"), "infinity is no integer"
    assert TextForm("a share", lambda text: 1 / float(text)).complaint("0")


@pytest.mark.parametrize("answers", ["tags", "hermes"])
def test_a_number_beyond_all_floats_costs_the_penalty(answers: str) -> None:
    action = "[1" + "0" * 310 + "]"
    call = f'<tool_call>{{"name": "act", "arguments": {{"action": {action}}}}}</tool_call>'
    engine = scripted(lambda prompt, rng: f"<answer>{action}</answer>" if answers == "tags" else call)
    rules = Rules(max_turn=1, max_tokens=500, enable_think=False, format_penalty=-0.5, answers=answers)
    env = TextEnvSpec("Pendulum", adapted, {"factory": gym.make, "id": "Pendulum-v1", "action_form": "json"})
    try:
        with hr.AgentRollouts([env], engine, backend="sequential", group_size=1, rules=rules) as rollouts:
            (group,) = rollouts.run(1)
    finally:
        engine.close()
    assert group.failures == []
    assert group.episodes[0].reward == -0.5


@pytest.mark.parametrize("depth", [300, 900, 100_000])
def test_what_is_nested_deeply_is_refused(depth: int) -> None:
    form = json_form(SPACES["Box"])
    assert form.complaint("[" * depth + "]" * depth)
    assert form.complaint("[" * depth)


def test_spaces_without_a_form_are_refused() -> None:
    with pytest.raises(UsageError, match="declare a TextForm of your own"):
        json_form(gym.spaces.Sequence(gym.spaces.Discrete(2)))
    arm = Arm()
    with pytest.raises(UsageError, match=r"declared form \(action_form='json'"):
        GymnasiumText(arm)
    with pytest.raises(UsageError, match="expected json or a TextForm"):
        GymnasiumText(arm, action_form="yaml")
    with pytest.raises(UsageError, match="expected one of them"):
        GymnasiumText(arm, action_form="json", action_names=["a"])
    arm.action_space = gym.spaces.MultiBinary(4)
    with pytest.raises(UsageError, match="expected discrete actions"):
        GymnasiumText(arm)


class Arm(gym.Env[Any, Any]):
    """Keeps what it was asked to do."""

    observation_space = gym.spaces.Discrete(9)
    taken: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.action_space: gym.Space[Any] = ARM

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return 3, {}

    def step(self, action: Any) -> tuple[int, Any, Any, Any, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.taken.append(action)
        return 4, np.float32(0.5), np.bool_(action["grip"] == 3), False, {"success": np.True_}


GOOD = {"move": [0.5, 2], "grip": 3, "lamps": [1, 0], "then": [1, -5]}


def test_an_episode_of_dict_actions() -> None:
    """From an answer to the environment's own types; a text that is no action costs the penalty and moves nothing."""
    said = iter([json.dumps(GOOD | {"grip": 7}), json.dumps(GOOD | {"grip": 1}), json.dumps(GOOD)])
    rules = Rules(enable_think=False, format_penalty=-0.25, max_tokens=200)
    engine = scripted(lambda prompt, rng: f"<answer>{next(said)}</answer>")
    env = {"Arm": TextEnvSpec("Arm", adapted, {"factory": Arm, "action_form": "json"})}
    Arm.taken.clear()
    with hr.AgentRollouts(env, engine, backend="sequential", group_size=1, rules=rules) as rollouts:
        (group,) = rollouts.run(1)
    engine.close()
    (episode,) = group.episodes
    assert [turn.is_valid for turn in episode.turns] == [False, True, True]
    assert [turn.reward for turn in episode.turns] == [-0.25, 0.5, 0.5]
    assert episode.metrics["success"] == 1.0
    assert "An action is JSON: an object with" in episode.turns[0].prompt
    assert "grip: expected a whole number from 1 to 3, got 7" in episode.turns[1].prompt
    assert [action["grip"] for action in Arm.taken] == [1, 3]
    assert Arm.taken[0]["move"].dtype == np.float32


def test_pendulum_through_json() -> None:
    env = adapted(gym.make, id="Pendulum-v1", action_form="json")
    try:
        assert env.reset(1) == env.reset(1)
        step = env.step("[1.5]")
        assert isinstance(step.reward, float)
        refused = env.step("[9]")
        assert "is no action" in refused.observation
        assert refused.facts["action_is_effective"] == 0.0
        assert is_reusable(TextEnvSpec("P", adapted, {"factory": gym.make, "id": "Pendulum-v1", "action_form": "json"}))
    finally:
        env.close()


def test_a_form_of_ones_own() -> None:
    def read(text: str) -> Any:
        left, right = text.split()
        return np.array([float(left), float(right)], np.float32)

    form = TextForm("two numbers from -1 to 1 with a blank between", read, "0 0")
    assert parse("<answer>0.5 1 || 1 0</answer>", False, "||", 2, form=form).actions == ("0.5 1", "1 0")
    names = TextForm("left or right", {"left": 0, "right": 1}.__getitem__, "left")
    assert parse("<answer>left</answer>", False, "||", 2, form=names).is_valid
    assert "'up' is no action" in parse("<answer>up</answer>", False, "||", 2, form=names).complaint
    assert "'up' is no action" in parse("<answer>up</answer>", False, "||", 2, form=form).complaint
