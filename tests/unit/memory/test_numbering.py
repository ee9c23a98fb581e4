"""Numbers of rollouts: none is missing, none is read twice."""

from __future__ import annotations

import pytest

from headrace.errors import LedgerError
from headrace.memory.numbering import Numbering


@pytest.mark.parametrize(("sequence", "what"), [(2, "dropped"), (0, "read twice")])
def test_a_gap_is_a_dropped_batch_and_a_repeat_one_read_twice(sequence: int, what: str) -> None:
    numbering = Numbering(2)
    numbering.enter(1, 0)
    with pytest.raises(LedgerError, match=rf"shard 1: expected rollout 1, got {sequence}.*{what}"):
        numbering.enter(1, sequence)
    assert numbering.next == [0, 1], "a refused rollout does not count"


def test_shards_count_on_their_own() -> None:
    numbering = Numbering(3)
    for shard, sequence in [(2, 0), (0, 0), (2, 1), (1, 0), (0, 1)]:
        numbering.enter(shard, sequence)
    assert numbering.next == [2, 1, 2]


def test_it_goes_on_from_what_was_saved() -> None:
    saved, again = [1, 3], Numbering(2)
    again.restore(saved)
    again.enter(0, 1)
    with pytest.raises(LedgerError, match="read twice"):
        again.enter(1, 2)
    assert saved == [1, 3], "what was saved is not written to"


@pytest.mark.parametrize("num_shards", [1, 3, 5])
def test_another_number_of_shards_goes_on_from_the_highest_number(num_shards: int) -> None:
    """Shards are dealt anew, so no number may come back: all go on from the highest that was reached."""
    again = Numbering(num_shards)
    again.restore([1, 3])
    assert again.next == [3] * num_shards
    for shard in range(num_shards):
        again.enter(shard, 3)
