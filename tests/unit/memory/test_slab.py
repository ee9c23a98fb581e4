"""The slab: one layout of bytes wherever it lies, poison, header words, views that never copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from headrace.errors import SchemaError
from headrace.memory.layout import HEADER_BYTES, MAGIC, Word, slab_bytes
from headrace.memory.schema import Schema
from headrace.memory.segment import HeapSegment, Segment, SharedSegment
from headrace.memory.slab import Slab
from support.slabs import heap_slab, small_schema

ACTOR_WORDS = (
    Word.COMMIT, Word.FINAL_COUNT, Word.STARTED_NS, Word.COMMITTED_NS,
    Word.ENV_NS, Word.INFERENCE_NS, Word.COPY_NS, Word.IDLE_NS,
    Word.CLAMPED, Word.DROPPED_EPISODES, Word.DROPPED_STEPS, Word.MENDED_ENV, Word.MENDED_EPISODE, Word.MENDED_STEP,
    Word.OUTSIDE, Word.CPU_NS,
)  # fmt: skip
OWNER_WORDS = (Word.MAGIC, Word.FINGERPRINT, Word.FENCE, Word.SHARD, Word.SEQUENCE)


@contextmanager
def segment_of(create: Callable[[int], Segment], size_bytes: int) -> Iterator[Segment]:
    segment = create(size_bytes)
    try:
        yield segment
    finally:
        segment.unlink()


def write_everything(slab: Slab) -> None:
    """Something else in every entry of every field, two final observations, and a commit."""
    slab.poison()
    for field in slab.schema.fields:
        array = slab.arrays[field.name]
        array[...] = np.arange(array.size).reshape(array.shape).astype(array.dtype)
    slab.record_final(1, 2, {"obs": [1.0, 2.0, 3.0]})
    slab.record_final(4, 0, {"obs": [4.0, 5.0, 6.0]})
    slab.commit(fence=7, committed_ns=123)


def bytes_after_writing(create: Callable[[int], Segment], schema: Schema) -> bytes:
    size_bytes = slab_bytes(schema)
    with segment_of(create, size_bytes) as segment:
        write_everything(Slab(schema, segment.buffer))
        return bytes(segment.buffer[:size_bytes])


def test_the_bytes_are_the_same_on_the_heap_and_in_shared_memory() -> None:
    schema = small_schema()
    assert bytes_after_writing(HeapSegment, schema) == bytes_after_writing(SharedSegment.create, schema)


@pytest.mark.parametrize("field", small_schema().fields, ids=lambda field: field.name)
def test_poison_is_visible_in_every_field_but_the_final_observations(field) -> None:  # type: ignore[no-untyped-def]
    slab = heap_slab(small_schema())
    array = slab.arrays[field.name]
    if field.axes == "F":
        assert not array.any(), "memory of final observations is not touched before it is needed"
    elif array.dtype.kind == "f":
        assert np.isnan(array).all()
    else:
        assert set(array.tobytes()) == {0xA5}


def test_poison_forgets_the_final_observations_of_the_last_rollout() -> None:
    slab = heap_slab(small_schema())
    slab.record_final(0, 1, {"obs": [1.0, 2.0, 3.0]})
    slab.poison()
    assert slab.final_count == 0
    assert len(slab.final_obs["obs"]) == len(slab.final_row) == 0


def test_a_fresh_header_says_what_it_is_and_nothing_else() -> None:
    schema = small_schema()
    slab = heap_slab(schema)
    assert slab.header[Word.MAGIC] == MAGIC
    assert slab.header[Word.FINGERPRINT] == schema.fingerprint
    assert all(slab.header[word] == 0 for word in Word if word not in (Word.MAGIC, Word.FINGERPRINT))


def test_words_of_different_writers_lie_on_different_cache_lines() -> None:
    lines = [{int(word) * 8 // 64 for word in words} for words in (ACTOR_WORDS, OWNER_WORDS)]
    assert not lines[0] & lines[1]
    assert set(ACTOR_WORDS) | set(OWNER_WORDS) == set(Word), "a new word must say who writes it"
    assert len({int(word) for word in Word}) == len(Word)
    assert max(Word) * 8 < HEADER_BYTES


def test_a_commit_writes_its_fence_and_time() -> None:
    slab = heap_slab(small_schema())
    slab.commit(fence=41, committed_ns=99)
    assert slab.header[Word.COMMIT] == 41
    assert slab.header[Word.COMMITTED_NS] == 99


def test_final_observations_are_kept_with_their_rows() -> None:
    slab = heap_slab(small_schema(n_steps=5, n_envs=3))
    slab.record_final(1, 2, {"obs": [1.0, 2.0, 3.0]})
    slab.record_final(4, 0, {"obs": [4.0, 5.0, 6.0]})
    assert slab.final_row.tolist() == [1 * 3 + 2, 4 * 3 + 0]
    assert slab.final_obs["obs"].tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


def test_every_view_is_the_segments_own_memory() -> None:
    schema = small_schema()
    segment = HeapSegment(slab_bytes(schema))
    slab = Slab(schema, segment.buffer)
    whole = np.frombuffer(segment.buffer, np.uint8)
    views = [slab.header, *slab.arrays.values()]
    for row in slab.rows:
        for part in row:
            views += part.values() if isinstance(part, dict) else [part]
    for leaves in (slab.obs, slab.last_obs):
        views += leaves.values()
    assert all(np.shares_memory(view, whole) for view in views)


def test_rows_are_views_of_one_time_index_and_the_last_ones_successor_is_last_obs() -> None:
    slab = heap_slab(small_schema(n_steps=3, n_envs=2))
    for t, row in enumerate(slab.rows):
        for name in ("action", "reward", "terminated", "truncated", "valid", "episode", "step"):
            assert np.shares_memory(getattr(row, name), slab.arrays[name][t])
        assert np.shares_memory(row.obs["obs"], slab.arrays["obs"][t])
        successor = slab.arrays["obs"][t + 1] if t < 2 else slab.arrays["last_obs"]
        assert np.shares_memory(row.next_obs["obs"], successor)
        assert row.next_obs["obs"].shape == successor.shape


def test_another_view_of_the_same_block_sees_what_was_written() -> None:
    schema = small_schema()
    segment = HeapSegment(slab_bytes(schema))
    write_everything(Slab(schema, segment.buffer))
    reader = Slab(schema, segment.buffer, create=False)
    assert reader.header[Word.COMMIT] == 7
    assert reader.final_obs["obs"].tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert reader.reward.reshape(-1).tolist() == list(range(reader.reward.size))


def test_a_block_of_another_schema_is_refused_with_both_fingerprints() -> None:
    ours, theirs = small_schema(n_steps=5), small_schema(n_steps=4)
    segment = HeapSegment(slab_bytes(ours))
    Slab(theirs, segment.buffer)
    with pytest.raises(SchemaError) as caught:
        Slab(ours, segment.buffer, create=False)
    assert f"{ours.fingerprint:x}" in str(caught.value)
    assert f"{theirs.fingerprint:x}" in str(caught.value)


def test_a_block_that_never_was_a_slab_is_refused() -> None:
    schema = small_schema()
    with pytest.raises(SchemaError):
        Slab(schema, HeapSegment(slab_bytes(schema)).buffer, create=False)


def test_a_block_that_is_too_small_is_refused_with_the_needed_bytes() -> None:
    schema = small_schema()
    with pytest.raises(SchemaError, match=str(slab_bytes(schema))):
        Slab(schema, HeapSegment(slab_bytes(schema) - 1).buffer)
