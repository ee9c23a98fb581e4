"""Which requests form a batch: who is first, who fits, who is waited for, and for how long. Without a clock."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.inference.batching import Batching, BatchLimits
from support.generators import quick

V = 7  # the version that everybody wants, unless it matters


def batching(*rows: int, max_rows: int = 0, max_wait_s: float = 1.0) -> Batching:
    return Batching(rows, BatchLimits(max_rows, max_wait_s))


def test_nobody_asks() -> None:
    one = batching(2, 2)
    assert (one.due(0.0), one.wait_s) == ((), None)


def test_a_batch_waits_for_those_that_are_expected_and_not_for_others() -> None:
    one = batching(2, 2, 2)
    one.asked(0, V, 0.0)
    assert one.due(0.0) == (0,), "no other has ever asked"
    one.asked(1, V, 1.0)
    assert (one.due(1.25), one.wait_s) == ((), 0.75), "shard 0 is expected, shard 2 is not"
    one.asked(0, V, 1.5)
    assert (one.due(1.5), one.wait_s) == ((1, 0), None), "everybody is there"


def test_a_request_that_is_a_batch_by_itself() -> None:
    """As if it had been asked and served: what is expected afterwards is the same."""
    one = batching(2, 2)
    assert one.is_alone(0)
    one.served_alone(0, False, 0.0)
    assert one.lone == 0
    assert one.is_alone(0), "it expected nobody but itself"
    assert not one.is_alone(1), "shard 0 is expected"
    one.asked(1, V, 0.0)
    assert one.lone is None
    assert (one.due(0.25), one.wait_s) == ((), 0.75)
    assert not one.is_alone(0), "shard 1 waits"
    one.asked(0, V, 0.5, is_last=True)
    assert one.due(0.5) == (1, 0)
    assert one.is_alone(1), "shard 0 was at the end of its rollout"
    one.served_alone(1, True, 0.5)
    assert one.lone is None
    assert one.is_alone(0), "and so was shard 1"


def test_stragglers_are_left_out_and_not_waited_for_again() -> None:
    one = batching(1, 1)
    one.asked(0, V, 0.0)
    one.asked(1, V, 0.0)
    assert one.due(0.0) == (0, 1)
    one.asked(0, V, 1.0)
    assert (one.due(1.0), one.wait_s) == ((), 1.0)
    assert one.due(2.0) == (0,), "it has waited long enough"
    one.asked(0, V, 3.0)
    assert one.due(3.0) == (0,), "nobody waits for a straggler"
    one.asked(1, V, 4.0)
    assert one.due(4.0) == (), "until it has asked again: now shard 0 is waited for"
    one.asked(0, V, 4.5)
    assert one.due(4.5) == (1, 0)


def test_a_batch_waits_for_shards_of_the_same_turn_only() -> None:
    """Two workers take turns with shards 0 and 2, 1 and 3: while they step 2 and 3, a batch of 0 and 1 is complete."""
    one = Batching([1] * 4, BatchLimits(max_wait_s=1.0), turns=[0, 0, 1, 1])
    for slot in range(4):
        one.asked(slot, V, 0.0)
    assert one.due(0.0) == (0, 1, 2, 3)
    one.asked(0, V, 1.0)
    assert one.due(1.0) == (), "shard 1 is expected"
    one.asked(1, V, 1.5)
    assert one.due(1.5) == (0, 1), "2 and 3 are not"
    one.asked(2, V, 2.0)
    one.asked(0, V, 2.1)
    assert one.due(2.1) == (), "shard 3 is expected now, whoever else asks"
    one.asked(3, V, 2.2)
    assert one.due(2.2) == (2, 0, 3)


def test_a_shard_that_can_not_be_back_in_time_is_not_waited_for() -> None:
    """Its environments took 5 s lately, and it was answered 1 s ago; it is expected again when its time comes."""
    one = batching(1, 1)
    for slot in (0, 1):
        one.asked(slot, V, 0.0)
    assert one.due(0.0) == (0, 1)
    one.answered(0, 0.0)
    one.answered(1, 0.0)
    one.asked(0, V, 5.0)
    one.asked(1, V, 5.0)
    assert one.due(5.0) == (0, 1)
    one.answered(0, 5.0)
    one.answered(1, 6.0)
    one.asked(0, V, 7.0)
    assert one.due(7.0) == (0,), "shard 1 comes at 11"
    one.answered(0, 9.5)
    one.asked(0, V, 10.5)
    assert (one.due(10.5), one.wait_s) == ((), 1.0), "by now it may come any moment"
    one.asked(1, V, 11.0)
    assert one.due(11.0) == (0, 1)


def test_a_shard_at_the_end_of_its_rollout_is_not_expected() -> None:
    one = batching(1, 1)
    one.asked(0, V, 0.0)
    one.asked(1, V, 0.0, is_last=True)
    assert one.due(0.0) == (0, 1)
    one.asked(0, V, 0.1)
    assert one.due(0.1) == (0,)
    one.asked(1, V, 0.2)
    assert one.due(0.2) == (), "its next rollout has begun: both are expected again"


def test_an_update_between_two_rollouts_says_nothing_of_how_long_environments_take() -> None:
    """20 s from the last answer of a rollout to the first question of the next one, 0.5 s between all others."""
    one = batching(1, 1)
    for asked_s, is_last in ((0.0, False), (0.5, True), (20.5, False)):
        for slot in (0, 1):
            one.asked(slot, V, asked_s, is_last)
        assert one.due(asked_s) == (0, 1)
        for slot in (0, 1):
            one.answered(slot, asked_s)
    one.asked(0, V, 21.0)
    assert (one.due(21.0), one.wait_s) == ((), 1.0), "shard 1 will be there in a moment"


def test_a_full_batch_does_not_wait_and_what_does_not_fit_comes_next() -> None:
    one = batching(3, 3, 3, max_rows=6)
    for slot in (2, 0, 1):
        one.asked(slot, V, 0.0)
    assert one.due(0.0) == (2, 0)
    one.asked(2, V, 0.1)
    assert one.due(0.1) == (1, 2), "the one that waited longest is first"


def test_a_shard_larger_than_the_largest_batch_is_served_alone() -> None:
    one = batching(9, 1, max_rows=4)
    one.asked(0, V, 0.0)
    one.asked(1, V, 0.0)
    assert [one.due(0.0), one.due(0.0)] == [(0,), (1,)]


def test_a_batch_has_one_version() -> None:
    one = batching(1, 1, 1)
    for slot, wanted in enumerate((4, 5, 4)):
        one.asked(slot, wanted, 0.0)
    assert [one.due(0.0), one.due(0.0), one.due(0.0)] == [(0, 2), (1,), ()]
    one.asked(1, 5, 0.1)
    assert one.due(0.1) == (), "the others are expected all the same"


def test_a_request_that_takes_the_place_of_another_keeps_its_turn() -> None:
    """A worker died while it waited: its successor asks in the same slot."""
    one = batching(1, 1, max_rows=1)
    one.asked(0, V, 0.0)
    one.asked(1, V, 0.5)
    one.asked(0, V + 1, 0.6)
    assert [one.due(0.6), one.due(0.6)] == [(0,), (1,)]


@quick
@given(
    rows=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    max_rows=st.integers(0, 12),
    max_wait_s=st.sampled_from((0.0, 0.5, 2.0)),
    asks=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1), st.floats(0.0, 1.0)), max_size=40),
)
def test_everybody_is_served_once_in_time_and_within_limits(
    rows: list[int], max_rows: int, max_wait_s: float, asks: list[tuple[int, int, float]]
) -> None:
    one, now_s = Batching(rows, BatchLimits(max_rows, max_wait_s)), 0.0
    waiting: dict[int, tuple[int, float]] = {}

    def serve() -> bool:
        batch = one.due(now_s)
        assert len(set(batch)) == len(batch)
        assert len({waiting[slot][0] for slot in batch}) <= 1
        assert sum(rows[slot] for slot in batch) <= (max_rows or math.inf) or len(batch) == 1
        for slot in batch:
            del waiting[slot]
        return bool(batch)

    for slot, wanted, passed_s in asks:
        if slot < len(rows) and slot not in waiting:
            one.asked(slot, wanted, now_s)
            waiting[slot] = (wanted, now_s)
        while serve():
            pass
        if waiting:
            assert one.wait_s is not None
            assert 0 < one.wait_s <= max_wait_s + 1e-9
        now_s += passed_s
    now_s += max_wait_s + 1.0
    while serve():
        pass
    assert not waiting, "nobody is forgotten"


@quick
@given(
    turns=st.lists(st.integers(0, 1), min_size=1, max_size=5),
    max_rows=st.integers(0, 6),
    asks=st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.sampled_from((0.0, 0.25, 2.0))), max_size=40),
)
@example(turns=[0, 0], max_rows=0, asks=[(0, False, 0.0), (1, False, 0.0), (0, False, 0.0), (1, False, 0.0)])
def test_the_shortcut_for_a_lone_request_makes_the_same_batches(
    turns: list[int], max_rows: int, asks: list[tuple[int, bool, float]]
) -> None:
    """Beside a server that takes none. How long environments take is left out: a shortcut does not measure it."""
    (long, short), now_s = (Batching([2] * len(turns), BatchLimits(max_rows, 1.0), turns) for _ in range(2)), 0.0
    waiting: set[int] = set()
    for slot, is_last, passed_s in asks:
        batches: list[list[tuple[int, ...]]] = [[], []]
        if slot < len(turns) and slot not in waiting:
            waiting.add(slot)
            long.asked(slot, V, now_s, is_last)
            if slot == short.lone or short.is_alone(slot):
                assert short.is_alone(slot)
                short.served_alone(slot, is_last, now_s)
                short._answered_s.clear()
                batches[1].append((slot,))
            else:
                short.asked(slot, V, now_s, is_last)
        for one, found in zip((long, short), batches, strict=True):
            while batch := one.due(now_s):
                found.append(batch)
        assert batches[0] == batches[1]
        assert long.wait_s == short.wait_s
        waiting -= {slot for batch in batches[0] for slot in batch}
        now_s += passed_s
