"""Schedules: what is written is what is read, damage is one clear error, and enough versions are kept to replay."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.collecting.schedule import Schedule, SlabUse, encode_update, slab_use
from headrace.errors import UsageError
from headrace.memory.lease import Lease
from support.generators import quick, thorough

versions = st.lists(st.integers(0, 50), min_size=1, max_size=40).map(tuple)


@thorough
@given(st.integers(0, 100), st.integers(0, 10**12), versions)
def test_a_use_comes_back_as_it_was(shard: int, sequence: int, rows: tuple[int, ...]) -> None:
    use = SlabUse(shard, sequence, rows)
    assert SlabUse.decode(json.loads(json.dumps(use.encode())), len(rows)) == use


def test_versions_are_written_as_runs() -> None:
    assert SlabUse(1, 7, (3, 3, 3, 4, 4, 6)).encode() == [1, 7, [[0, 3], [3, 4], [5, 6]]]


def test_a_slab_is_recorded_in_plain_numbers() -> None:
    use = slab_use(Lease(0, 2, 5, 1), np.array([1, 1, 2], np.int64))
    assert use == SlabUse(2, 5, (1, 1, 2))
    assert all(type(version) is int for version in use.versions)


uses = st.builds(SlabUse, st.integers(0, 3), st.integers(0, 50), st.tuples(*[st.integers(0, 9)] * 4))


@quick
@given(
    updates=st.lists(
        st.lists(uses, max_size=4),
        max_size=6,
    )
)
def test_a_schedule_comes_back_from_its_file(
    updates: list[list[SlabUse]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    next_of = [0] * 4  # a shard's rollouts are consumed in order, from the first
    for one in updates:
        for i, use in enumerate(one):
            one[i] = SlabUse(use.shard, next_of[use.shard], use.versions)
            next_of[use.shard] += 1
    path = tmp_path_factory.mktemp("run") / "schedule.jsonl"
    path.write_text("".join(encode_update(2 * update, 4, one) for update, one in enumerate(updates)))
    got = Schedule.read(path, 4)
    assert got.updates == updates
    assert got.versions == [2 * update for update in range(len(updates))]
    assert got.num_shards == max((use.shard for use in got.uses), default=0) + 1
    assert got.uses == [use for one in updates for use in one]
    last = {(use.shard, use.sequence): use.versions for use in got.uses}
    assert {key: got.versions_of(*key) for key in last} == last


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "3\n",
        "[3]\n",
        '{"a": 1}\n',
        '{"version": 0, "shards": 1}\n',
        '{"version": 0, "slabs": []}\n',
        '{"slabs": [], "shards": 1}\n',
        '{"version": "x", "shards": 1, "slabs": []}\n',
        *(
            f'{{"version": 0, "shards": 1, "slabs": {slabs}}}\n'
            for slabs in ("3", "[3]", "[[1, 2]]", "[[0, 0, 5]]", '[[0, 0, [[0, "x"]]]]', "[[0, 0, [[0]]]]")
        ),
    ],
)
def test_what_is_no_schedule_is_refused_by_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "schedule.jsonl"
    path.write_text(text)
    with pytest.raises(
        UsageError, match=r"schedule .*schedule\.jsonl: expected the schedule\.jsonl of an asynchronous"
    ):
        Schedule.read(path, 4)


def test_a_schedule_of_a_runs_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "schedule.jsonl"
    path.write_text('{"version": 2, "shards": 2, "slabs": [[0, 0, [[0, 0]]], [1, 3, [[0, 2]]]]}\n')
    with pytest.raises(UsageError, match="does not begin with the run"):
        Schedule.read(path, 4)


def test_a_schedule_of_two_numbers_of_shards_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "schedule.jsonl"
    path.write_text(encode_update(0, 2, [SlabUse(0, 0, (0,))]) + encode_update(1, 1, [SlabUse(0, 1, (0,))]))
    with pytest.raises(UsageError, match="the run had 1 and 2 shards at times"):
        Schedule.read(path, 1)


def test_a_schedule_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"schedule .*none\.jsonl: expected .*No such file"):
        Schedule.read(tmp_path / "none.jsonl", 4)


@pytest.mark.parametrize(
    ("oldest", "kept"),
    [([], 2), ([0], 2), ([0, 1, 2], 2), ([0, 0, 1], 3), ([0, 0, 0], 4), ([0, 1, 0, 3], 4)],
    ids=str,
)
def test_enough_versions_are_kept(oldest: list[int], kept: int) -> None:
    """As many as the oldest row of any update is behind, the present one, and the next."""
    updates = [[SlabUse(0, update, (old, update))] for update, old in enumerate(oldest)]
    assert Schedule(list(range(len(oldest))), updates).capacity == kept


def test_when_a_version_was_published() -> None:
    schedule = Schedule([0, 0, 1, 1, 2], [[]] * 5)
    assert [schedule.is_publishing(updates) for updates in range(1, 6)] == [False, True, False, True, False]
