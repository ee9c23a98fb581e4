"""An environment with other instructions: a configuration's `env_instruction` in the place of its own words."""

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
    def __init__(self, factory: Callable[..., TextEnv], env_instruction: str, **options: Any) -> None:
        self.instructions = env_instruction
        self._inner = factory(**options)

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
