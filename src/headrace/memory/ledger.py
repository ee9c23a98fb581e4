"""The ledger: produced = consumed + rejected + discarded, at every update.

    collected -> produced · trained on -> consumed · too old -> rejected · thrown away, and why -> discarded

It counts steps of environments, or groups of LLM episodes. Rollouts of a shard are numbered, and numbers are checked
here: a gap is a dropped batch, a repeat is a batch read twice. Does not decide what is rejected, nor why.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from headrace.errors import LedgerError


class Ledger:
    """Where every step went."""

    def __init__(self, num_shards: int = 0) -> None:
        self.produced = 0
        self.consumed = 0
        self.rejected = 0
        self.discarded: Counter[str] = Counter()
        self.sequences = [0] * num_shards  # the next one of every shard

    def enter(self, shard: int, sequence: int, steps: int) -> None:
        """A rollout of this shard was taken: its number is checked, its steps are produced."""
        expected = self.sequences[shard]
        if sequence != expected:
            what = "a dropped batch" if sequence > expected else "a batch read twice"
            raise LedgerError(f"shard {shard}: expected rollout {expected}, got {sequence}: {what}")
        self.sequences[shard] += 1
        self.produce(steps)

    def produce(self, steps: int) -> None:
        """Steps that were collected."""
        self.produced += steps

    def consume(self, steps: int) -> None:
        """Steps that the learner trained on."""
        self.consumed += steps

    def reject(self, steps: int) -> None:
        """Steps that were too old."""
        self.rejected += steps

    def discard(self, steps: int, reason: str) -> None:
        """Steps thrown away, and why."""
        self.discarded[reason] += steps

    def check(self) -> None:
        """Raise if a step is unaccounted for. Call it between updates, when no batch is in hand."""
        if self.produced != self.settled:
            raise LedgerError(
                f"the ledger does not balance: produced {self.produced}, accounted for {self.settled}: {self.encode()}"
            )

    @property
    def settled(self) -> int:
        """Steps whose fate is known."""
        return self.consumed + self.rejected + sum(self.discarded.values())

    def counts(self) -> dict[str, int]:
        """What is shown of it."""
        kinds = {"produced": self.produced, "consumed": self.consumed, "rejected": self.rejected}
        return kinds | {"discarded": sum(self.discarded.values())}

    def encode(self) -> dict[str, Any]:
        """The ledger as JSON."""
        return self.counts() | {"discarded": dict(sorted(self.discarded.items())), "sequences": list(self.sequences)}

    def restore(self, data: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.produced, self.consumed, self.rejected = data["produced"], data["consumed"], data["rejected"]
        self.discarded = Counter(data["discarded"])
        saved, count = data["sequences"], len(self.sequences)
        self.sequences = list(saved) if len(saved) == count else [max(saved)] * count  # other shards, one number
