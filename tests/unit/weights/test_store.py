"""The last few versions are kept, older ones are refused, a torn copy is noticed, and a replica follows."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from headrace.errors import HeadraceError
from headrace.memory.segment import SharedSegment
from headrace.weights.flat import FlatParameters
from headrace.weights.store import Replica, WeightStore, store_bytes
from support.generators import thorough


def flat_of(value: float) -> FlatParameters:
    flat = FlatParameters(nn.Linear(2, 1))
    flat.vector.fill_(value)
    return flat


def publish(store: WeightStore, flat: FlatParameters) -> None:
    """As the next version."""
    store.publish(flat.published, store.version + 1)


def vector_of(store: WeightStore, version: int) -> torch.Tensor:
    found = torch.zeros(len(store._vectors[0]))
    assert store.copy_into(found, version)
    return found


@thorough
@given(capacity=st.integers(1, 5), published=st.integers(1, 20))
def test_exactly_the_last_versions_are_kept(capacity: int, published: int) -> None:
    flat = flat_of(0)
    store = WeightStore(flat.size, capacity)
    for version in range(published):
        flat.vector.fill_(version)
        publish(store, flat)
        assert store.version == version
    for version in range(-3, published + capacity + 1):
        if max(0, published - capacity) <= version < published:
            assert store.holds(version)
            assert bool((vector_of(store, version) == version).all())
            assert store.copy_into(flat.published, version)
            assert bool((flat.vector == version).all())
        else:
            assert not store.holds(version)
            assert not store.copy_into(flat.published, version)


def test_nothing_is_kept_before_the_first_publish() -> None:
    store = WeightStore(3, 2)
    assert store.version == -1
    for version in (-2, -1, 0, 1):
        assert not store.holds(version)
        assert not store.copy_into(torch.zeros(3), version)


def test_a_published_version_does_not_change_with_the_module() -> None:
    flat = flat_of(1)
    store = WeightStore(flat.size, 2)
    publish(store, flat)
    flat.vector.fill_(2)
    assert bool((vector_of(store, 0) == 1).all())


def test_a_resumed_run_goes_on_counting() -> None:
    flat = flat_of(1)
    store = WeightStore(flat.size, 2)
    publish(store, flat)
    flat.vector.fill_(41)
    store.publish(flat.published, 41)
    assert store.version == 41
    publish(store, flat)
    assert store.version == 42
    assert bool((vector_of(store, 41) == 41).all())


def test_another_process_would_find_the_same_store_in_the_segment() -> None:
    flat, theirs = flat_of(0), flat_of(-1)
    segment = SharedSegment.create(store_bytes(flat.size, 3))
    path = f"/dev/shm/{segment.name}"
    store = WeightStore(flat.size, 3, segment)
    try:
        attached = WeightStore(flat.size, 3, SharedSegment.attach(str(segment.name)), create=False)
        assert attached.version == -1
        for version in range(5):
            flat.vector.fill_(version)
            publish(store, flat)
            assert attached.version == version
            assert attached.copy_into(theirs.published, version)
            assert bool((theirs.vector == version).all())
        again = WeightStore(flat.size, 3, SharedSegment.attach(str(segment.name)), create=False)
        assert [version for version in range(-3, 9) if again.holds(version)] == [2, 3, 4], "attaching forgets nothing"
    finally:
        store.close()
        store.close()
    assert not os.path.exists(path)
    assert bool((vector_of(attached, 4) == 4).all()), "who still reads may go on"


@thorough
@given(size=st.integers(1, 70), capacity=st.integers(1, 9))
def test_vectors_lie_apart_on_lines_of_their_own(size: int, capacity: int) -> None:
    flat = FlatParameters(nn.Linear(1, size, bias=False))
    store = WeightStore(size, capacity)
    for version in range(capacity):
        flat.vector.fill_(version)
        publish(store, flat)
    vectors = [store._vectors[version % capacity] for version in range(capacity)]
    assert all(bool((vector == version).all()) for version, vector in enumerate(vectors))
    assert all(vector.data_ptr() % 64 == 0 for vector in vectors)
    assert len(store.segment.buffer) >= store_bytes(size, capacity) >= 8 * (1 + capacity) + 4 * size * capacity


# ---------------------------------------------------------------------------------------------------------- torn copies


class Overtaken:
    """A reader's vector: it takes one half of a copy, is overtaken once, and takes the other half."""

    def __init__(self, vector: Tensor, what: Callable[[], object]) -> None:
        self.vector, self.waiting = vector, [what]

    def copy_(self, published: Tensor) -> None:
        half = len(self.vector) // 2
        self.vector[:half] = published[:half]
        if self.waiting:
            self.waiting.pop()()
        self.vector[half:] = published[half:]


