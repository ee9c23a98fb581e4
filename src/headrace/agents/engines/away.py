"""Episodes that an engine has answered: when they should come back with their next question.

    answer --leave--> away --back--> a running mean of how long they stay · count, left_s: whom a pass may wait for

Pure: time comes in from outside. Does not know what an engine does with it.
"""

from __future__ import annotations

import math

_LATE = 2.0  # times as long as others: then an episode is not expected back any more
_SHARE = 0.1  # of the newest one in the mean


class Away:
    """By session, in the order of their answers."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._mean_s = math.inf  # from an answer to the next question of the same episode

    def leave(self, session: str, now_s: float) -> None:
        """It was answered."""
        self._since.pop(session, None)
        self._since[session] = now_s

    def back(self, session: str, now_s: float) -> None:
        """It asks again."""
        answered_s = self._since.pop(session, None)
        if answered_s is not None:
            away_s, known_s = now_s - answered_s, self._mean_s
            self._mean_s = away_s if known_s == math.inf else known_s + _SHARE * (away_s - known_s)

    def count(self, now_s: float) -> int:
        """Those that should come back any moment."""
        oldest_s = now_s - _LATE * self._mean_s
        while self._since and next(iter(self._since.values())) < oldest_s:
            self._since.pop(next(iter(self._since)), None)
        return len(self._since)

    def left_s(self, now_s: float) -> float:
        """Until the last of them should be there; a quarter of the mean at least."""
        return max(next(reversed(self._since.values())) + self._mean_s - now_s, 0.25 * self._mean_s)
