"""The ring: the slabs of a run in one segment, and who holds each.

    ring.lease(shard) -> Lease -> the writer fills the slab and commits it -> ring.take() -> ring.release(lease)
                         revoke: the writer died before its commit; its rollouts are leased again under new fences

`RingState` decides in plain data: no memory, no clock, no process. `Ring` is the thin shell over the bytes. Both belong
to one side, the reader's. A writer's only power is its commit word, and `RingState.commit` believes that word only if
it holds the fence of the lease it stands for. A shard may hold several leases; they are filled and committed in the
order of their sequence numbers, which move on at commit, so a rollout that was lost is asked for again and no number is
ever skipped. Commit words are stored with release and loaded with acquire (memory/atomics).
Does not know when data is too old: the reader says how many leases may be out (`grant`), see headrace.pace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from headrace.errors import RingError
from headrace.memory.atomics import load_acquire
from headrace.memory.layout import Word, slab_bytes
from headrace.memory.lease import Lease, Taken
from headrace.memory.schema import Schema
from headrace.memory.segment import HeapSegment, Segment
from headrace.memory.slab import Slab


class RingState:
    """Who holds what. With `is_even`, no shard takes another's share of the pace."""

    def __init__(self, num_slots: int, num_shards: int, is_even: bool = True) -> None:
        self.held: list[Lease | None] = [None] * num_slots  # by slot: the writer's while it is open, then the reader's
        self.open: list[list[Lease]] = [[] for _ in range(num_shards)]  # in the order they are to be filled
        self.sequences = [0] * num_shards  # the next one of every shard to be committed
        self._base = [0] * num_shards  # sequence numbers that an earlier process used up without a batch
        self._is_even = is_even
        self._next_fence = 1  # 0 is what a fresh commit word holds
        self._limit = 0

    @property
    def leased(self) -> int:
        """Since the start of the run, less those revoked or rejected."""
        return sum(map(self._leased_to, range(len(self.sequences))))

    def grant(self, limit: int) -> None:
        """Allow leases number 0 to limit-1, counted since the start of the run; it never shrinks."""
        self._limit = max(self._limit, limit)

    def lease(self, shard: int) -> Lease | None:
        """A free slab for the shard's next rollout; None if the pace or the number of slabs forbids it now."""
        share = self._leased_to(shard) * len(self.sequences)
        if self.leased >= self._limit or (self._is_even and share >= self._limit) or None not in self.held:
            return None
        free, sequence = self.held.index(None), self.sequences[shard] + len(self.open[shard])
        self.held[free] = lease = Lease(free, shard, sequence, self._next_fence)
        self._next_fence += 1
        self.open[shard].append(lease)
        return lease

    def commit(self, word_of: Callable[[int], int | None]) -> list[Lease]:
        """The leases that are fulfilled, by shard and sequence; `word_of` looks at a slot's commit word.

        They are the reader's from now on. Whatever else of a shard is committed, its earliest open rollout comes first.
        """
        fulfilled = []
        for shard, leases in enumerate(self.open):
            while leases and word_of(leases[0].slot) == leases[0].fence:
                fulfilled.append(leases.pop(0))
                self.sequences[shard] += 1
        return fulfilled

    def revoke(self, shard: int) -> list[Lease]:
        """Take a shard's unfinished leases away. Call it only once the writer is known to be gone."""
        leases, self.open[shard] = self.open[shard], []
        for lease in leases:
            self.held[lease.slot] = None
        return leases

    def release(self, lease: Lease) -> None:
        """The reader is done with a slab."""
        if self.held[lease.slot] != lease or lease in self.open[lease.shard]:
            raise RingError(f"{lease} is not the reader's to give back; slot {lease.slot}: {self.held[lease.slot]}")
        self.held[lease.slot] = None

    def reject(self, lease: Lease) -> None:
        """The reader will not use a slab: released, and its lease does not count against the pace."""
        self.release(lease)
        self._base[lease.shard] += 1

    def resume(self, sequences: Sequence[int], batches: int) -> None:
        """Go on from a checkpoint: every shard's next sequence number, and the batches that were learned from."""
        self.sequences = list(sequences)
        self._base = [sequence - batches for sequence in sequences]

    def _leased_to(self, shard: int) -> int:
        return self.sequences[shard] + len(self.open[shard]) - self._base[shard]


class Ring:
    """The reader's side of the bytes: all slabs of all shards. Ownership is `state`'s."""

    def __init__(
        self,
        schemas: Sequence[Schema],
        slabs_per_shard: int,
        make_segment: Callable[[int], Segment] = HeapSegment,
        is_even: bool = True,
    ) -> None:
        largest = max(slab_bytes(schema) for schema in schemas)
        self._schemas = schemas
        self._stride = -(-largest // 4096) * 4096
        num_slots = slabs_per_shard * len(schemas)
        self.segment = make_segment(self._stride * num_slots)
        self._words = np.frombuffer(self.segment.buffer, np.int64)
        self.state = RingState(num_slots, len(schemas), is_even)
        self._views: dict[tuple[int, int], Slab] = {}

    def lease(self, shard: int) -> Lease | None:
        """A poisoned slab for the shard's next rollout, or None if it must wait."""
        lease = self.state.lease(shard)
        if lease is not None:
            slab = self.slab(lease)
            slab.poison()
            # A slot serves shards of other sizes too, so its fingerprint may be another schema's.
            slab.header[Word.FINGERPRINT] = slab.schema.fingerprint
            slab.header[Word.SHARD], slab.header[Word.SEQUENCE] = lease.shard, lease.sequence
            slab.header[Word.FENCE] = lease.fence
        return lease

    def every_lease(self) -> Iterator[Lease]:
        """All leases that the pace allows, one of each shard in turn, so that older rollouts come first."""
        waiting = list(range(len(self._schemas)))
        while waiting:
            leases = [self.lease(shard) for shard in waiting]
            yield from (lease for lease in leases if lease is not None)
            waiting = [shard for shard, lease in zip(waiting, leases, strict=True) if lease is not None]

    def slab(self, lease: Lease) -> Slab:
        """The slab that a lease names."""
        key = (lease.slot, lease.shard)
        if key not in self._views:
            schema, start = self._schemas[lease.shard], self.offset(lease)
            self._views[key] = Slab(schema, self.segment.buffer[start : start + slab_bytes(schema)])
        return self._views[key]

    def offset(self, lease: Lease) -> int:
        """Where in the segment the lease's slab begins."""
        return lease.slot * self._stride

    def take(self) -> list[Taken]:
        """Every slab committed since the last call, by shard and sequence: never in the order in which they arrived."""
        return [Taken(lease, self.slab(lease)) for lease in self.state.commit(self._commit_word)]

    def close(self) -> None:
        """Give the memory back; slabs that are still being read stay readable."""
        self.segment.unlink()

    def _commit_word(self, slot: int) -> int:
        return int(load_acquire(self._words, slot * self._stride // 8 + Word.COMMIT))
