"""Who owns which slab, decided in plain data: no memory, no clock, no process.

    lease -> (the writer fills, then writes its fence into the slab's commit word) -> commit -> release -> lease ...
             revoke: the writer died before its commit; its rollouts are leased again under new fences

Everything here belongs to one side, the reader's. A writer's only power is its commit word, and `commit` believes that
word only if it holds the fence of the lease it stands for. A shard may hold several leases; they are filled and
committed in the order of their sequence numbers, which move on at commit, so a rollout that was lost is asked for again
and no number is ever skipped.
Does not know when data is too old: it is told how many leases may be out (`grant`), see learning/lag.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headrace.errors import RingError


class Owner(Enum):
    """Who may touch a slab."""

    NOBODY = "nobody"
    WRITER = "writer"
    READER = "reader"


@dataclass(frozen=True)
class Lease:
    """The right to fill one slab with rollout number `sequence` of one shard."""

    slot: int
    shard: int
    sequence: int
    fence: int


@dataclass
class _Slot:
    owner: Owner = Owner.NOBODY
    lease: Lease | None = None


class RingState:
    """The slabs of a run and their owners. With `is_even`, no shard takes another's share of the pace."""

    def __init__(self, num_slots: int, num_shards: int, is_even: bool = True) -> None:
        self._slots = [_Slot() for _ in range(num_slots)]
        self._committed = [0] * num_shards
        self._base = [0] * num_shards  # sequence numbers that an earlier process used up without a batch
        self._open: list[list[Lease]] = [[] for _ in range(num_shards)]  # in the order they are to be filled
        self._is_even = is_even
        self._next_fence = 1  # 0 is what a fresh commit word holds
        self._leased = 0
        self._limit = 0

    def grant(self, limit: int) -> None:
        """Allow leases number 0 to limit-1, counted since the start of the run; it never shrinks."""
        self._limit = max(self._limit, limit)

    def lease(self, shard: int) -> Lease | None:
        """A free slab for the shard's next rollout; None if the pace or the number of slabs forbids it now."""
        sequence = self._committed[shard] + len(self._open[shard])
        share = (sequence - self._base[shard]) * len(self._committed)
        if self._leased >= self._limit or (self._is_even and share >= self._limit):
            return None
        free = next((i for i, slot in enumerate(self._slots) if slot.owner is Owner.NOBODY), None)
        if free is None:
            return None
        lease = Lease(free, shard, sequence, self._next_fence)
        self._next_fence += 1
        self._leased += 1
        self._slots[free] = _Slot(Owner.WRITER, lease)
        self._open[shard].append(lease)
        return lease

    def commit(self, slot: int, commit_word: int) -> Lease | None:
        """The reader looked at a slot's commit word: the lease it fulfils, or None if it fulfils none (yet)."""
        lease = self._slots[slot].lease
        if lease is None or self._slots[slot].owner is not Owner.WRITER or commit_word != lease.fence:
            return None
        if self._open[lease.shard][0] != lease:
            return None  # an earlier rollout of the shard comes first
        self._slots[slot].owner = Owner.READER
        self._committed[lease.shard] += 1
        self._open[lease.shard].pop(0)
        return lease

    def revoke(self, shard: int) -> list[Lease]:
        """Take a shard's unfinished leases away. Call it only once the writer is known to be gone."""
        leases, self._open[shard] = self._open[shard], []
        for lease in leases:
            self._slots[lease.slot] = _Slot()
        self._leased -= len(leases)
        return leases

    def release(self, lease: Lease) -> None:
        """The reader is done with a slab."""
        slot = self._slots[lease.slot]
        if slot.owner is not Owner.READER or slot.lease != lease:
            raise RingError(f"slot {lease.slot} is owned by {slot.owner.value}, expected the reader of {lease}")
        self._slots[lease.slot] = _Slot()

    def reject(self, lease: Lease) -> None:
        """The reader will not use a slab: released, and its lease does not count against the pace."""
        self.release(lease)
        self._base[lease.shard] += 1
        self._leased -= 1

    def owner(self, slot: int) -> Owner:
        """Who may touch a slot now."""
        return self._slots[slot].owner

    def open_slots(self) -> list[int]:
        """Slots that a writer holds, every shard's in the order they are filled."""
        return [lease.slot for leases in self._open for lease in leases]

    def resume(self, sequences: list[int], batches: int) -> None:
        """Go on from a checkpoint: every shard's next sequence number, and the batches that were learned from."""
        self._committed = list(sequences)
        self._base = [sequence - batches for sequence in sequences]
        self._leased = batches * len(sequences)

    @property
    def sequences(self) -> list[int]:
        """The next sequence number of every shard to be committed."""
        return list(self._committed)

    @property
    def leased(self) -> int:
        """Leases granted since the start of the run, less those revoked."""
        return self._leased
