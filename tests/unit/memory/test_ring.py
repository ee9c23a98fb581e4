"""The ring: leased slabs are poisoned and labelled, taken by shard, and only by those who own them."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.errors import RingError
from headrace.memory.ring import Ring
from headrace.memory.ring_state import Lease
from headrace.memory.slab import Slab, Word
from support.slabs import small_schema


def granted(ring: Ring, shard: int) -> Lease:
    lease = ring.lease(shard)
    assert lease is not None
    return lease


def ring_of(n_envs: list[int], slabs_per_shard: int = 1, limit: int = 100) -> Ring:
    ring = Ring([small_schema(n_envs=n) for n in n_envs], slabs_per_shard)
    ring.grant(limit)
    return ring


def test_a_leased_slab_is_poisoned_and_says_for_whom_it_is() -> None:
    ring = ring_of([2, 2])
    for sequence in range(2):
        lease = granted(ring, 1)
        slab = ring.slab(lease)
        assert np.isnan(slab.reward).all()
        assert (slab.word(Word.SHARD), slab.word(Word.SEQUENCE)) == (1, sequence)
        assert slab.word(Word.FENCE) == lease.fence
        slab.reward.fill(0.0)
        slab.commit(lease.fence, 0)
        assert [one.lease for one in ring.take()] == [lease]
        ring.release(lease)


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
            ring.revoke(shard)


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
    with pytest.raises(RingError, match="owned by writer"):
        ring.release(lease)
    ring.slab(lease).commit(lease.fence, 0)
    ring.take()
    ring.release(lease)
    with pytest.raises(RingError, match="owned by nobody"):
        ring.release(lease)


def test_a_shard_fills_one_slab_at_a_time() -> None:
    ring = ring_of([1], slabs_per_shard=2)
    granted(ring, 0)
    with pytest.raises(RingError, match="already fills rollout 0"):
        ring.lease(0)


def test_a_resumed_ring_counts_on() -> None:
    ring = ring_of([1, 1], limit=0)
    ring.resume([5, 4], leased=9)
    ring.grant(10)
    lease = granted(ring, 1)
    assert lease.sequence == 4
    assert ring.lease(0) is None, "the pace counts the leases of the run before"
    assert (ring.sequences, ring.leased) == ([5, 4], 10)
