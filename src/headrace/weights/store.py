"""The weight store: the last few published versions, each one flat vector.

    learner.publish(flat) -> version + 1 -> actors: latest() at slab borders · completion: vector(version that acted)

It keeps `capacity` versions (max_lag + 2: whatever a slab still in flight may have acted with).
Does not know modules' insides or processes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.errors import HeadraceError
from headrace.weights.flat import FlatParameters


class WeightStore:
    """Versioned, multi-buffered weights in this process."""

    def __init__(self, size: int, capacity: int) -> None:
        self._vectors = torch.empty(capacity, size)
        self._versions: list[int | None] = [None] * capacity
        self.version = -1

    def publish(self, flat: FlatParameters, version: int | None = None) -> int:
        """Copy the weights out as the next version (or as a given one, after a resume)."""
        version = self.version + 1 if version is None else version
        slot = version % len(self._versions)
        flat.dump(self._vectors[slot])
        self._versions[slot] = version
        self.version = version
        return version

    def vector(self, version: int) -> Tensor:
        """The weights of a version that is still kept."""
        slot = version % len(self._versions)
        if self._versions[slot] != version:
            kept = sorted(one for one in self._versions if one is not None)
            raise HeadraceError(f"weights of version {version} are gone; kept are {kept}")
        return self._vectors[slot]


class Replica:
    """A module that follows the store: an actor's, or the completion pass's."""

    def __init__(self, flat: FlatParameters) -> None:
        for parameter in flat.module.parameters():
            parameter.requires_grad_(False)
        flat.module.eval()
        self._flat = flat
        self._version: int | None = None

    def load(self, store: WeightStore, version: int) -> None:
        """Switch to a version; nothing is copied if it is already there."""
        if version != self._version:
            self._flat.load(store.vector(version))
            self._version = version

    def forget(self) -> None:
        """Load again next time, even the same version: its weights were replaced."""
        self._version = None
