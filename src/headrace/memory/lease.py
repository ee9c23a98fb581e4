"""A lease: the right to fill one slab with one rollout of a shard. What the reader and hosts both know of the ring.

ring.lease(shard) -> Lease -> a host fills the slab, and commits it with the fence -> Taken -> ring.release(lease)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headrace.memory.slab import Slab


class Lease(NamedTuple):
    """The right to fill one slab with rollout number `sequence` of one shard."""

    slot: int
    shard: int
    sequence: int
    fence: int


@dataclass(frozen=True)
class Taken:
    """A committed slab that the reader owns until it releases it."""

    lease: Lease
    slab: Slab
