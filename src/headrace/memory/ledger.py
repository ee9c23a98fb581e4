"""The ledger: produced = consumed + rejected + discarded, at every update.

    collected -> produced · trained on -> consumed · too old -> rejected · thrown away, and why -> discarded

Steps of environments, or groups of LLM episodes: whoever collects them adds to the counts. Does not decide what is
rejected, nor whether a rollout is missing or read twice (numbering).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import LedgerError


@dataclass
class Ledger:
    """Where every step went."""

    produced: int = 0
    """Collected."""
    consumed: int = 0
    """Trained on."""
    rejected: int = 0
    """Too old."""
    discarded: Counter[str] = field(default_factory=Counter)
    """Thrown away, by reason."""

    @property
    def settled(self) -> int:
        """Steps whose fate is known."""
        return self.consumed + self.rejected + sum(self.discarded.values())

    def check(self) -> None:
        """Raise if a step is unaccounted for. Call it between updates, when no batch is in hand."""
        if self.produced != self.settled:
            raise LedgerError(
                f"the ledger does not balance: produced {self.produced}, accounted for {self.settled}: {self.encode()}"
            )

    def counts(self) -> dict[str, int]:
        """What is shown of it."""
        return vars(self) | {"discarded": sum(self.discarded.values())}

    def encode(self) -> dict[str, Any]:
        """The ledger as JSON."""
        return vars(self) | {"discarded": dict(sorted(self.discarded.items()))}

    def restore(self, data: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.produced, self.consumed, self.rejected = data["produced"], data["consumed"], data["rejected"]
        self.discarded = Counter(data["discarded"])
