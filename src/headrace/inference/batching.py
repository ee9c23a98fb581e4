"""Which of the shards that ask form the next batch, and how long to wait for more. Pure: no clock, no memory.

    asked(slot, wanted, now_s) ... -> due(now_s) -> the slots of a batch · or none, and `wait_s` says when to ask again

The one that has waited longest is served first, together with all that want the same version of the weights, up to
`max_rows`. A batch waits for shards that are expected: those that have asked before, were not at the last row of their
rollout then, and have not missed a batch since. Where workers take turns with two shards, only those of the same turn
are expected: the others are being stepped. It waits `max_wait_s` at most, and not at all for a shard that, as long as
its environments took lately, can't be there by then. A shard that is not there by then is a
straggler: it comes with a later batch, and no batch waits for it until it has asked again. A request that a batch left
behind goes next, without waiting any longer.
Which rows form a batch never changes a row's bits (policies/tiles).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class BatchLimits:
    """How large a batch may become (0: all rows there are), and how long the first of it may wait for the others."""

    max_rows: int = 0
    max_wait_s: float = 0.001


class Batching:
    """The requests that wait at one server. Slot s has `rows[s]` rows."""

    def __init__(self, rows: Sequence[int], limits: BatchLimits, turns: Sequence[int] | None = None) -> None:
        self._rows, self._limits = rows, limits
        self._turns = turns or [0] * len(rows)
        self._most = limits.max_rows or sum(rows)
        self._waiting: dict[int, tuple[int, float, bool]] = {}  # wanted, since when, is it the last; as they asked
        self._missing: list[set[int]] = [set() for _ in range(1 + max(self._turns))]  # expected, not waiting; by turn
        self._answered_s: dict[int, float] = {}
        self._away_s: dict[int, float] = {}  # from an answer to the next question, lately
        self.wait_s: float | None = None
        """How long nothing is due, if nobody else asks: 0 if something may be due now, None if nobody waits."""
        self.lone: int | None = None
        """A slot of which it is known that its next request `is_alone`."""

    def asked(self, slot: int, wanted: int, now_s: float, is_last: bool = False) -> None:
        """A request was seen, the last of a rollout or not; it takes the place of the slot's one before."""
        if slot in self._answered_s:
            away_s = now_s - self._answered_s.pop(slot)
            self._away_s[slot] = (self._away_s.get(slot, away_s) + away_s) / 2
        before = self._waiting.get(slot)
        self._waiting[slot] = (wanted, now_s if before is None else before[1], is_last)
        self._missing[self._turns[slot]].discard(slot)
        self.wait_s, self.lone = 0.0, None

    def is_alone(self, slot: int) -> bool:
        """Whether a new request is a batch by itself, since nobody else waits or is expected."""
        missing = self._missing[self._turns[slot]]
        return not self._waiting and len(missing) <= (slot in missing)

    def served_alone(self, slot: int, is_last: bool, now_s: float) -> None:
        """Then it was served: a shortcut for `asked`, `due` and `answered`."""
        missing = self._missing[self._turns[slot]]
        (missing.discard if is_last else missing.add)(slot)
        self.lone = None if is_last else slot
        self.answered(slot, now_s)

    def answered(self, slot: int, now_s: float) -> None:
        """Its environments step from now on, unless that was the last of its rollout: then the learner has its turn."""
        self._answered_s.pop(slot, None)
        if slot in self._missing[self._turns[slot]]:
            self._answered_s[slot] = now_s

    def due(self, now_s: float) -> tuple[int, ...]:
        """The slots of the batch that should run now; none if it is better to wait."""
        self.wait_s = None
        if not self._waiting:
            return ()
        first_slot, (first_wanted, first_since_s, _) = next(iter(self._waiting.items()))
        missing = self._missing[self._turns[first_slot]]
        batch: list[int] = []
        rows, is_full = 0, False
        for slot, (wanted, _, _) in self._waiting.items():
            if wanted != first_wanted:
                continue
            if batch and rows + self._rows[slot] > self._most:
                is_full = True
                break
            batch.append(slot)
            rows += self._rows[slot]
        if missing and not is_full and rows < self._most:
            left_s = first_since_s + self._limits.max_wait_s - now_s
            if left_s > 0 and any(self._back_s(slot) <= now_s + left_s for slot in missing):
                self.wait_s = left_s
                return ()
            if first_since_s > -inf:
                missing -= {slot for slot in missing if self._back_s(slot) <= now_s}  # they were waited for
        for slot in batch:
            if not self._waiting.pop(slot)[2]:
                self._missing[self._turns[slot]].add(slot)
        for slot, (wanted, _, is_last) in self._waiting.items():  # those that were left behind have waited enough
            self._waiting[slot] = (wanted, -inf, is_last)
            self.wait_s = 0.0
        return tuple(batch)

    def _back_s(self, slot: int) -> float:
        """When a shard should ask again."""
        return self._answered_s.get(slot, -inf) + self._away_s.get(slot, 0.0)
