"""The ledger: produced = consumed + rejected + discarded, and no rollout missing or read twice."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import LedgerError
from headrace.memory.ledger import Ledger
from support.generators import quick

fates = st.sampled_from(["consume", "reject", "discard"])


def settle(ledger: Ledger, fate: str, steps: int) -> None:
    if fate == "discard":
        ledger.discard(steps, "interrupted")
    else:
        getattr(ledger, fate)(steps)


@quick
@given(st.lists(st.tuples(st.integers(0, 500), fates), max_size=20), st.integers(0, 19), st.sampled_from([-1, 1]))
def test_it_balances_iff_every_step_is_accounted_for(events: list[tuple[int, str]], spoilt: int, by: int) -> None:
    ledger = Ledger(num_shards=1)
    for sequence, (steps, fate) in enumerate(events):
        ledger.enter(0, sequence, steps)
        settle(ledger, fate, steps)
    ledger.check()
    settle(ledger, events[spoilt % len(events)][1] if events else "consume", by)
    with pytest.raises(LedgerError, match="does not balance"):
        ledger.check()


def test_a_produced_step_must_go_somewhere() -> None:
    ledger = Ledger(1)
    ledger.enter(0, 0, 32)
    with pytest.raises(LedgerError, match="produced 32, accounted for 0"):
        ledger.check()


@pytest.mark.parametrize(("sequence", "what"), [(2, "dropped"), (0, "read twice")])
def test_a_gap_is_a_dropped_batch_and_a_repeat_one_read_twice(sequence: int, what: str) -> None:
    ledger = Ledger(2)
    ledger.enter(1, 0, 8)
    with pytest.raises(LedgerError, match=rf"shard 1: expected rollout 1, got {sequence}.*{what}"):
        ledger.enter(1, sequence, 8)
    assert ledger.produced == 8, "a refused rollout does not count"


def test_shards_count_on_their_own() -> None:
    ledger = Ledger(3)
    for shard, sequence in [(2, 0), (0, 0), (2, 1), (1, 0), (0, 1)]:
        ledger.enter(shard, sequence, 1)
    assert ledger.encode()["sequences"] == [2, 1, 2]


def test_it_goes_on_from_json() -> None:
    ledger = Ledger(2)
    ledger.enter(0, 0, 10)
    ledger.enter(1, 0, 7)
    ledger.consume(12)
    ledger.reject(2)
    ledger.discard(3, "class C")
    again = Ledger(2)
    again.restore(json.loads(json.dumps(ledger.encode())))
    assert again.encode() == ledger.encode()
    again.check()
    again.enter(0, 1, 5)
    with pytest.raises(LedgerError, match="read twice"):
        again.enter(1, 0, 5)
    assert ledger.encode()["sequences"] == [1, 1], "the two do not share their lists"


@pytest.mark.parametrize("num_shards", [1, 3, 5])
def test_another_number_of_shards_goes_on_from_the_highest_number(num_shards: int) -> None:
    """Shards are dealt anew, so no number may come back: all go on from the highest that was reached."""
    ledger = Ledger(2)
    for shard, sequence in [(0, 0), (1, 0), (1, 1), (1, 2)]:
        ledger.enter(shard, sequence, 4)
    ledger.consume(16)
    again = Ledger(num_shards)
    again.restore(json.loads(json.dumps(ledger.encode())))
    again.check()
    assert again.sequences == [3] * num_shards
    for shard in range(num_shards):
        again.enter(shard, 3, 1)


def test_the_sequences_are_the_next_ones_and_saved_as_a_copy() -> None:
    ledger = Ledger(2)
    ledger.enter(1, 0, 4)
    saved = ledger.encode()["sequences"]
    assert saved == [0, 1]
    saved[0] = 9
    assert ledger.sequences == [0, 1]
