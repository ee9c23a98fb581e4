"""An environment with other instructions: a configuration's `env_instruction` in the place of its own words.

How actions are written (a declared form, tools) is no matter of these words, and stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.agents.environments.text_env import Step, TextEnv, TextEnvSpec


def instructed(spec: TextEnvSpec, words: str) -> TextEnvSpec:
    """The environment, introduced by these words; they are one of its options, so a log of other words is refused."""
    return replace(spec, factory=partial(_Instructed, spec.factory), options={**spec.options, "env_instruction": words})


class _Instructed:
    def __init__(self, factory: Callable[..., TextEnv], /, env_instruction: str, **options: Any) -> None:
        inner = self._inner = factory(**options)
        self.action_form, self.tools = getattr(inner, "action_form", None), getattr(inner, "tools", None)
        form = "" if self.action_form is None else f"\nAn action is {self.action_form.description}."
        self.instructions = f"{env_instruction}{form}"

    @property
    def actions(self) -> Sequence[str] | None:
        """As the environment inside."""
        return self._inner.actions

    def reset(self, seed: int) -> str:
        """As the environment inside."""
        return self._inner.reset(seed)

    def step(self, action: str) -> Step:
        """As the environment inside."""
        return self._inner.step(action)

    def close(self) -> None:
        """As the environment inside."""
        self._inner.close()
