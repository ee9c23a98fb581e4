"""Bandit: arms with names that say nothing. One pays a little every time, one pays much now and then.

Which is which, and when it pays, hangs on the seed alone: the k-th pull of an arm pays the same however it came to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.agents.environments.text_env import Step
from headrace.errors import UsageError
from headrace.keywords import in_words


@in_words()
class Bandit:
    """`pulls` decisions between arms; success is having pulled the better arm last."""

    def __init__(
        self,
        arms: Sequence[str] = ("Phoenix", "Dragon"),
        pulls: int = 1,
        steady: float = 0.2,
        payoff: float = 1.0,
        chance: float = 0.4,
    ) -> None:
        if len(set(arms)) < 2:
            raise UsageError(f"arms: expected at least two names, got {list(arms)}")
        if pulls < 1:
            raise UsageError(f"pulls: expected at least 1, got {pulls}")
        self.actions = tuple(arms)
        self.instructions = (
            f"You play a machine with {len(arms)} arms: {', '.join(arms)}. Most arms pay the same small amount every "
            f"time; one pays more, but only now and then, and more on average. Find it in {pulls} pulls."
        )
        self._pulls, self._steady, self._payoff, self._chance = pulls, steady, payoff, chance
        self._best = 0
        self._seed = 0
        self._counts: list[int] = []

    def reset(self, seed: int) -> str:
        """Shuffle the arms."""
        self._seed = seed
        self._best = int(np.random.default_rng((seed, 0)).integers(len(self.actions)))
        self._counts = [0] * len(self.actions)
        return "No arm has been pulled yet."

    def step(self, action: str) -> Step:
        """Pull an arm."""
        arm = self.actions.index(action)
        draw = np.random.default_rng((self._seed, 1, arm, self._counts[arm])).random()
        self._counts[arm] += 1
        is_best = arm == self._best
        reward = (self._payoff if draw < self._chance else 0.0) if is_best else self._steady
        left = self._pulls - sum(self._counts)
        facts = {"success": float(is_best), "action_is_effective": 1.0}
        return Step(f"{action} paid {reward:g}. {left} pulls left.", reward, left == 0, facts)

    def close(self) -> None:
        """Nothing to let go of."""
