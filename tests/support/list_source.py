"""A source that lends batches from a list, as a test of a learner may want it: no slab, no host, no environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace.collecting.source import Harvest, Totals
from headrace.errors import HeadraceError
from headrace.learning.batch import Batch
from headrace.memory.ledger import Ledger


class ListSource:
    """Lends each batch once, in order. It never waits, so nothing can break it off but a failure that a test plants."""

    is_interruptible = False

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.before_wait: Callable[[], None] = lambda: None
        self._batches = batches
        self._next = 0
        self._lent: Batch | None = None
        self._is_closed = False
        self.ledger = Ledger()
        self.fails_with: BaseException | None = None

    def collect(self) -> Batch:
        """The next batch."""
        assert not self._is_closed, "closed"
        if self._lent is not None:
            raise HeadraceError("collect: the last batch was not given back")
        failure, self.fails_with = self.fails_with, None
        if failure is not None:
            raise failure
        self._lent = self._batches[self._next]
        self.ledger.produced += self._lent.steps
        return self._lent

    def give_back(self) -> Harvest:
        """It was learned from."""
        assert self._lent is not None, "nothing is lent"
        steps, self._lent = self._lent.steps, None
        self._next += 1
        self.ledger.consumed += steps
        self.ledger.check()
        record = {"headrace/ledger/produced": float(self.ledger.produced)}
        return Harvest(steps, lambda: record)

    def halt(self) -> None:
        """There are no workers."""

    def leftovers(self) -> Harvest:
        """Nothing is rejected."""
        return Harvest(0, dict)

    def run_ahead(self) -> None:
        """Everything is there already."""

    def totals(self) -> Totals:
        """What it has given so far."""
        return Totals(0, None, self.ledger.encode(), 0)

    def snapshot(self) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
        """Where it is in the list."""
        return {"next": self._next, "ledger": self.ledger.encode()}, {}

    def restore(self, state: dict[str, Any], arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        """Go on from there."""
        self._lent, self.fails_with = None, None
        self._next = state["next"]
        self.ledger.restore(state["ledger"])

    def close(self) -> None:
        """Nothing to give back."""
        self._is_closed, self._lent = True, None
