"""What is saved of a run's weights, and how they go on from it.

    snapshot: version · the module's tensors · the published vector, if actors go on with another one -> restore
    load: parameters of another run, as the present version

Does not know files: see checkpoints.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.errors import CheckpointError
from headrace.weights.store import Weights

Array = npt.NDArray[Any]


def snapshot(weights: Weights) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Array]]:
    """Its version, the module's tensors, and what actors go on with if that is something else; copied."""
    tensors = {name: tensor.clone() for name, tensor in weights.module.state_dict().items()}
    arrays = {} if weights.is_present else {"published": weights.store.vector(weights.version).numpy().copy()}
    return {"version": weights.version}, tensors, arrays


def restore(weights: Weights, state: dict[str, Any], tensors: dict[str, Tensor], arrays: dict[str, Array]) -> None:
    """Go on from a snapshot. No actor may have loaded a version yet: it would not load it again."""
    load(weights, tensors, state["version"])
    published = arrays.get("published")
    weights.is_present = published is None
    if published is not None:
        vector = torch.from_numpy(np.ascontiguousarray(published, np.float32))
        weights.store.publish(vector, state["version"])


def load(weights: Weights, tensors: dict[str, Tensor], version: int | None = None) -> None:
    """Take over parameters and nothing else, as the present version or as a given one."""
    try:
        weights.module.load_state_dict(tensors)
    except RuntimeError as error:
        raise CheckpointError(f"the checkpoint's parameters do not fit this policy: {error}") from error
    weights.store.publish(weights.flat.published, weights.version if version is None else version)
    weights.forget()
