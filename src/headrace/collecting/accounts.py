"""The account of a batch: what the reader measures and counts while it collects one.

    open (next) -> seconds, and what slabs say of their hosts' time -> counts, as the batch is given back -> record

Numbers as they come: nothing is summed or named here (record).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from headrace.collecting.place import Replaced
from headrace.collecting.topology import Topology
from headrace.memory.layout import Word

Array = npt.NDArray[Any]

SPENT = np.array([int(word) for word in (Word.ENV_NS, Word.INFERENCE_NS, Word.COPY_NS, Word.IDLE_NS, Word.CPU_NS)])
"""The words of a slab's header that say where its host's time went."""


@dataclass
class Account:
    """Of one batch, and of rollouts that were rejected before it."""

    spent_ns: Array
    """[workers, SPENT]"""
    step_ns: Array
    """[environments], of a step, lately; 0: not known."""
    is_inline: bool
    wait_s: float = 0.0
    hand_over_s: float = 0.0
    age_s: float = 0.0
    """Of the oldest slab, when the batch was lent."""
    version: int = 0
    """The latest one, when the batch is given back."""
    versions: Sequence[tuple[int, Array]] = ()
    """Of the rows of each slab, with the number of its environments."""
    shares: Array = field(default_factory=lambda: np.zeros(0))
    """Steps of one environment of each shard, since the start of this process."""
    queue_depth: int = 0
    replaced: Replaced = field(default_factory=Replaced)
    counted: Mapping[str, float] = field(default_factory=dict)
    """By inference servers and notices, by their names."""
    ledger: Mapping[str, int] = field(default_factory=dict)
    episodes: int = 0
    recent: Sequence[tuple[float, int]] = ()
    """Returns and lengths of the last ones."""

    @classmethod
    def of(cls, topology: Topology) -> Self:
        """The first one."""
        spent_ns, step_ns = np.zeros((topology.workers, len(SPENT))), np.zeros(topology.shards[-1].stop)
        return cls(spent_ns, step_ns, topology.topology == "inline")

    def next(self) -> Account:
        """The next batch's, empty."""
        return Account(np.zeros_like(self.spent_ns), self.step_ns.copy(), self.is_inline)
