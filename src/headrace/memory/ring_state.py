"""Who owns which slab, decided in plain data: no memory, no clock, no process.

    lease -> (the writer fills, then writes its fence into the slab's commit word) -> commit -> release -> lease ...
             revoke: the writer died before its commit; the same rollout is leased again under a new fence

Everything here belongs to one side, the reader's. A writer's only power is its commit word, and `commit` believes that
word only if it holds the fence of the lease it stands for. The shard's next sequence number moves on at commit,
so a rollout that was lost is asked for again and no number is ever skipped.
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
    """The slabs of a run and their owners."""

    def __init__(self, num_slots: int, num_shards: int) -> None:
        self._slots = [_Slot() for _ in range(num_slots)]
        self._next_sequence = [0] * num_shards
        self._open: dict[int, Lease] = {}  # shard -> the lease it is being filled under
        self._next_fence = 1  # 0 is what a fresh commit word holds
        self._leased = 0
        self._limit = 0

    def grant(self, limit: int) -> None:
        """Allow leases number 0 to limit-1, counted since the start of the run; it never shrinks."""
        self._limit = max(self._limit, limit)

    def lease(self, shard: int) -> Lease | None:
        """A free slab for the shard's next rollout; None if the pace or the number of slabs forbids it now."""
        if shard in self._open:
            raise RingError(
                f"shard {shard} already fills rollout {self._open[shard].sequence}; commit or revoke it first"
            )
        free = next((i for i, slot in enumerate(self._slots) if slot.owner is Owner.NOBODY), None)
        if free is None or self._leased >= self._limit:
            return None
        lease = Lease(free, shard, self._next_sequence[shard], self._next_fence)
        self._next_fence += 1
        self._leased += 1
        self._slots[free] = _Slot(Owner.WRITER, lease)
        self._open[shard] = lease
        return lease

    def commit(self, slot: int, commit_word: int) -> Lease | None:
        """The reader looked at a slot's commit word: the lease it fulfils, or None if it fulfils none."""
        lease = self._slots[slot].lease
        if lease is None or self._slots[slot].owner is not Owner.WRITER or commit_word != lease.fence:
            return None
        self._slots[slot].owner = Owner.READER
        self._next_sequence[lease.shard] += 1
        del self._open[lease.shard]
        return lease

    def revoke(self, shard: int) -> Lease | None:
        """Take an unfinished lease away. Call it only once the writer is known to be gone."""
        lease = self._open.pop(shard, None)
        if lease is not None:
            self._slots[lease.slot] = _Slot()
            self._leased -= 1
        return lease

    def release(self, lease: Lease) -> None:
        """The reader is done with a slab."""
        slot = self._slots[lease.slot]
        if slot.owner is not Owner.READER or slot.lease != lease:
            raise RingError(f"slot {lease.slot} is owned by {slot.owner.value}, expected the reader of {lease}")
        self._slots[lease.slot] = _Slot()

    def owner(self, slot: int) -> Owner:
        """Who may touch a slot now."""
        return self._slots[slot].owner

    def open_slots(self) -> list[int]:
        """Slots that a writer holds."""
        return [lease.slot for lease in self._open.values()]

    def resume(self, sequences: list[int], leased: int) -> None:
        """Go on from a checkpoint: every shard's next sequence number and the leases granted so far."""
        self._next_sequence, self._leased = list(sequences), leased

    @property
    def sequences(self) -> list[int]:
        """The next sequence number of every shard."""
        return list(self._next_sequence)

    @property
    def leased(self) -> int:
        """Leases granted since the start of the run, less those revoked."""
        return self._leased
