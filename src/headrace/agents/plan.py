"""Which groups there are, by which rules they are played, and from which seeds: a function of the run's seed alone.

    group number -> tag (n_groups of each tag in turn) · reset seed (the tree's leaf of the group number)
    group, member, turn -> sampling seed

Nothing here depends on the number of workers, or on which of them plays a group. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isfinite

from headrace.agents.environments.text_env import TextEnvSpec
from headrace.envs.seeds import Purpose, leaf
from headrace.errors import UsageError, require_types
from headrace.keywords import in_words

ANSWERS = ("tags", "hermes", "llama", "mistral")


@in_words()
@dataclass(frozen=True)
class Rules:
    """The limits of an episode, and the format of answers."""

    max_turn: int = 5
    """Exchanges at most."""
    max_actions_per_turn: int = 2
    """Actions taken from one answer at most."""
    max_actions_per_traj: int = 10
    """Actions of an episode at most."""
    max_tokens: int = 128
    """Tokens of one answer at most."""
    max_context: int = 4096
    """Tokens of a row at most; an episode that would need more is truncated."""
    enable_think: bool = True
    """Answers are <think>..</think><answer>..</answer>; else <answer>..</answer>."""
    action_sep: str = "||"
    """Between the actions of one answer."""
    format_penalty: float = -0.1
    """Added to the reward of a turn whose answer is invalid; the environment does not move."""
    temperature: float = 1.0
    """Of sampling."""
    top_p: float = 1.0
    """Tokens are drawn from the likeliest that together have this share; 1: from all."""
    top_k: int = 0
    """Tokens are drawn from so many of the likeliest; 0 or -1: from all."""
    system: str = ""
    """A system message before the first question; none if empty."""
    answers: str = "tags"
    """How actions are written: tags (<answer>..</answer>), or native tool calls, as the model writes them: hermes (JSON
    between tags: Qwen, Hermes), llama (the answer is JSON) or mistral (a list after [TOOL_CALLS])."""

    def __post_init__(self) -> None:
        whole = ("max_turn", "max_actions_per_turn", "max_actions_per_traj", "max_tokens", "max_context")
        require_types(
            self,
            {int: (*whole, "top_k"), float: ("format_penalty", "temperature", "top_p"), str: ("action_sep", "system")},
        )
        for name in whole:
            if getattr(self, name) < 1:
                raise UsageError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.max_tokens >= self.max_context:
            raise UsageError(
                f"max_tokens: expected fewer than max_context = {self.max_context}, got {self.max_tokens}: no prompt "
                f"would leave room for an answer"
            )
        if not isinstance(self.enable_think, bool):
            raise UsageError(f"enable_think: expected true or false, got {self.enable_think!r}")
        if not self.action_sep.strip():
            raise UsageError("action_sep: expected some text between actions, got none")
        if self.answers not in ANSWERS:
            raise UsageError(f"answers: expected one of {', '.join(ANSWERS)}, got {self.answers!r}")
        if not isfinite(self.format_penalty):
            raise UsageError(f"format_penalty: expected a finite number, got {self.format_penalty}")
        if not 0 <= self.temperature < inf:
            raise UsageError(f"temperature: expected 0 or more, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p: expected a number above 0, and at most 1, got {self.top_p}")
        if self.top_k < -1:
            raise UsageError(f"top_k: expected at least 1, or 0 or -1 for all tokens, got {self.top_k}")


@dataclass(frozen=True)
class Ticket:
    """One group to be played: all its members begin from the same seed."""

    number: int
    tag: str
    seed: int
    group_size: int
    attempt: int = 1


@dataclass(frozen=True)
class GroupPlan:
    """The groups of a run."""

    seed: int
    group_size: int
    envs: tuple[TextEnvSpec, ...]
    n_groups: tuple[int, ...]  # per tag, in one round
    rules: Rules

    def __post_init__(self) -> None:
        tags = [spec.tag for spec in self.envs]
        if not tags:
            raise UsageError("envs: expected at least one environment")
        if len(set(tags)) < len(tags):
            raise UsageError(f"envs: expected every tag once, got {', '.join(tags)}")
        if self.group_size < 1:
            raise UsageError(f"group_size: expected at least 1, got {self.group_size}")
        if len(self.n_groups) != len(tags) or min(self.n_groups) < 0 or sum(self.n_groups) < 1:
            raise UsageError(f"n_groups: expected one number per tag ({', '.join(tags)}), got {list(self.n_groups)}")
        self.rules_of(tags[0])  # limits that are no rules are refused now

    @property
    def per_round(self) -> int:
        """Groups until the tags begin again."""
        return sum(self.n_groups)

    def ticket(self, number: int) -> Ticket:
        """The group of that number."""
        place = number % self.per_round
        for spec, count in zip(self.envs, self.n_groups, strict=True):
            if place < count:
                return Ticket(number, spec.tag, self.reset_seed(number), self.group_size)
            place -= count
        raise AssertionError("a place is below the sum of n_groups")

    def reset_seed(self, number: int) -> int:
        """31 bits: text environments are often seeded by libraries that take no more."""
        return leaf(self.seed, Purpose.AGENT_GROUP, number) >> 32

    def sampling_seed(self, group: int, member: int, turn: int) -> int:
        """Of one answer."""
        return leaf(self.seed, Purpose.AGENT_SAMPLING, group, member, turn)

    def spec_of(self, tag: str) -> TextEnvSpec:
        """The environment of a tag."""
        return next(spec for spec in self.envs if spec.tag == tag)

    def rules_of(self, tag: str) -> Rules:
        """The rules, with the tag's own limits."""
        return self._rules[tag]

    @cached_property
    def _rules(self) -> dict[str, Rules]:
        return {spec.tag: self._limited(spec.tag, spec.limits) for spec in self.envs}

    def _limited(self, tag: str, limits: Mapping[str, object]) -> Rules:
        try:
            return replace(self.rules, **limits)  # type: ignore[arg-type]
        except TypeError as error:
            raise UsageError(f"limits of {tag}: {error}") from error


def shares(env_groups: int, tags: Sequence[str], n_groups: Sequence[int] | None) -> tuple[int, ...]:
    """Groups per tag; evenly if n_groups is None."""
    if n_groups is not None:
        if sum(n_groups) != env_groups or len(n_groups) != len(tags):
            raise UsageError(
                f"n_groups: expected {len(tags)} numbers that add up to env_groups = {env_groups}, got {list(n_groups)}"
            )
        return tuple(n_groups)
    small, extra = divmod(env_groups, len(tags))
    return tuple(small + (index < extra) for index in range(len(tags)))
