"""The contract of a text environment, and how one is named.

    env = spec.build() · reset(seed) -> what is to be seen · step(action) -> Step · close()

State is a function of the seed and the actions since: the same seed and actions give the same texts and rewards.
An environment is used by one thread at a time, not always the same one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol, cast

from headrace.agents.records import ENV, EpisodeError, plain_text
from headrace.errors import UsageError
from headrace.keywords import in_words


@dataclass(frozen=True)
class Step:
    """What one action did. `facts` may hold success, action_is_effective and whatever else should be averaged."""

    observation: str
    reward: float
    is_done: bool
    facts: Mapping[str, float] = field(default_factory=dict)


UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError)  # what reading a text that is no action may raise


@in_words()
@dataclass(frozen=True)
class TextForm:
    """A form of actions. `read` turns a text into an action; its ValueError says what is wrong with the text."""

    description: str
    """What players are told, after "An action is"."""
    read: Callable[[str], Any]
    example: str = "1"
    """A text that can be read."""
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})
    """For tool calls: the JSON schema of an action, whose JSON is the text; a string is the text itself."""

    def complaint(self, text: str) -> str:
        """What is wrong with a text; empty if it can be read."""
        try:
            self.read(text)
        except UNREADABLE as error:
            return str(error) or "it can't be read"
        except RecursionError:
            return "it is nested too deeply"
        return ""


class TextEnv(Protocol):
    """An environment in words. It may also have an `action_form` (TextForm), for actions that no list can hold,
    and `tools` (in OpenAI's shape): then an action is a call, {"name": ..., "arguments": {...}} as JSON.
    """

    @property
    def instructions(self) -> str:
        """What the task is; part of the first question."""

    @property
    def actions(self) -> Sequence[str] | None:
        """Every legal action, or None if anything may be said."""

    def reset(self, seed: int) -> str:
        """Begin an episode; seeds are below 2**31."""

    def step(self, action: str) -> Step:
        """Act."""

    def close(self) -> None:
        """Let go of what it holds."""


@in_words()
@dataclass(frozen=True)
class TextEnvSpec:
    """How to build one, wherever it is needed: a factory and its options. Worker processes get it pickled."""

    tag: str
    factory: Callable[..., TextEnv]
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)  # rules of this tag alone, such as max_turn

    def __post_init__(self) -> None:
        if not callable(self.factory):
            raise UsageError(f"{self.tag}: expected what makes environments, got {self.factory!r}")

    def build(self) -> TextEnv:
        """A fresh instance."""
        return self.factory(**self.options)


def plain(value: Any) -> Any:
    """A scalar of numpy, or an array or tensor that holds one without a shape, as Python's own; others as they are."""
    return value.item() if getattr(value, "ndim", None) == 0 and callable(getattr(value, "item", None)) else value


def checked_step(step: Any) -> Step:
    """The step in plain values, or EpisodeError that says what was wrong with what the environment returned."""
    if not isinstance(step, Step):
        raise EpisodeError(ENV, f"step returned {_short(step)}, expected a Step")
    observation, reward, is_done = cast(
        tuple[Any, Any, Any], (step.observation, plain(step.reward), plain(step.is_done))
    )
    if not isinstance(observation, str):
        raise EpisodeError(ENV, f"the observation is {_short(observation)}, expected text")
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
        raise EpisodeError(ENV, f"the reward is {_short(reward)}, expected a finite number")
    if not isinstance(is_done, bool):
        raise EpisodeError(ENV, f"is_done is {_short(is_done)}, expected True or False")
    if not isinstance(cast(Any, step.facts), Mapping):
        raise EpisodeError(ENV, f"the facts are {_short(step.facts)}, expected names and numbers")
    facts: dict[Any, Any] = {name: plain(value) for name, value in cast(Any, step.facts).items()}
    nameless = [name for name in facts if not isinstance(name, str)]
    if nameless:
        raise EpisodeError(ENV, f"the facts have the name {_short(nameless[0])}, expected text")
    odd = [name for name, value in facts.items() if not _is_number(value)]
    if odd:
        raise EpisodeError(ENV, f"the fact {odd[0]!r} is {_short(facts[odd[0]])}, expected a number")
    return Step(plain_text(observation), reward, is_done, {plain_text(name): one for name, one in facts.items()})


def checked_observation(observation: object) -> str:
    """What reset returned, or EpisodeError."""
    if not isinstance(observation, str):
        raise EpisodeError(ENV, f"reset returned {_short(observation)}, expected text")
    return plain_text(observation)


@dataclass(frozen=True)
class Task:
    """What players are told, and which answers are actions: any text, one of a list, or what a form can read."""

    instructions: str = ""
    actions: Sequence[str] | None = None
    form: TextForm | None = None
    tools: Any = None  # in OpenAI's shape; looked at where answers are tool calls


def task_of(env: TextEnv) -> Task:
    """An environment's own words, or EpisodeError."""
    instructions, actions = cast(tuple[Any, Any], (env.instructions, env.actions))
    if not isinstance(instructions, str):
        raise EpisodeError(ENV, f"its instructions are {_short(instructions)}, expected text")
    if actions is not None and not (
        isinstance(actions, Sequence) and not isinstance(actions, str) and all(isinstance(one, str) for one in actions)
    ):
        raise EpisodeError(ENV, f"its actions are {_short(actions)}, expected texts, or None")
    return Task(plain_text(instructions), actions, getattr(env, "action_form", None), getattr(env, "tools", None))


def some_action(env: TextEnv, rng: Random, otherwise: str) -> str:
    """An action that an environment can take, as far as it says which these are."""
    form: TextForm | None = getattr(env, "action_form", None)
    return rng.choice(env.actions) if env.actions else otherwise if form is None else form.example


def _is_number(value: Any) -> bool:
    """Whether a record can hold it: not an integer beyond all floats."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= sys.float_info.max)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
