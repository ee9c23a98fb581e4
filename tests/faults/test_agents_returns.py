"""What text environments return: numpy's scalars count as what they are, and what is no text is a typed failure."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import headrace as hr
from headrace.agents.environments.adapters import GymnasiumText, RagenStyle, TrlStyle
from headrace.agents.environments.text_env import Step, TextEnvSpec, checked_step
from headrace.agents.limits import Limits
from headrace.agents.metrics import summary
from headrace.agents.records import EpisodeError, Group
from support.agent_envs import Counting

SCALARS = [np.bool_, np.float32, np.float64, np.int64, np.uint8, np.array, torch.tensor]


class Ragen:
    """RAGEN's interface; returns what it is made with."""

    def __init__(self, **returned: Any) -> None:
        self._returned = {"reset": "go", "text": "on", "reward": 1.0, "done": True, "info": {}} | returned

    def reset(self, seed: int | None = None) -> Any:
        return self._returned["reset"]

    def step(self, action: str) -> Any:
        return tuple(self._returned[name] for name in ("text", "reward", "done", "info"))


class Rendering(Ragen):
    """Shows itself by render()."""

    def render(self) -> Any:
        return self._returned["render"]


class Gym(gym.Env[Any, Any]):
    """One step; returns what it is made with."""

    observation_space = action_space = gym.spaces.Discrete(2)
    render_mode = "ansi"

    def __init__(self, **returned: Any) -> None:
        self._returned = {"drawn": "seen", "reward": 1.0, "done": True, "info": {}} | returned

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        return 0, self._returned["reward"], self._returned["done"], False, self._returned["info"]

    def render(self) -> Any:
        return self._returned["drawn"]


class Trl:
    """TRL's interface: one tool."""

    def __init__(self, **returned: Any) -> None:
        self._returned = {"reset": None, "tool": "on", "reward": 1.0} | returned
        self.done = np.False_

    def reset(self) -> Any:
        return self._returned["reset"]

    def act(self) -> Any:
        """Act."""
        self.done = np.True_
        return self._returned["tool"]

    def get_reward(self) -> Any:
        return self._returned["reward"] if self.done else 0.0


class Plain(Counting):
    """Ours; returns what it is made with."""

    def __init__(self, **returned: Any) -> None:
        super().__init__()
        self._returned = {"reset": "go", "text": "on", "reward": 1.0, "done": True, "facts": {}} | returned

    def reset(self, seed: int) -> str:
        return self._returned["reset"]

    def step(self, action: str) -> Step:
        return Step(*(self._returned[name] for name in ("text", "reward", "done", "facts")))


def said_act(prompt: str, rng: Any) -> str:
    action = "act()" if "act()" in prompt else "0" if "Actions: 0, 1" in prompt else "one"
    return f"<think>x</think><answer>{action}</answer>"


def played(factory: Any, **returned: Any) -> Group:
    from headrace.agents.engines.scripted import scripted
    from headrace.agents.environments.adapters import adapted

    engine = scripted(said_act)
    env = TextEnvSpec("Env", adapted, {"factory": factory, **returned})
    try:
        with hr.AgentRollouts([env], engine, backend="sequential", group_size=2, limits=Limits(attempts=1)) as rollouts:
            (group,) = rollouts.run(1)
            return group
    finally:
        engine.close()


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("env", [Ragen, Gym, Plain], ids=lambda one: one.__name__)
def test_scalars_count_as_what_they_are(env: Any, scalar: Any) -> None:
    """A success that is numpy's is one, in metrics and pass@k; so are its rewards and its end."""
    name = "facts" if env is Plain else "info"
    reward = {} if scalar is np.bool_ else {"reward": scalar(1)}
    group = played(env, done=np.bool_(True), **{name: {"success": scalar(1), "level": scalar(0)}}, **reward)
    assert group.status == "completed"
    assert [one.metrics["success"] for one in group.episodes] == [1.0, 1.0]
    assert [one.metrics["level"] for one in group.episodes] == [0.0, 0.0]
    assert [one.reward for one in group.episodes] == [1.0, 1.0]
    assert summary([group])["Env/pass@2"] == 1.0


@pytest.mark.parametrize("env", [Ragen, Plain], ids=lambda one: one.__name__)
def test_a_failure_that_is_numpys_is_no_success(env: Any) -> None:
    name = "facts" if env is Plain else "info"
    group = played(env, done=True, **{name: {"success": np.False_}})
    assert summary([group])["Env/pass@2"] == 0.0


def test_numbers_of_an_info_do_not_take_the_place_of_ours() -> None:
    """An info's own "reward" is no episode's reward; NaN and -1 are no success."""
    metrics = played(Ragen, info={"reward": 7.0, "num_turns": 9, "success": np.nan}).episodes[0].metrics
    assert (metrics["reward"], metrics["num_turns"], metrics["success"]) == (1.0, 1.0, 0.0)
    assert played(Ragen, info={"success": -1}).episodes[0].metrics["success"] == 0.0


def test_text_that_is_no_unicode_is_spelt_out() -> None:
    """A lone surrogate can't be encoded, sent or stored; it is the environment's, and no failure of a server's."""
    for env, returned in ((Ragen, {"reset": "a\ud800b"}), (Plain, {"reset": "a\ud800b"})):
        group = played(env, text="\udfff", **returned)
        assert group.status == "completed"
        assert "a\\ud800b" in group.episodes[0].turns[0].prompt
    assert checked_step(Step("\ud800", 0.0, False, {"\ud800": 1.0})) == Step("\\ud800", 0.0, False, {"\\ud800": 1.0})


