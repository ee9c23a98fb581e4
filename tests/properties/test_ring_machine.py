"""Any order of lease, fill, commit, death of a writer, late commits, take, release, reject: the ring keeps its word.

Every rollout number of every shard is taken exactly once and in order, from where a checkpoint stopped · no slab has
two owners · a fence that was revoked never counts · leases stay within the granted pace, in an even ring every shard's
within its share, and are refused only for lack of pace or slabs · what was rejected or revoked does not count.
The same machine, driven by hand, goes red under mutations of RingState.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.errors import RingError
from headrace.memory.layout import Word
from headrace.memory.lease import Lease
from headrace.memory.ring import Ring, RingState
from support.slabs import small_schema

picks = st.integers(0, 1000)  # an index into whatever there is to choose from
WordOf = Callable[[int], int | None]


class RingMachine(RuleBasedStateMachine):
    """A ring and the plainest possible memory of what was done to it."""

    @initialize(
        shards=st.integers(1, 3),
        slabs_per_shard=st.integers(1, 3),
        is_even=st.booleans(),
        batches=st.sampled_from([0, 0, 1, 4]),
        lost=st.lists(st.integers(0, 3), min_size=3, max_size=3),
    )
    def start(self, shards: int, slabs_per_shard: int, is_even: bool, batches: int, lost: list[int]) -> None:
        # Shards of different sizes, as when n_envs does not divide.
        schemas = [small_schema(n_steps=2, n_envs=1 + shard % 2) for shard in range(shards)]
        self.ring = Ring(schemas, slabs_per_shard, is_even=is_even)
        self.num_slots = shards * slabs_per_shard
        self.is_even = is_even
        self.batches = batches  # that an earlier process learned from
        # Numbers used up before, those that were rejected or thrown away among them.
        self.first = [batches + lost[shard] for shard in range(shards)] if batches else [0] * shards
        if batches:
            self.ring.state.resume(self.first, batches)
        self.limit = batches * shards
        self.ring.state.grant(self.limit)
        self.writing: dict[int, list[Lease]] = {shard: [] for shard in range(shards)}  # in the order they are filled
        self.reading: list[Lease] = []
        self.revoked: list[Lease] = []
        self.commit_word = [0] * self.num_slots  # what was last written into each slot's commit word
        self.taken: dict[int, list[int]] = {shard: [] for shard in range(shards)}
        self.rejected = [0] * shards
        self.last_fence = 0

    # ------------------------------------------------------------------------------------------------- the owner's side

    @rule(more=st.integers(-2, 6))
    def grant(self, more: int) -> None:
        """More pace; a smaller number takes nothing back."""
        self.ring.state.grant(self.limit + more)
        self.limit = max(self.limit, self.limit + more)

    @rule(pick=picks)
    def lease(self, pick: int) -> None:
        shard = pick % len(self.taken)
        lease = self.ring.lease(shard)
        has_pace = self.leases_out() < self.limit
        has_share = not self.is_even or self.counted(shard) * len(self.taken) < self.limit
        has_slab = len(self.open_leases()) + len(self.reading) < self.num_slots
        assert (lease is not None) == (has_pace and has_share and has_slab)
        if lease is None:
            return
        assert lease.fence > self.last_fence, "a fence is used once"
        sequence = self.first[shard] + len(self.taken[shard]) + len(self.writing[shard])
        assert (lease.shard, lease.sequence) == (shard, sequence)
        assert np.isnan(self.ring.slab(lease).reward).all(), "a fresh lease is poisoned"
        self.last_fence = lease.fence
        self.writing[shard].append(lease)

    @rule()
    def take(self) -> None:
        """Of every shard as many as were committed one after the other; nothing behind a rollout that is missing."""
        due = []
        for leases in self.writing.values():
            while leases and self.commit_word[leases[0].slot] == leases[0].fence:
                due.append(leases.pop(0))
        taken = self.ring.take()
        assert [one.lease for one in taken] == due
        for one in taken:
            assert one.slab.header[Word.SEQUENCE] == one.lease.sequence
            assert (one.slab.reward == one.lease.fence).all(), "what is read is what this lease's holder wrote"
            self.taken[one.lease.shard].append(one.lease.sequence)
            self.reading.append(one.lease)

    @precondition(lambda self: self.reading)
    @rule(pick=picks, is_used=st.sampled_from([True, True, False]))
    def give_back(self, pick: int, is_used: bool) -> None:
        lease = self.reading.pop(pick % len(self.reading))
        (self.ring.state.release if is_used else self.ring.state.reject)(lease)
        self.rejected[lease.shard] += not is_used
        for again in (self.ring.state.release, self.ring.state.reject):
            with pytest.raises(RingError):
                again(lease)

    @precondition(lambda self: self.open_leases())
    @rule(pick=picks)
    def can_not_give_back_what_a_writer_holds(self, pick: int) -> None:
        lease = self.open_leases()[pick % len(self.open_leases())]
        for give_back in (self.ring.state.release, self.ring.state.reject):
            with pytest.raises(RingError):
                give_back(lease)

    @rule(pick=picks)
    def revoke(self, pick: int) -> None:
        """The writer died and was reaped; whatever it committed but nobody took is lost and run again."""
        shard = pick % len(self.taken)
        self.ring.state.revoke(shard)
        self.revoked += self.writing[shard]
        self.writing[shard] = []

    # ------------------------------------------------------------------------------------------------ the writers' side

    @precondition(lambda self: self.open_leases())
    @rule(pick=picks)
    def fill_and_commit(self, pick: int) -> None:
        """Any open lease: the reader may see a shard's later commit word before an earlier one."""
        lease = self.open_leases()[pick % len(self.open_leases())]
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

    def open_leases(self) -> list[Lease]:
        return list(chain.from_iterable(self.writing.values()))

    def counted(self, shard: int) -> int:
        """A shard's leases that count against the pace."""
        return self.batches + len(self.taken[shard]) + len(self.writing[shard]) - self.rejected[shard]

    def leases_out(self) -> int:
        return sum(self.counted(shard) for shard in self.taken)

    @invariant()
    def every_rollout_is_taken_once_and_in_order(self) -> None:
        for first, sequences in zip(self.first, self.taken.values(), strict=True):
            assert sequences == list(range(first, first + len(sequences)))
        assert self.ring.state.sequences == [self.first[shard] + len(taken) for shard, taken in self.taken.items()]

    @invariant()
    def no_slab_has_two_owners(self) -> None:
        held: list[Lease | None] = [None] * self.num_slots
        for lease in (*self.open_leases(), *self.reading):
            assert held[lease.slot] is None, f"slot {lease.slot} is owned twice"
            held[lease.slot] = lease
        assert self.ring.state.held == held
        assert self.ring.state.open == [*self.writing.values()], "all others are the reader's"

    @invariant()
    def leases_stay_within_the_pace(self) -> None:
        assert self.ring.state.leased == self.leases_out()
        assert self.ring.state.leased <= self.limit
        if self.is_even:
            assert all((self.counted(shard) - 1) * len(self.taken) < self.limit for shard in self.taken)


TestRing = RingMachine.TestCase
TestRing.settings = settings(deadline=None, max_examples=120, stateful_step_count=50)


# ---------------------------------------------------------------------------------------------------------- it can fail


def by_hand() -> None:
    """Three lives of a ring, with no randomness."""
    a_writer_dies_and_its_late_commit_arrives()
    several_leases_a_shard()
    an_uneven_ring_goes_on_from_a_checkpoint()


def machine_and_doer(
    shards: int, slabs_per_shard: int, is_even: bool, batches: int = 0, lost: tuple[int, ...] = (0, 0)
) -> tuple[RingMachine, Callable[..., None]]:
    machine = RingMachine()
    machine.start(shards, slabs_per_shard, is_even, batches, list(lost))

    def do(step: Callable[..., None], *arguments: object) -> None:
        step(*arguments)
        machine.every_rollout_is_taken_once_and_in_order()
        machine.no_slab_has_two_owners()
        machine.leases_stay_within_the_pace()

    return machine, do


def a_writer_dies_and_its_late_commit_arrives() -> None:
    """And the pace runs out."""
    machine, do = machine_and_doer(shards=2, slabs_per_shard=1, is_even=True)
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
    do(machine.give_back, 0, True)
    do(machine.give_back, 0, True)
    do(machine.lease, 0)
    do(machine.lease, 1)
    do(machine.fill_and_commit, 0)
    do(machine.take)
    machine.teardown()


def several_leases_a_shard() -> None:
    """The second is seen first; one is rejected and another asked for; a writer dies with two in hand."""
    machine, do = machine_and_doer(shards=2, slabs_per_shard=2, is_even=True)
    do(machine.grant, 4)
    do(machine.lease, 0)
    do(machine.lease, 0)
    do(machine.lease, 0)  # shard 1's share
    do(machine.lease, 1)
    do(machine.fill_and_commit, 1)
    do(machine.take)  # nothing: the first is missing
    do(machine.fill_and_commit, 0)
    do(machine.take)
    do(machine.can_not_give_back_what_a_writer_holds, 0)
    do(machine.give_back, 1, False)
    do(machine.lease, 0)  # in place of the rejected one
    do(machine.lease, 0)  # no further
    do(machine.give_back, 0, True)
    do(machine.lease, 1)
    do(machine.revoke, 1)
    do(machine.lease, 1)
    do(machine.lease, 1)
    for _ in range(3):
        do(machine.fill_and_commit, 0)
        do(machine.take)
    machine.teardown()


def an_uneven_ring_goes_on_from_a_checkpoint() -> None:
    """And after it an even one, whose shards had lost different numbers."""
    machine, do = machine_and_doer(shards=2, slabs_per_shard=2, is_even=False, batches=4, lost=(1, 0))
    do(machine.lease, 0)  # no pace yet
    do(machine.grant, 3)
    for _ in range(4):
        do(machine.lease, 1)
    for _ in range(3):
        do(machine.fill_and_commit, 0)
        do(machine.take)
    do(machine.lease, 0)
    machine.teardown()
    machine, do = machine_and_doer(shards=2, slabs_per_shard=2, is_even=True, batches=2, lost=(0, 3))
    do(machine.grant, 4)
    for shard in (0, 1, 0, 1, 0, 1):
        do(machine.lease, shard)
    machine.teardown()


def ignores_the_fence(state: RingState, word_of: WordOf) -> list[Lease]:
    fences = {lease.slot: lease.fence for lease in state.held if lease is not None and word_of(lease.slot)}
    return RING_STATE_COMMIT(state, fences.get)


def believes_a_later_rollout_first(state: RingState, word_of: WordOf) -> list[Lease]:
    for leases in state.open:
        leases.sort(key=lambda lease: word_of(lease.slot) != lease.fence)
    return RING_STATE_COMMIT(state, word_of)


def frees_what_the_reader_still_reads(state: RingState, word_of: WordOf) -> list[Lease]:
    leases = RING_STATE_COMMIT(state, word_of)
    for lease in leases:
        state.held[lease.slot] = None
    return leases


def takes_one_a_shard(state: RingState, word_of: WordOf) -> list[Lease]:
    later = [leases[1:] for leases in state.open]
    state.open = [leases[:1] for leases in state.open]
    taken = RING_STATE_COMMIT(state, word_of)
    state.open = [leases + more for leases, more in zip(state.open, later, strict=True)]
    return taken


def skips_the_lost_rollout(state: RingState, shard: int) -> list[Lease]:
    leases = RING_STATE_REVOKE(state, shard)
    state.sequences[shard] += len(leases)
    return leases


def keeps_counting_the_revoked_leases(state: RingState, shard: int) -> list[Lease]:
    leases = RING_STATE_REVOKE(state, shard)
    state._base[shard] -= len(leases)
    return leases


def frees_only_the_first_lease(state: RingState, shard: int) -> list[Lease]:
    later, state.open[shard] = state.open[shard][1:], state.open[shard][:1]
    leases = RING_STATE_REVOKE(state, shard)
    state.open[shard] = later
    return leases


def forgets_the_pace(state: RingState, limit: int) -> None:
    state._limit = 10**9


def takes_pace_back(state: RingState, limit: int) -> None:
    state._limit = limit


def takes_anothers_share(state: RingState, shard: int) -> Lease | None:
    state._is_even = False
    return RING_STATE_LEASE(state, shard)


def keeps_to_a_share_when_uneven(state: RingState, shard: int) -> Lease | None:
    state._is_even = True
    return RING_STATE_LEASE(state, shard)


def one_lease_at_a_time(state: RingState, shard: int) -> Lease | None:
    return None if state.open[shard] else RING_STATE_LEASE(state, shard)


def keeps_counting_the_rejected_lease(state: RingState, lease: Lease) -> None:
    RING_STATE_REJECT(state, lease)
    state._base[lease.shard] -= 1


def asks_for_the_rejected_rollout_again(state: RingState, lease: Lease) -> None:
    RING_STATE_REJECT(state, lease)
    state.sequences[lease.shard] -= 1


def starts_counting_anew(state: RingState, sequences: list[int], batches: int) -> None:
    RING_STATE_RESUME(state, [0] * len(sequences), 0)


def counts_numbers_for_batches(state: RingState, sequences: list[int], batches: int) -> None:
    RING_STATE_RESUME(state, sequences, batches)
    state._base = [0] * len(sequences)


def forgets_the_batches(state: RingState, sequences: list[int], batches: int) -> None:
    RING_STATE_RESUME(state, sequences, 0)


RING_STATE_LEASE, RING_STATE_COMMIT, RING_STATE_REVOKE = RingState.lease, RingState.commit, RingState.revoke
RING_STATE_REJECT, RING_STATE_RESUME = RingState.reject, RingState.resume

MUTATIONS = [
    ("commit", ignores_the_fence),
    ("commit", believes_a_later_rollout_first),
    ("commit", frees_what_the_reader_still_reads),
    ("commit", takes_one_a_shard),
    ("revoke", skips_the_lost_rollout),
    ("revoke", keeps_counting_the_revoked_leases),
    ("revoke", frees_only_the_first_lease),
    ("grant", forgets_the_pace),
    ("grant", takes_pace_back),
    ("lease", takes_anothers_share),
    ("lease", keeps_to_a_share_when_uneven),
    ("lease", one_lease_at_a_time),
    ("reject", keeps_counting_the_rejected_lease),
    ("reject", asks_for_the_rejected_rollout_again),
    ("resume", starts_counting_anew),
    ("resume", counts_numbers_for_batches),
    ("resume", forgets_the_batches),
]


def test_the_ring_passes_when_driven_by_hand() -> None:
    by_hand()


@pytest.mark.parametrize(("method", "mutant"), MUTATIONS, ids=lambda part: getattr(part, "__name__", ""))
def test_a_mutated_ring_is_caught(method: str, mutant: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RingState, method, mutant)
    with pytest.raises((AssertionError, RingError)):
        by_hand()
