"""Episodes that finished: one, as it is counted, reported and written; and what is counted of them.

Does not know what is averaged over them, or what that is called (collecting/record).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class Finished(NamedTuple):
    """One finished episode."""

    env_index: int
    episode: int
    total_reward: float
    length: int
    terminated: bool


class Results:
    """How many episodes finished, and the returns and lengths of the last `window` of them."""

    def __init__(self, window: int) -> None:
        self.episodes = 0
        self.recent: deque[tuple[float, int]] = deque(maxlen=window)

    def count(self, ended: Sequence[Finished]) -> None:
        """Episodes whose rollouts are settled, in the order in which they are reported."""
        self.episodes += len(ended)
        self.recent.extend((one.total_reward, one.length) for one in ended)
