"""The weights of a run: the module that is trained, its numbered versions, and the memory in which actors find them.

    algorithm changes `module` in place -> publish: version + 1, one copy -> actors: the latest, at slab borders or
                                                                             every few rows
                                           acted(version): the policy that acted, for completion

    [ latest · version of slot 0 · version of slot 1 ... ][ vector ][ vector ] ...      one writer, the learner

The store keeps `capacity` versions (max_lag + 2: all that a slab still in flight may have acted with). A slot says GONE
while it is written, so a reader that finds the same version before and after its copy has not read a torn one. One
counter for all: every step that was collected names the version that acted.
Does not know how the module is trained, who reads the store, or how weights are saved (saving).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace.clock import now_s
from headrace.errors import HeadraceError
from headrace.memory.atomics import fence, load_acquire, store_release
from headrace.memory.schema import ALIGNMENT
from headrace.memory.segment import HeapSegment, Segment
from headrace.weights.flat import FlatParameters

_NONE, _GONE = -1, -2
IsDue = Callable[[int, float], bool]  # (updates so far, seconds since the last version) -> whether to publish now


def store_bytes(size: int, capacity: int) -> int:
    """Bytes of a store of so many versions of so many numbers."""
    return _whole_lines(8 * (1 + capacity)) + capacity * _whole_lines(4 * size)


class WeightStore:
    """Versioned, multi-buffered weights. One process publishes; any that attaches to the segment reads."""

    def __init__(self, size: int, capacity: int, segment: Segment | None = None, *, create: bool = True) -> None:
        self.segment = segment or HeapSegment(store_bytes(size, capacity))
        self._capacity = capacity
        start, stride = _whole_lines(8 * (1 + capacity)), _whole_lines(4 * size)
        self._words = np.frombuffer(self.segment.buffer, np.int64, 1 + capacity)
        self._vectors = [
            torch.frombuffer(self.segment.buffer, dtype=torch.float32, count=size, offset=start + i * stride)
            for i in range(capacity)
        ]
        if create:
            self._words[:] = _NONE

    @property
    def version(self) -> int:
        """The latest version; -1 before the first."""
        return int(load_acquire(self._words, 0))

    def publish(self, vector: Tensor, version: int) -> None:
        """Copy a vector out, then name it."""
        slot = version % self._capacity
        store_release(self._words, 1 + slot, _GONE)
        fence()  # nothing may be seen of the new numbers under the old version
        self._vectors[slot].copy_(vector)
        store_release(self._words, 1 + slot, version)
        store_release(self._words, 0, version)

    def holds(self, version: int) -> bool:
        """Whether a version is still kept."""
        return version >= 0 and bool(load_acquire(self._words, 1 + version % self._capacity) == version)

    def copy_into(self, vector: Tensor, version: int) -> bool:
        """Load a version's weights; False, with `vector` undefined, if the learner has overwritten them by now."""
        if not self.holds(version):
            return False
        vector.copy_(self._vectors[version % self._capacity])
        fence()  # the numbers were read before the version is looked at again
        return self.holds(version)

    def close(self) -> None:
        """Remove the segment's name."""
        self.segment.unlink()


class Replica:
    """A module that follows the store: an actor's, or the completion pass's."""

    def __init__(self, flat: FlatParameters) -> None:
        for parameter in flat.module.parameters():
            parameter.requires_grad_(False)
        flat.module.eval()
        self.vector, self.module = flat.published, flat.module
        self.version: int | None = None

    def load(self, store: WeightStore, version: int) -> None:
        """Switch to a version; nothing is copied if it is already there."""
        if not self.try_load(store, version):
            raise HeadraceError(f"weights of version {version} are gone; the latest is {store.version}")

    def try_load(self, store: WeightStore, version: int) -> bool:
        """The same; False if the version is not kept any more."""
        if version == self.version:
            return True
        self.version = None
        if store.copy_into(self.vector, version):
            self.version = version
        return self.version == version

    def load_latest(self, store: WeightStore) -> int:
        """Switch to the newest version, and name it."""
        while not self.try_load(store, version := store.version):  # else the learner was faster: look again
            if version < 0:
                raise HeadraceError("no weights were published yet; publish before acting")
        return version


class Following:
    """A replica that acts for a host, with the version that a rollout's order names or the newest every few rows."""

    def __init__(self, replica: Replica, store: WeightStore, infer: Callable[..., None], every: int) -> None:
        self._replica, self._store, self._infer, self._every = replica, store, infer, every
        self.pause: Callable[[], None] | None = None  # it never waits

    def acting(self, _: object, version: int, versions: Sequence[int] | None) -> Callable[..., int]:
        """How an order's rows are acted on; `versions` are recorded ones, per row, to be replayed."""
        replica, store, infer, every = self._replica, self._store, self._infer, self._every

        def act(row: int, obs: Any, noise: Any, out: Any) -> int:
            if versions is not None:
                replica.load(store, versions[row])
            elif every:
                if row % every == 0 or replica.version is None:
                    replica.load_latest(store)
            elif (row == 0 or replica.version is None) and not replica.try_load(store, version):
                replica.load_latest(store)  # first come, first served: this order waited too long for its turn
            infer(obs, noise, out)
            assert replica.version is not None
            return replica.version

        return act


class Weights:
    """Parameters and their versions. `is_due` says after which updates the present weights become one."""

    def __init__(self, flat: FlatParameters, store: WeightStore, is_due: IsDue = lambda updates, since_s: True) -> None:
        self.flat, self.module, self.store, self._is_due = flat, flat.module, store, is_due
        self._replica = Replica(FlatParameters(copy.deepcopy(flat.module)))
        self._published_s = now_s()
        self.is_present = True  # the module's weights are those of the latest version
        store.publish(flat.published, 0)

    @property
    def version(self) -> int:
        """The latest version."""
        return self.store.version

    def acted(self, version: int) -> nn.Module:
        """The policy with the weights of a version that is still kept; for reading, not for training."""
        self._replica.load(self.store, version)
        return self._replica.module

    def publish(self) -> int:
        """The present weights as the next version."""
        self._published_s, self.is_present = now_s(), True
        version = self.version + 1
        self.store.publish(self.flat.published, version)
        return version

    def publish_if_due(self, updates: int) -> None:
        """After an update."""
        self.is_present = False
        if self._is_due(updates, now_s() - self._published_s):
            self.publish()

    def forget(self) -> None:
        """A version's weights were replaced: what was loaded of it is stale."""
        self._replica.version = None


def _whole_lines(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT
