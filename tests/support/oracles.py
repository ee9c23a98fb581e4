"""Slow, obvious transcriptions of what the library does in a few array operations: one row at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.episodes.finished import Finished

Array = npt.NDArray[Any]


def discounted_advantages(
    rewards: Sequence[float], values: Sequence[float], value_after: float, gamma: float, gae_lambda: float
) -> list[float]:
    """GAE by its definition, a sum for every step, over one episode or the part of it that a rollout holds."""
    next_values = [*values[1:], value_after]
    deltas = [r + gamma * after - v for r, v, after in zip(rewards, values, next_values, strict=True)]
    return [
        sum((gamma * gae_lambda) ** (later - step) * deltas[later] for later in range(step, len(deltas)))
        for step in range(len(deltas))
    ]


def slow_gae(
    reward: Array,
    value: Array,
    bootstrap_value: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    last_value: Array,
    gamma: float,
    gae_lambda: float,
) -> tuple[Array, Array]:
    """Advantages and returns of the valid rows; an invalid row has advantage 0 and its own value as return."""
    T, B = reward.shape
    advantage = np.zeros((T, B), np.float64)
    for b in range(B):
        episode: list[int] = []
        for t in range(T):
            if not valid[t, b]:
                assert not episode, "an invalid row follows an end"
                continue
            episode.append(t)
            if terminated[t, b] or truncated[t, b] or t == T - 1:
                if terminated[t, b]:
                    after = 0.0
                elif truncated[t, b]:
                    after = float(bootstrap_value[t, b])
                else:
                    after = float(last_value[b])
                rewards, values = ([float(array[t, b]) for t in episode] for array in (reward, value))
                advantage[episode, b] = discounted_advantages(rewards, values, after, gamma, gae_lambda)
                episode = []
    return advantage, advantage + value.astype(np.float64)


@dataclass
class SlowEnv:
    """One environment's life, row by row: which episode and step it is in, its return so far, the actions sent."""

    env_index: int
    episode: int = 0
    step: int = 0
    total: float = 0.0
    actions: list[Any] = field(default_factory=list)

    def live_through(
        self, action: Any, reward: float, terminated: bool, truncated: bool, valid: bool
    ) -> tuple[tuple[int, int], Finished | None]:
        """The (episode, step) of this row, and the episode if it ended here."""
        number = (self.episode, self.step)
        if not valid:
            return number, None
        self.step += 1
        self.total += float(reward)
        self.actions.append(action)
        if not (terminated or truncated):
            return number, None
        finished = Finished(self.env_index, self.episode, self.total, self.step, bool(terminated))
        self.episode, self.step, self.total, self.actions = self.episode + 1, 0, 0.0, []
        return number, finished
