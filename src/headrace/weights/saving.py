"""What is saved of a run's weights, and how they go on from it.

    snapshot: version · the module's tensors · the published vector, if actors go on with another one -> restore
    load: parameters of another run, as the present version
    require_weights: parameters that a user publishes · publish_changed: those that a user changed in place

Does not know files: see checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headrace.errors import CheckpointError, NumericsError, SchemaError, UsageError
from headrace.weights.store import Weights

Array = npt.NDArray[Any]


def require_weights(given: Mapping[str, Any], module: nn.Module) -> None:
    """Refuse weights that do not belong to this module, or that no policy can act with, before any of them is taken."""
    wanted = module.state_dict()
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise UsageError(
                f"publish: {name}: expected a tensor, got {type(tensor).__name__}; pass a module or its state_dict()"
            )
    for name in [*wanted, *(name for name in given if name not in wanted)]:
        expected, got = (tuple(some[name].shape) if name in some else "none" for some in (wanted, given))
        if expected != got:
            raise SchemaError(
                f"publish: expected the parameters of the policy that acts: {name}: {expected}, got {got}"
            )
    for name, parameter in module.named_parameters():
        if not bool(torch.isfinite(given[name].to(parameter.dtype)).all()):  # which may hold less than what is given
            raise NumericsError(
                f"publish: {name} holds NaN or infinity; the weights have diverged: lower the learning rate, clip "
                f"gradients, and look at the loss"
            )


def snapshot(weights: Weights) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Array]]:
    """Its version, the module's tensors, and what actors go on with if that is something else; copied."""
    tensors = {name: tensor.clone().cpu() for name, tensor in weights.module.state_dict().items()}
    arrays = {} if weights.is_present else {"published": _published(weights).numpy()}
    return {"version": weights.version}, tensors, arrays


def restore(weights: Weights, state: dict[str, Any], tensors: dict[str, Tensor], arrays: dict[str, Array]) -> None:
    """Go on from a snapshot. No actor may have loaded a version yet: it would not load it again."""
    load(weights, tensors, state["version"])
    published = arrays.get("published")
    weights.is_present = published is None
    if published is not None:
        vector = torch.from_numpy(np.ascontiguousarray(published, np.float32))
        weights.store.publish(vector, state["version"])


def publish_changed(weights: Weights) -> None:
    """If the module was changed since it was published (by the user, between two sessions): publish it."""
    if weights.is_present and not torch.equal(weights.flat.published.cpu(), _published(weights)):
        weights.publish()


def _published(weights: Weights) -> Tensor:
    """What actors go on with, copied."""
    vector = torch.empty(weights.flat.size)
    weights.store.copy_into(vector, weights.version)
    return vector


def load(weights: Weights, tensors: dict[str, Tensor], version: int | None = None) -> None:
    """Take over parameters and nothing else, as the present version or as a given one."""
    try:
        weights.module.load_state_dict(tensors)
    except RuntimeError as error:
        raise CheckpointError(f"the checkpoint's parameters do not fit this policy: {error}") from error
    weights.store.publish(weights.flat.published, weights.version if version is None else version)
    weights.forget()
