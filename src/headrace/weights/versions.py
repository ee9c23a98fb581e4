"""The weights of a run: the module that is trained, the versions it is published as, and the policy that acted.

    algorithm changes `module` in place -> publish: version + 1, one copy into the store -> actors
    acted(version): a replica of the module with the weights of a version that is still kept, for reading

One counter for all: every step that was collected names the version that acted. `publish_every` says how often the
present weights become a version: after so many updates, or so many seconds.
Does not know how the module is trained, nor who reads the store.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headrace.clock import now_s
from headrace.errors import CheckpointError
from headrace.weights.flat import FlatParameters, tensors_sha256
from headrace.weights.store import Replica, WeightStore

Array = npt.NDArray[Any]


class Weights:
    """Parameters and their versions. A replayed schedule says itself (`is_due`) after which updates it published."""

    def __init__(
        self,
        flat: FlatParameters,
        store: WeightStore,
        every_updates: int = 1,
        every_s: float = 0.0,
        is_due: Callable[[int], bool] | None = None,
    ) -> None:
        self.flat, self.store = flat, store
        self._every_updates, self._every_s, self._is_due = every_updates, every_s, is_due
        self._replica = Replica(FlatParameters(copy.deepcopy(flat.module)))
        self._published_s = now_s()
        self.is_present = True  # the module's weights are those of the latest version
        store.publish(flat.published, 0)

    @property
    def module(self) -> nn.Module:
        """The module that is trained."""
        return self.flat.module

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
        if self._is_due is not None:
            is_due = self._is_due(updates)
        elif self._every_updates:
            is_due = updates % self._every_updates == 0
        else:
            is_due = now_s() - self._published_s >= self._every_s
        if is_due:
            self.publish()

    def sha256(self) -> str:
        """The name of the present weights."""
        return tensors_sha256(dict(self.module.named_parameters()))

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Array]]:
        """Its version, the module's tensors, and what actors go on with if that is something else; copied."""
        tensors = {name: tensor.clone() for name, tensor in self.module.state_dict().items()}
        arrays = {} if self.is_present else {"published": self.store.vector(self.version).numpy().copy()}
        return {"version": self.version}, tensors, arrays

    def restore(self, state: dict[str, Any], tensors: dict[str, Tensor], arrays: dict[str, Array]) -> None:
        """Go on from a snapshot. No actor may have loaded a version yet: it would not load it again."""
        self.load(tensors, state["version"])
        published = arrays.get("published")
        self.is_present = published is None
        if published is not None:
            vector = torch.from_numpy(np.ascontiguousarray(published, np.float32))
            self.store.publish(vector, state["version"])

    def load(self, tensors: dict[str, Tensor], version: int | None = None) -> None:
        """Take over parameters and nothing else, as the present version or as a given one."""
        try:
            self.module.load_state_dict(tensors)
        except RuntimeError as error:
            raise CheckpointError(f"the checkpoint's parameters do not fit this policy: {error}") from error
        self.store.publish(self.flat.published, self.version if version is None else version)
        self._replica.forget()

    def close(self) -> None:
        """Give the store's memory back."""
        self.store.close()
