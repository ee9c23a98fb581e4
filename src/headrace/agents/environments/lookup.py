"""Lookup: a parcel is on its way along a row of depots, and each question to a depot is a call that takes a while.

It stands for tools that wait (a search, a database, a browser): a call takes 20 to 50 ms, in which the process has
nothing to compute. How long hangs on the seed and the number of the call; texts and rewards do not hang on it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from headrace.agents.environments.text_env import Step
from headrace.errors import UsageError
from headrace.keywords import in_words


@in_words()
class Lookup:
    """Find the depot. Rewards: 1 for the right one, -0.1 for every other question."""

    def __init__(self, depots: int = 8, wait_ms: Sequence[float] = (20.0, 50.0)) -> None:
        if depots < 2:
            raise UsageError(f"depots: expected at least 2, got {depots}")
        if len(wait_ms) != 2 or not 0 <= wait_ms[0] <= wait_ms[1]:
            raise UsageError(f"wait_ms: expected the least and the most milliseconds of a call, got {list(wait_ms)}")
        self._least_s, self._most_s = wait_ms[0] / 1e3, wait_ms[1] / 1e3
        self.actions = tuple(f"Ask {number}" for number in range(1, depots + 1))
        self.instructions = (
            f"A parcel travels along depots 1 to {depots}. Ask depots until you find the one where it lies; each knows "
            "whether the parcel has passed it."
        )
        self._seed = self._calls = self._at = 0

    def reset(self, seed: int) -> str:
        """Another parcel."""
        self._seed, self._calls = seed, 0
        self._at = int(np.random.default_rng((seed, 0)).integers(1, len(self.actions) + 1))
        return f"Parcel {seed % 10_000:04d} is on its way."

    def step(self, action: str) -> Step:
        """Ask a depot, and wait for its answer."""
        draw = np.random.default_rng((self._seed, 1, self._calls)).random()
        self._calls += 1
        time.sleep(self._least_s + draw * (self._most_s - self._least_s))
        asked = self.actions.index(action) + 1
        if asked == self._at:
            return Step(f"Depot {asked}: the parcel is here.", 1.0, True, {"success": 1.0})
        word = "has passed" if asked < self._at else "has not come as far as"
        return Step(f"Depot {asked}: the parcel {word} this depot.", -0.1, False, {"success": 0.0})

    def close(self) -> None:
        """Nothing to let go of."""