def test_rewards_keep_their_value() -> None:
    group = played(Ragen, reward=np.float32(0.1))
    assert group.episodes[0].reward == float(np.float32(0.1))
    assert played(Trl, reward=np.float32(0.5)).episodes[0].reward == 0.5


NOT_TEXT = {
    "Ragen, reset": (Ragen, {"reset": None}, "reset returned None, expected text"),
    "Ragen, reset tuple": (Ragen, {"reset": (None, {})}, "reset returned None, expected text"),
    "Ragen, reset array": (Ragen, {"reset": np.zeros(2)}, "reset returned array"),
    "Ragen, render": (Rendering, {"reset": None, "render": None}, "reset returned None, expected text"),
    "Ragen, step": (Ragen, {"text": None}, "the observation is None, expected text"),
    "Ragen, step number": (Ragen, {"text": 3}, "the observation is 3, expected text"),
    "Ragen, step bytes": (Ragen, {"text": b"on"}, "the observation is b'on', expected text"),
    "Ragen, reward": (Ragen, {"reward": None}, "the reward is None, expected a finite number"),
    "Ragen, reward text": (Ragen, {"reward": "1.0"}, "the reward is '1.0', expected a finite number"),
    "Ragen, reward NaN": (Ragen, {"reward": np.float32("nan")}, "the reward is nan"),
    "Ragen, rewards": (Ragen, {"reward": np.ones(2)}, "the reward is array"),
    "Ragen, done text": (Ragen, {"done": "no"}, "a flag is 'no', expected True or False"),
    "Ragen, done None": (Ragen, {"done": None}, "a flag is None, expected True or False"),
    "Gym, view": (Gym, {"drawn": None}, "returned None, expected text"),
    "Gym, reward": (Gym, {"reward": None}, "the reward is None"),
    "Gym, done": (Gym, {"done": "yes"}, "a flag is 'yes'"),
    "Trl, reset": (Trl, {"reset": 3}, "reset returned 3, expected text"),
    "Trl, tool": (Trl, {"tool": None}, "the observation is None, expected text"),
    "Trl, tool list": (Trl, {"tool": [1]}, "the observation is [1], expected text"),
    "Trl, reward": (Trl, {"reward": "much"}, "its reward is 'much', expected a number"),
    "Plain, reset": (Plain, {"reset": None}, "reset returned None, expected text"),
    "Plain, step": (Plain, {"text": None}, "the observation is None, expected text"),
    "Plain, reward flag": (Plain, {"reward": np.True_}, "the reward is True, expected a finite number"),
    "Plain, done": (Plain, {"done": np.int64(1)}, "is_done is 1, expected True or False"),
    "Plain, facts": (Plain, {"facts": None}, "the facts are None"),
    "Plain, fact": (Plain, {"facts": {"a": np.str_("b")}}, "the fact 'a' is"),
    "Plain, huge fact": (Plain, {"facts": {"a": 10**400}}, "the fact 'a' is 1000"),
    "Plain, a fact's name": (Plain, {"facts": {1: 1.0, "b": 1.0}}, "the facts have the name 1, expected text"),
}


@pytest.mark.parametrize("name", NOT_TEXT)
def test_what_is_not_as_it_should_be_is_a_typed_failure(name: str) -> None:
    env, returned, problem = NOT_TEXT[name]
    group = played(env, **returned)
    assert group.status == "failed"
    assert {one.boundary for one in group.failures} == {"env"}
    assert problem in group.failures[0].message
    shown = [turn.prompt for one in group.episodes for turn in one.turns]
    assert not any("None" in text for text in shown)


def test_what_is_allowed_stays_allowed() -> None:
    assert RagenStyle(Ragen(reset=("go", {}))).reset(1) == "go"
    assert RagenStyle(Rendering(reset=np.zeros(2), render="drawn")).reset(1) == "drawn"
    assert RagenStyle(Ragen(done=1)).step("a").is_done is True
    assert RagenStyle(Ragen(info={"note": "text", "n": np.int8(3)})).step("a").facts == {"n": 3.0}
    assert TrlStyle(Trl()).reset(1) == "Begin."
    assert TrlStyle(Trl(tool=np.int64(3))).step("act()").observation == "3"
    assert TrlStyle(Trl(tool=True)).step("act()").observation == "True"
    assert GymnasiumText(Gym(reward=np.float32(2))).step("1").facts == {"success": 1.0}
    text = np.str_("a")
    assert type(checked_step(Step(text, 0.0, False)).observation) is str


@pytest.mark.parametrize(
    ("told", "problem"),
    [({"instructions": None}, "its instructions are None"), ({"actions": "one"}, "its actions are 'one'"),
     ({"actions": (1, 2)}, r"its actions are \(1, 2\)")],
)  # fmt: skip
def test_a_task_is_told_in_text(told: dict[str, Any], problem: str) -> None:
    class Untold(Counting):
        pass

    for name, value in told.items():
        setattr(Untold, name, value)
    from headrace.agents.environments.text_env import task_of

    with pytest.raises(EpisodeError, match=problem):
        task_of(Untold())
