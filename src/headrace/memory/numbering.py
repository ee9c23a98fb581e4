"""Rollouts of a shard are numbered, and each is read once: a second opinion on what the ring hands over.

    rollout of a shard --enter--> the expected number? · a higher one: a batch was dropped · a lower one: read twice

Does not know what is in a rollout, nor who gives it its number (ring).
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import LedgerError


class Numbering:
    """The number of the next rollout of every shard."""

    def __init__(self, num_shards: int) -> None:
        self.next = [0] * num_shards

    def enter(self, shard: int, sequence: int) -> None:
        """A rollout of this shard was taken."""
        if sequence != self.next[shard]:
            what = "a dropped batch" if sequence > self.next[shard] else "a batch read twice"
            raise LedgerError(f"shard {shard}: expected rollout {self.next[shard]}, got {sequence}: {what}")
        self.next[shard] += 1

    def restore(self, saved: Sequence[int]) -> None:
        """Go on from a checkpoint. If shards are dealt anew, all go on from the highest number: none may come back."""
        self.next = list(saved) if len(saved) == len(self.next) else [max(saved)] * len(self.next)
