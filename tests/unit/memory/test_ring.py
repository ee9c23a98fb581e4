"""The ring: leased slabs are poisoned and labelled, taken by shard and in order, by those who own them, at a pace."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.errors import RingError
from headrace.memory.layout import Word
from headrace.memory.lease import Lease
from headrace.memory.ring import Ring, RingState
from headrace.memory.segment import SharedSegment
from headrace.memory.slab import Slab
from support.slabs import small_schema


def granted(ring: Ring, shard: int) -> Lease:
    lease = ring.lease(shard)
    assert lease is not None
    return lease


def ring_of(n_envs: list[int], slabs_per_shard: int = 1, limit: int = 100) -> Ring:
    ring = Ring([small_schema(n_envs=n) for n in n_envs], slabs_per_shard)
    ring.state.grant(limit)
    return ring


def test_a_leased_slab_is_poisoned_and_says_for_whom_it_is() -> None:
    ring = ring_of([2, 2])
    for sequence in range(2):
        lease = granted(ring, 1)
        slab = ring.slab(lease)
        assert np.isnan(slab.reward).all()
        assert (slab.header[Word.SHARD], slab.header[Word.SEQUENCE]) == (1, sequence)
        assert slab.header[Word.FENCE] == lease.fence
        slab.reward.fill(0.0)
        slab.commit(lease.fence, 0)
        assert [one.lease for one in ring.take()] == [lease]
        ring.state.release(lease)


def test_slabs_are_taken_by_shard_whoever_came_first() -> None:
    ring = ring_of([1, 1, 1])
    leases = [granted(ring, shard) for shard in (2, 0, 1)]
    for lease in leases:
        ring.slab(lease).commit(lease.fence, 0)
    assert [one.lease.shard for one in ring.take()] == [0, 1, 2]


def test_a_slot_carries_the_fingerprint_of_the_shard_it_is_leased_to() -> None:
    """Shards differ in size when n_envs does not divide; a writer in another process checks the fingerprint."""
    ring = ring_of([3, 2])
    for order in [(0, 1), (1, 0), (0, 1)]:
        for shard in order:
            lease = granted(ring, shard)
            slab = ring.slab(lease)
            start = slab.header.ctypes.data - np.frombuffer(ring.segment.buffer, np.uint8).ctypes.data
            Slab(small_schema(n_envs=[3, 2][shard]), ring.segment.buffer[start:], create=False)
        for shard in order:
            ring.state.revoke(shard)


def test_slabs_of_different_slots_do_not_overlap() -> None:
    ring = ring_of([3, 2], slabs_per_shard=2)
    slabs = []
    for _ in range(2):
        for shard in range(2):
            lease = granted(ring, shard)
            slabs.append(ring.slab(lease))
            slabs[-1].commit(lease.fence, 0)
        assert len(ring.take()) == 2
    for i, one in enumerate(slabs):
        others = [array for other in slabs[:i] for array in (other.header, *other.arrays.values())]
        assert not any(np.shares_memory(array, other) for array in one.arrays.values() for other in others)


def test_only_the_owner_of_a_slab_may_give_it_back() -> None:
    ring = ring_of([1])
    lease = granted(ring, 0)
    with pytest.raises(RingError, match="not the reader's"):
        ring.state.release(lease)
    ring.slab(lease).commit(lease.fence, 0)
    ring.take()
    ring.state.release(lease)
    with pytest.raises(RingError, match="not the reader's"):
        ring.state.release(lease)


def test_a_shards_slabs_are_taken_in_the_order_they_were_leased() -> None:
    """The reader may see the second commit word before the first; it does not believe it yet."""
    ring = ring_of([1, 1], slabs_per_shard=2)
    first, second, other = granted(ring, 1), granted(ring, 1), granted(ring, 0)
    assert (first.sequence, second.sequence, other.sequence) == (0, 1, 0)
    ring.slab(second).commit(second.fence, 0)
    assert ring.take() == []
    ring.slab(first).commit(first.fence, 0)
    ring.slab(other).commit(other.fence, 0)
    assert [one.lease for one in ring.take()] == [other, first, second]


def test_a_lost_writers_leases_are_all_granted_again_under_new_fences() -> None:
    ring = ring_of([1, 1], slabs_per_shard=2, limit=4)
    lost = [granted(ring, 0), granted(ring, 0)]
    ring.slab(lost[1]).commit(lost[1].fence, 0)  # out of order, so not taken
    assert ring.take() == []
    ring.state.revoke(0)
    assert ring.state.leased == 0, "what was revoked does not count against the pace"
    again = [granted(ring, 0), granted(ring, 0)]
    assert [lease.sequence for lease in again] == [0, 1]
    assert min(lease.fence for lease in again) > max(lease.fence for lease in lost)
    assert ring.take() == [], "the old commit word is nobody's"
    ring.state.revoke(1)
    assert ring.state.leased == 2, "nothing to take from a shard that holds nothing"


def test_revoke_tells_what_it_took_and_leaves_the_reader_its_own() -> None:
    state = RingState(num_slots=3, num_shards=1)
    state.grant(3)
    kept, *lost = (state.lease(0) for _ in range(3))
    assert kept is not None
    assert state.commit({kept.slot: kept.fence}.get) == [kept]
    assert state.revoke(0) == lost
    assert state.revoke(0) == []
    assert (state.held, state.open) == ([kept, None, None], [[]])


@pytest.mark.parametrize("is_even", [True, False])
def test_an_even_ring_keeps_every_shards_share_of_the_pace(is_even: bool) -> None:
    ring = Ring([small_schema(n_envs=1)] * 2, slabs_per_shard=4, is_even=is_even)
    ring.state.grant(4)
    leases = [ring.lease(0) for _ in range(5)]
    assert sum(lease is not None for lease in leases) == (2 if is_even else 4)
    assert (ring.lease(1) is not None) == is_even


def test_a_rejected_slab_is_free_and_another_may_be_leased_in_its_place() -> None:
    ring = ring_of([1, 1], limit=2)
    lease, other = granted(ring, 0), granted(ring, 1)
    with pytest.raises(RingError, match="not the reader's"):
        ring.state.reject(lease)
    assert ring.state.leased == 2, "a refused rejection counts nothing"
    ring.slab(lease).commit(lease.fence, 0)
    ring.slab(other).commit(other.fence, 0)
    assert len(ring.take()) == 2
    assert ring.lease(0) is None
    ring.state.reject(lease)
    with pytest.raises(RingError, match="not the reader's"):
        ring.state.reject(lease)
    ring.state.release(other)
    assert ring.lease(1) is None, "it was not this shard's"
    again = granted(ring, 0)
    assert (again.sequence, again.slot) == (1, lease.slot), "the next rollout, never the same number twice"
    assert (ring.state.sequences, ring.state.leased) == ([1, 1], 2)


def test_a_resumed_ring_counts_on() -> None:
    ring = ring_of([1, 1], limit=0)
    ring.state.resume([5, 4], batches=4)  # one rollout of shard 0 was rejected
    ring.state.grant(8)
    assert ring.lease(0) is None, "the pace counts the batches of the run before"
    ring.state.grant(9)
    assert ring.state.leased == 8
    lease = granted(ring, 1)
    assert lease.sequence == 4
    assert ring.lease(0) is None
    ring.state.grant(10)
    assert ring.lease(1) is None, "shard 0's share"
    assert granted(ring, 0).sequence == 5
    assert (ring.state.sequences, ring.state.leased) == ([5, 4], 10)


def test_a_ring_in_shared_memory_lies_at_its_offsets_and_outlives_its_name() -> None:
    schemas = [small_schema(n_envs=3), small_schema(n_envs=2)]
    ring = Ring(schemas, 2, SharedSegment.create)
    ring.state.grant(4)
    try:
        attached = SharedSegment.attach(str(ring.segment.name))
        leases = [granted(ring, shard) for shard in (1, 0, 1, 0)]
        for lease in leases:
            block = attached.buffer[ring.offset(lease) :]
            theirs = Slab(schemas[lease.shard], block, create=False)
            theirs.reward.fill(lease.fence)
            theirs.commit(lease.fence, 0)
        taken = ring.take()
        assert [(one.lease.shard, one.lease.sequence) for one in taken] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    finally:
        ring.close()
        ring.close()
    assert all((one.slab.reward == one.lease.fence).all() for one in taken)
