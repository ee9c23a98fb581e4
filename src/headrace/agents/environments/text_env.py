"""The contract of a text environment, and how one is named.

    env = spec.build() · reset(seed) -> what is to be seen · step(action) -> Step · close()

State is a function of the seed and the actions since: the same seed and actions give the same texts and rewards.
An environment is used by one thread at a time, not always the same one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from headrace.agents.records import ENV, EpisodeError


@dataclass(frozen=True)
class Step:
    """What one action did. `facts` may hold success, action_is_effective and whatever else should be averaged."""

    observation: str
    reward: float
    is_done: bool
    facts: Mapping[str, float] = field(default_factory=dict)


class TextEnv(Protocol):
    """An environment in words."""

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


@dataclass(frozen=True)
class TextEnvSpec:
    """How to build one, wherever it is needed: a factory and its options. Worker processes get it pickled."""

    tag: str
    factory: Callable[..., TextEnv]
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)  # rules of this tag alone, such as max_turn

    def build(self) -> TextEnv:
        """A fresh instance."""
        return self.factory(**self.options)


def checked_step(step: Any) -> Step:
    """The step, or EpisodeError that says what was wrong with what the environment returned."""
    if not isinstance(step, Step):
        raise EpisodeError(ENV, f"step returned {_short(step)}, expected a Step")
    observation, reward, is_done = cast(tuple[Any, Any, Any], (step.observation, step.reward, step.is_done))
    facts = cast(Mapping[str, Any], step.facts)
    if not isinstance(observation, str):
        raise EpisodeError(ENV, f"the observation is {_short(observation)}, expected text")
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
        raise EpisodeError(ENV, f"the reward is {_short(reward)}, expected a finite number")
    if not isinstance(is_done, bool):
        raise EpisodeError(ENV, f"is_done is {_short(is_done)}, expected True or False")
    odd = [name for name, value in facts.items() if not isinstance(value, (bool, int, float))]
    if odd:
        raise EpisodeError(ENV, f"the fact {odd[0]!r} is {_short(facts[odd[0]])}, expected a number")
    return step


def checked_observation(observation: object) -> str:
    """What reset returned, or EpisodeError."""
    if not isinstance(observation, str):
        raise EpisodeError(ENV, f"reset returned {_short(observation)}, expected text")
    return observation


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
