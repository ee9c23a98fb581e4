"""How long a worker may show no progress before it counts as hung: learnt from how long it took before. Pure.

    took(kind, seconds) ──> the slowest of each kind ──> limit_s(kind) = 10 x the slowest, from floor_s to ceiling_s

Slow is not hung: the limit follows what was seen, so work that takes long raises its own limit. Before anything of a
kind was seen the ceiling holds. Does not know clocks or workers.
"""

from __future__ import annotations

from collections.abc import Hashable

_TIMES = 10.0


class Patience:
    """What was seen so far, and the limits that follow from it."""

    def __init__(self, floor_s: float, ceiling_s: float) -> None:
        self._floor_s, self._ceiling_s = floor_s, ceiling_s
        self._slowest_s: dict[Hashable, float] = {}

    def took(self, kind: Hashable, seconds: float) -> None:
        """Something of this kind came to an end after so long."""
        self._slowest_s[kind] = max(seconds, self._slowest_s.get(kind, 0.0))

    def has_seen(self, kind: Hashable) -> bool:
        """Whether its limit was learnt."""
        return kind in self._slowest_s

    def limit_s(self, *kinds: Hashable) -> float:
        """For work that is one of these kinds, by the slowest of them; those that were never seen do not count."""
        seen = [self._slowest_s[kind] for kind in kinds if kind in self._slowest_s]
        return min(self._ceiling_s, max(self._floor_s, _TIMES * max(seen))) if seen else self._ceiling_s
