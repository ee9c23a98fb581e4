"""The weights of a run: versions are numbered, published when due, kept for reading, and restored to the last bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from headrace.collecting.topology import publishing
from headrace.errors import CheckpointError, HeadraceError
from headrace.weights import saving, store
from headrace.weights.flat import FlatParameters, tensors_sha256
from headrace.weights.store import Weights, WeightStore


class Scaled(nn.Module):
    """A layer and a running statistic."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.register_buffer("scale", torch.ones(3))


def sha256(weights: Weights) -> str:
    return tensors_sha256(dict(weights.module.named_parameters()))


def weights_of(capacity: int = 3, is_due: Callable[[int, float], bool] | str = "1") -> Weights:
    flat = FlatParameters(Scaled())
    is_due = publishing(is_due) if isinstance(is_due, str) else is_due
    return Weights(flat, WeightStore(flat.size, capacity), is_due)


def set_to(weights: Weights, value: float) -> None:
    with torch.no_grad():
        for tensor in weights.module.state_dict().values():
            tensor.fill_(value)


def numbers_of(module: nn.Module) -> set[float]:
    return {float(x) for tensor in module.state_dict().values() for x in tensor.flatten()}


def test_the_first_version_is_0_and_is_there_at_once() -> None:
    weights = weights_of()
    assert weights.version == 0
    assert weights.is_present
    assert all(
        torch.equal(a, b)
        for a, b in zip(weights.acted(0).state_dict().values(), weights.module.state_dict().values(), strict=True)
    )


def test_what_acted_is_kept_for_reading_and_what_is_trained_is_another_module() -> None:
    weights = weights_of(capacity=3)
    for version in range(1, 5):
        set_to(weights, version)
        assert weights.publish() == version == weights.version
    set_to(weights, 99.0)
    for version in (2, 4, 3, 2):
        module = weights.acted(version)
        assert numbers_of(module) == {float(version)}, "buffers too"
        assert not any(parameter.requires_grad for parameter in module.parameters())
    assert numbers_of(weights.module) == {99.0}
    with pytest.raises(HeadraceError, match="version 1 are gone"):
        weights.acted(1)


@pytest.mark.parametrize(
    ("is_due", "published"),
    [
        ("1", [1, 2, 3, 4, 5, 6]),
        ("3", [3, 6]),
        (lambda updates, since_s: updates in (2, 5), [2, 5]),
    ],
    ids=["every update", "every third", "as recorded"],
)
def test_it_publishes_when_it_is_due(is_due: Callable[[int, float], bool] | str, published: list[int]) -> None:
    weights, seen = weights_of(is_due=is_due), []
    for update in range(1, 7):
        before = weights.version
        weights.publish_if_due(update)
        if weights.version > before:
            seen.append(update)
        assert weights.is_present == (weights.version > before)
    assert seen == published


def test_it_publishes_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(store, "now_s", lambda: clock[0])
    weights, seen = weights_of(is_due="1s"), []
    for update in range(1, 9):
        clock[0] += 0.4
        weights.publish_if_due(update)
        seen.append(weights.version)
    assert seen == [0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("is_published", [True, False])
def test_it_goes_on_from_a_snapshot(is_published: bool) -> None:
    """Also if the module is ahead of what actors act with; what is done afterwards does not reach the snapshot."""
    weights = weights_of(is_due="1" if is_published else "100")
    set_to(weights, 5.0)
    weights.publish()
    set_to(weights, 6.0)
    weights.publish_if_due(1)
    snapshot, name = saving.snapshot(weights), sha256(weights)
    set_to(weights, 7.0)
    weights.publish()
    assert ("published" in snapshot[2]) is not is_published
    for again in (weights_of(), weights):
        saving.restore(again, *snapshot)
        assert again.version == (2 if is_published else 1)
        assert (sha256(again), again.is_present) == (name, is_published)
        assert numbers_of(again.module) == {6.0}
        assert numbers_of(again.acted(again.version)) == {6.0 if is_published else 5.0}
        set_to(again, 8.0)
        assert again.publish() == (3 if is_published else 2)
        assert numbers_of(again.acted(again.version)) == {8.0}


def test_weights_alone_are_taken_over_as_the_present_version() -> None:
    weights = weights_of()
    weights.publish()
    weights.acted(1)
    saving.load(weights, {name: torch.full_like(tensor, 3.0) for name, tensor in weights.module.state_dict().items()})
    assert weights.version == 1
    assert numbers_of(weights.acted(1)) == {3.0}, "a replica that had loaded it loads it again"


def test_parameters_of_another_policy_are_refused() -> None:
    with pytest.raises(CheckpointError, match="do not fit this policy"):
        saving.load(weights_of(), {"layer.weight": torch.zeros(7, 7)})


def test_its_name_is_that_of_its_parameters() -> None:
    one, other = weights_of(), weights_of()
    for weights in (one, other):
        set_to(weights, 1.0)
    assert sha256(one) == sha256(other)
    with torch.no_grad():
        next(other.module.parameters()).view(-1)[0] = np.nextafter(np.float32(1), np.float32(2)).item()
    assert sha256(one) != sha256(other), "one bit"
