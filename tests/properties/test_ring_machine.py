"""Any order of lease, fill, commit, death of a writer, late commits, take and release: the ring keeps its promises.

Every rollout number of every shard is taken exactly once and in order · no slab has two owners · a fence that was
revoked never counts · leases stay within the granted pace, and are refused only for lack of pace or slabs.
The same machine, driven by hand, goes red under mutations of RingState.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.errors import RingError
from headrace.memory.ring import Ring
from headrace.memory.ring_state import Lease, Owner, RingState, _Slot
from headrace.memory.slab import Word
from support.slabs import small_schema

picks = st.integers(0, 1000)  # an index into whatever there is to choose from


class RingMachine(RuleBasedStateMachine):
    """A ring and the plainest possible memory of what was done to it."""

    @initialize(shards=st.integers(1, 3), slabs_per_shard=st.integers(1, 2))
    def start(self, shards: int, slabs_per_shard: int) -> None:
        # Shards of different sizes, as when n_envs does not divide.
        self.ring = Ring([small_schema(n_steps=2, n_envs=1 + shard % 2) for shard in range(shards)], slabs_per_shard)
        self.num_slots = shards * slabs_per_shard
        self.limit = 0
        self.writing: dict[int, Lease] = {}  # shard -> the lease of its living writer
        self.reading: list[Lease] = []
        self.revoked: list[Lease] = []
        self.commit_word = [0] * self.num_slots  # what was last written into each slot's commit word
        self.taken: dict[int, list[int]] = {shard: [] for shard in range(shards)}
        self.last_fence = 0

    # ------------------------------------------------------------------------------------------------- the owner's side

    @rule(more=st.integers(-2, 4))
    def grant(self, more: int) -> None:
        """More pace; a smaller number takes nothing back."""
        self.ring.grant(self.limit + more)
        self.limit = max(self.limit, self.limit + more)

    @rule(pick=picks)
    def lease(self, pick: int) -> None:
        shard = pick % len(self.taken)
        if shard in self.writing:
            with pytest.raises(RingError):
                self.ring.lease(shard)
            return
        lease = self.ring.lease(shard)
        may_have_one = self.leases_out() < self.limit and len(self.writing) + len(self.reading) < self.num_slots
        assert (lease is not None) == may_have_one
        if lease is None:
            return
        assert lease.fence > self.last_fence, "a fence is used once"
        assert (lease.shard, lease.sequence) == (shard, len(self.taken[shard]))
        assert np.isnan(self.ring.slab(lease).reward).all(), "a fresh lease is poisoned"
        self.last_fence = lease.fence
        self.writing[shard] = lease

    @rule()
    def take(self) -> None:
        due = [lease for lease in self.writing.values() if self.commit_word[lease.slot] == lease.fence]
        taken = self.ring.take()
        assert [one.lease for one in taken] == sorted(due, key=lambda lease: lease.shard)
        for one in taken:
            assert one.slab.word(Word.SEQUENCE) == one.lease.sequence
            assert (one.slab.reward == one.lease.fence).all(), "what is read is what this lease's holder wrote"
            self.taken[one.lease.shard].append(one.lease.sequence)
            self.reading.append(self.writing.pop(one.lease.shard))

    @precondition(lambda self: self.reading)
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        lease = self.reading.pop(pick % len(self.reading))
        self.ring.release(lease)
        with pytest.raises(RingError):
            self.ring.release(lease)

    @precondition(lambda self: self.writing)
    @rule(pick=picks)
    def revoke(self, pick: int) -> None:
        """The writer died and was reaped; whatever it committed but nobody took is lost and run again."""
        lease = self.writing.pop(sorted(self.writing)[pick % len(self.writing)])
        self.ring.revoke(lease.shard)
        self.revoked.append(lease)

    # ------------------------------------------------------------------------------------------------ the writers' side

    @precondition(lambda self: self.writing)
    @rule(pick=picks)
    def fill_and_commit(self, pick: int) -> None:
        lease = self.writing[sorted(self.writing)[pick % len(self.writing)]]
        self.ring.slab(lease).reward.fill(lease.fence)
        self.write_commit_word(lease)

    @precondition(lambda self: self.revoked)
    @rule(pick=picks)
    def commit_with_a_stale_fence(self, pick: int) -> None:
        self.write_commit_word(self.revoked[pick % len(self.revoked)])

    def write_commit_word(self, lease: Lease) -> None:
        self.ring.slab(lease).commit(lease.fence, committed_ns=0)
        self.commit_word[lease.slot] = lease.fence

    # ------------------------------------------------------------------------------------------------------- invariants

    def leases_out(self) -> int:
        return len(self.writing) + sum(map(len, self.taken.values()))

    @invariant()
    def every_rollout_is_taken_once_and_in_order(self) -> None:
        for sequences in self.taken.values():
            assert sequences == list(range(len(sequences)))
        assert self.ring.sequences == [len(sequences) for sequences in self.taken.values()]

    @invariant()
    def no_slab_has_two_owners(self) -> None:
        owners = [Owner.NOBODY] * self.num_slots
        for owner, leases in ((Owner.WRITER, self.writing.values()), (Owner.READER, self.reading)):
            for lease in leases:
                assert owners[lease.slot] is Owner.NOBODY, f"slot {lease.slot} is owned twice"
                owners[lease.slot] = owner
        assert [self.ring._state.owner(slot) for slot in range(self.num_slots)] == owners

    @invariant()
    def leases_stay_within_the_pace(self) -> None:
        assert self.ring.leased == self.leases_out()
        assert self.ring.leased <= self.limit


TestRing = RingMachine.TestCase
TestRing.settings = settings(deadline=None, max_examples=120, stateful_step_count=40)


# ---------------------------------------------------------------------------------------------------------- it can fail


def by_hand() -> None:
    """One life of a ring, in which a writer dies, its late commit arrives, and the pace runs out. No randomness."""
    machine = RingMachine()
    machine.start(shards=2, slabs_per_shard=1)

    def do(step: Callable[..., None], *arguments: int) -> None:
        step(*arguments)
        machine.every_rollout_is_taken_once_and_in_order()
        machine.no_slab_has_two_owners()
        machine.leases_stay_within_the_pace()

    do(machine.grant, 3)
    do(machine.grant, -2)
    do(machine.lease, 0)
    do(machine.revoke, 0)
    do(machine.lease, 0)
    do(machine.commit_with_a_stale_fence, 0)
    do(machine.take)
    do(machine.lease, 1)
    do(machine.fill_and_commit, 1)
    do(machine.take)
    do(machine.fill_and_commit, 0)
    do(machine.take)
    do(machine.lease, 0)
    do(machine.release, 0)
    do(machine.release, 0)
    do(machine.lease, 0)
    do(machine.lease, 1)
    do(machine.fill_and_commit, 0)
    do(machine.take)
    machine.teardown()


def ignores_the_fence(state: RingState, slot: int, commit_word: int) -> Lease | None:
    lease = state._slots[slot].lease
    return None if lease is None or commit_word == 0 else RING_STATE_COMMIT(state, slot, lease.fence)


def skips_the_lost_rollout(state: RingState, shard: int) -> Lease | None:
    lease = RING_STATE_REVOKE(state, shard)
    state._next_sequence[shard] += 1
    return lease


def keeps_counting_the_revoked_lease(state: RingState, shard: int) -> Lease | None:
    state._leased += 1
    return RING_STATE_REVOKE(state, shard)


def frees_what_the_reader_still_reads(state: RingState, slot: int, commit_word: int) -> Lease | None:
    lease = RING_STATE_COMMIT(state, slot, commit_word)
    if lease is not None:
        state._slots[slot] = _Slot()
    return lease


def forgets_the_pace(state: RingState, limit: int) -> None:
    state._limit = 10**9


def takes_pace_back(state: RingState, limit: int) -> None:
    state._limit = limit


RING_STATE_COMMIT, RING_STATE_REVOKE = RingState.commit, RingState.revoke

MUTATIONS = [
    ("commit", ignores_the_fence),
    ("commit", frees_what_the_reader_still_reads),
    ("revoke", skips_the_lost_rollout),
    ("revoke", keeps_counting_the_revoked_lease),
    ("grant", forgets_the_pace),
    ("grant", takes_pace_back),
]


def test_the_ring_passes_when_driven_by_hand() -> None:
    by_hand()


@pytest.mark.parametrize(("method", "mutant"), MUTATIONS, ids=lambda part: getattr(part, "__name__", ""))
def test_a_mutated_ring_is_caught(method: str, mutant: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RingState, method, mutant)
    with pytest.raises((AssertionError, RingError)):
        by_hand()
