"""The last few versions are kept, older ones are refused, and a replica follows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from headrace.errors import HeadraceError
from headrace.weights.flat import FlatParameters
from headrace.weights.store import Replica, WeightStore


def flat_of(value: float) -> FlatParameters:
    flat = FlatParameters(nn.Linear(2, 1))
    flat.vector.fill_(value)
    return flat


@given(capacity=st.integers(1, 5), published=st.integers(1, 20))
def test_exactly_the_last_versions_are_kept(capacity: int, published: int) -> None:
    flat = flat_of(0)
    store = WeightStore(flat.size, capacity)
    for version in range(published):
        flat.vector.fill_(version)
        assert store.publish(flat) == version == store.version
    for version in range(-3, published + capacity + 1):
        if max(0, published - capacity) <= version < published:
            assert bool((store.vector(version) == version).all())
        else:
            with pytest.raises(HeadraceError, match=f"version {version} are gone"):
                store.vector(version)


def test_nothing_is_kept_before_the_first_publish() -> None:
    store = WeightStore(3, 2)
    for version in (-2, -1, 0, 1):
        with pytest.raises(HeadraceError, match="are gone"):
            store.vector(version)


def test_a_published_version_does_not_change_with_the_module() -> None:
    flat = flat_of(1)
    store = WeightStore(flat.size, 2)
    store.publish(flat)
    flat.vector.fill_(2)
    assert bool((store.vector(0) == 1).all())


def test_a_resumed_run_goes_on_counting() -> None:
    flat = flat_of(1)
    store = WeightStore(flat.size, 2)
    store.publish(flat)
    flat.vector.fill_(41)
    assert store.publish(flat, 41) == 41
    assert store.publish(flat) == 42
    assert bool((store.vector(41) == 41).all())


class TestReplica:
    def test_follows_the_version_it_is_told(self) -> None:
        learner, replica_flat = flat_of(0), flat_of(-1)
        store, replica = WeightStore(learner.size, 2), Replica(replica_flat)
        for version in range(4):
            learner.vector.fill_(version)
            store.publish(learner)
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
        store.publish(learner)
        replica.load(store, 0)
        replica_flat.vector.fill_(9)
        replica.load(store, 0)
        assert bool((replica_flat.vector == 9).all())
        replica.forget()
        replica.load(store, 0)
        assert bool((replica_flat.vector == 0).all())

    def test_is_for_reading_only(self) -> None:
        flat = flat_of(1)
        Replica(flat)
        assert not flat.module.training
        assert not any(parameter.requires_grad for parameter in flat.module.parameters())
        assert not torch.is_grad_enabled() or not flat.module(torch.ones(1, 2)).requires_grad