def overtaking(learner: FlatParameters, store: WeightStore, times: int) -> Callable[[], None]:
    def overtake() -> None:
        for _ in range(times):
            learner.vector.fill_(store.version + 1)
            publish(store, learner)

    return overtake


@pytest.mark.parametrize("capacity", [1, 2, 3])
@pytest.mark.parametrize("times", [1, 2, 3, 4, 6])
def test_a_copy_that_was_overwritten_meanwhile_is_not_believed(capacity: int, times: int) -> None:
    learner, reader = flat_of(0), flat_of(-1)
    store = WeightStore(learner.size, capacity)
    publish(store, learner)
    overtaken: Any = Overtaken(reader.published, overtaking(learner, store, times))
    is_whole = store.copy_into(overtaken, 0)
    assert is_whole == (times < capacity), "as long as its slot is not written again, the copy is good"
    assert (len(set(reader.vector.tolist())) == 1) == is_whole, "it would have been a mixture"


def test_what_is_being_written_is_not_held() -> None:
    """Another process looks while the learner is in the middle of its copy."""
    learner, reader = flat_of(0), flat_of(-1)
    store = WeightStore(learner.size, 2)
    for _ in range(3):
        publish(store, learner)
    seen: list[tuple[int, list[bool], list[bool]]] = []

    class Watched:
        """The vector that is written, looked at from outside before its numbers change."""

        def __init__(self, vector: Tensor) -> None:
            self.vector = vector

        def copy_(self, numbers: Tensor) -> None:
            versions = range(5)
            held = [store.holds(version) for version in versions]
            seen.append((store.version, held, [store.copy_into(reader.published, version) for version in versions]))
            self.vector.copy_(numbers)

    watched: Any = Watched(store._vectors[3 % 2])
    store._vectors[3 % 2] = watched
    publish(store, learner)
    only_the_latest = [version == 2 for version in range(5)]
    assert seen == [(2, only_the_latest, only_the_latest)]
    assert [store.holds(version) for version in range(5)] == [False, False, True, True, False]


class TestReplica:
    def test_follows_the_version_it_is_told(self) -> None:
        learner, replica_flat = flat_of(0), flat_of(-1)
        store, replica = WeightStore(learner.size, 2), Replica(replica_flat)
        for version in range(4):
            learner.vector.fill_(version)
            publish(store, learner)
            replica.load(store, version)
            assert bool((replica_flat.vector == version).all())
        replica.load(store, 2)
        assert bool((replica_flat.vector == 2).all()), "also back to an older one"
        with pytest.raises(HeadraceError, match="version 1 are gone"):
            replica.load(store, 1)
        assert bool((replica_flat.vector == 2).all())

    def test_copies_nothing_if_it_is_there_already(self) -> None:
        learner, replica_flat = flat_of(0), flat_of(-1)
        store, replica = WeightStore(learner.size, 2), Replica(replica_flat)
        publish(store, learner)
        replica.load(store, 0)
        replica_flat.vector.fill_(9)
        replica.load(store, 0)
        assert bool((replica_flat.vector == 9).all())
        replica.version = None
        replica.load(store, 0)
        assert bool((replica_flat.vector == 0).all())

    def test_is_for_reading_only(self) -> None:
        flat = flat_of(1)
        Replica(flat)
        assert not flat.module.training
        assert not any(parameter.requires_grad for parameter in flat.module.parameters())
        assert not torch.is_grad_enabled() or not flat.module(torch.ones(1, 2)).requires_grad

    @pytest.mark.parametrize("capacity", [1, 2])
    def test_a_torn_load_is_refused_and_tried_again_for_the_latest(
        self, capacity: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        learner, reader = flat_of(0), flat_of(-1)
        store, replica = WeightStore(learner.size, capacity), Replica(reader)
        publish(store, learner)

        overtaken: Any = Overtaken(reader.published, overtaking(learner, store, capacity))
        monkeypatch.setattr(replica, "vector", overtaken)
        with pytest.raises(HeadraceError, match=f"version 0 are gone; the latest is {capacity}"):
            replica.load(store, 0)
        assert replica.version is None, "what it holds now is no version"

        overtaken = Overtaken(reader.published, overtaking(learner, store, capacity))
        monkeypatch.setattr(replica, "vector", overtaken)
        assert replica.load_latest(store) == replica.version == store.version == 2 * capacity
        assert bool((reader.vector == 2 * capacity).all())

    def test_the_latest_is_copied_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        learner, reader = flat_of(0), flat_of(-1)
        store, replica = WeightStore(learner.size, 2), Replica(reader)
        publish(store, learner)
        assert replica.load_latest(store) == 0
        reader.vector.fill_(9)
        assert replica.load_latest(store) == 0
        assert bool((reader.vector == 9).all())
        replica.version = None
        assert replica.load_latest(store) == 0
        assert bool((reader.vector == 0).all())
