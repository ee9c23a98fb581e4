"""The ring: the slabs of a run in one segment, handed from writers to the reader and back.

    owner.lease(shard) -> Lease -> actor fills ring.slab(lease) and commits -> owner.take() -> owner.release(lease)

One side, the reader's, owns the ring and keeps `RingState`. Writers get a lease and the slab it names, nothing else.
On the heap the two are threads of one process; over shared memory a writer attaches to the segment and finds the same
bytes at `offset(lease)`. Commit words are stored with release and loaded with acquire (memory/atomics).
Does not know why a lease is granted, nor what is in a slab.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headrace.memory.atomics import load_acquire
from headrace.memory.ring_state import Lease, RingState
from headrace.memory.schema import Schema
from headrace.memory.segment import HeapSegment, Segment
from headrace.memory.slab import Slab, Word, slab_bytes


@dataclass(frozen=True)
class Taken:
    """A committed slab that the reader owns until it releases it."""

    lease: Lease
    slab: Slab


class Ring:
    """The owner's side: all slabs of all shards, and who has each."""

    def __init__(
        self,
        schemas: list[Schema],
        slabs_per_shard: int,
        make_segment: Callable[[int], Segment] = HeapSegment,
        is_even: bool = True,
    ) -> None:
        self._schemas = schemas
        largest = max(slab_bytes(schema) for schema in schemas)
        self._stride = -(-largest // 4096) * 4096
        num_slots = slabs_per_shard * len(schemas)
        self.segment = make_segment(self._stride * num_slots)
        self._words = np.frombuffer(self.segment.buffer, np.int64)
        self._state = RingState(num_slots, len(schemas), is_even)
        self._views: dict[tuple[int, int], Slab] = {}

    def grant(self, limit: int) -> None:
        """Allow that many leases since the start of the run."""
        self._state.grant(limit)

    def lease(self, shard: int) -> Lease | None:
        """A poisoned slab for the shard's next rollout, or None if it must wait."""
        lease = self._state.lease(shard)
        if lease is not None:
            slab = self.slab(lease)
            slab.poison()
            # A slot serves shards of other sizes too, so its fingerprint may be another schema's.
            slab.header[Word.FINGERPRINT] = slab.schema.fingerprint
            slab.header[Word.SHARD], slab.header[Word.SEQUENCE] = lease.shard, lease.sequence
            slab.header[Word.FENCE] = lease.fence
        return lease

    def slab(self, lease: Lease) -> Slab:
        """The slab that a lease names."""
        schema = self._schemas[lease.shard]
        key = (lease.slot, lease.shard)
        if key not in self._views:
            start = self.offset(lease)
            self._views[key] = Slab(schema, self.segment.buffer[start : start + slab_bytes(schema)])
        return self._views[key]

    def offset(self, lease: Lease) -> int:
        """Where in the segment the lease's slab begins."""
        return lease.slot * self._stride

    def take(self) -> list[Taken]:
        """Every slab committed since the last call, by shard and sequence: never in the order in which they arrived."""
        taken = []
        for slot in self._state.open_slots():
            lease = self._state.commit(slot, self._commit_word(slot))
            if lease is not None:
                taken.append(Taken(lease, self.slab(lease)))
        return sorted(taken, key=lambda one: (one.lease.shard, one.lease.sequence))

    def release(self, lease: Lease) -> None:
        """Give a slab back."""
        self._state.release(lease)

    def revoke(self, shard: int) -> None:
        """Take a shard's unfinished leases away from a writer that is gone."""
        self._state.revoke(shard)

    def close(self) -> None:
        """Give the memory back; slabs that somebody still reads stay readable."""
        self.segment.unlink()

    def reject(self, lease: Lease) -> None:
        """Give a slab back that nobody will learn from; another may be leased in its place."""
        self._state.reject(lease)

    def resume(self, sequences: list[int], batches: int) -> None:
        """Go on counting where a checkpoint stopped."""
        self._state.resume(sequences, batches)

    @property
    def sequences(self) -> list[int]:
        """The next sequence number of every shard."""
        return self._state.sequences

    @property
    def leased(self) -> int:
        """Leases granted since the start of the run."""
        return self._state.leased

    def _commit_word(self, slot: int) -> int:
        return int(load_acquire(self._words, (slot * self._stride) // 8 + int(Word.COMMIT)))
