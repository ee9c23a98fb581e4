"""The algorithm port: what turns a batch into changed parameters. Three methods, no base class.

    learn(batch, moment) -> record          changes the module's parameters in place
    state() -> counts, tensors              restore(...): goes on from them, bit for bit

Everything between a batch as it was collected and the new parameters is an algorithm's own: completion with the policy
that acted, targets, epochs, replay, target networks. `Moment` is all it knows of the run. Its state
is counts and tensors, by name: a checkpoint holds nothing else. Restored to a fresh state, it begins anew.
An algorithm lives in the file of its config's name (learning/ppo.py). There `build(flat, config, seed)` makes it; where
another policy acts than the one that is configured, as one that explores, `acting(module, observation, action, config)`
gives that one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from headrace.errors import CheckpointError


@dataclass(frozen=True)
class Moment:
    """Where a run is when it learns."""

    update: int
    """Updates before this one."""
    version: int
    """The latest published version."""
    is_present: bool
    """Whether the module's parameters are that version's: they are not if it publishes less often than it learns."""
    progress_remaining: float
    """From 1 at the start to 0 at the end; schedules follow it."""
    acted: Callable[[int], nn.Module]
    """The policy that acted, by version; for reading, until another version is asked for."""


def count_of(state: dict[str, Any], name: str) -> int:
    """The one number that an algorithm's state holds under this name; refused if the state is another one."""
    if set(state) != {name}:
        got = ", ".join(state) or "nothing"
        raise CheckpointError(f"state.json: algorithm: expected {name}, got {got[:200]}; use an earlier checkpoint")
    return int(state[name])


def require_moments(tensors: dict[str, Tensor], vector: Tensor) -> None:
    """Refuse what is not the state of Adam over as many parameters; nothing at all is one, before the first step."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    flat = tuple(vector.shape)
    if tensors and shapes != {"exp_avg": flat, "exp_avg_sq": flat, "step": ()}:
        raise CheckpointError(
            f"the optimiser's state does not fit this policy: expected exp_avg and exp_avg_sq of {flat[0]:,} "
            f"numbers and step, got {str(shapes)[:200]}; use another checkpoint"
        )
    if tensors and not 0 <= float(tensors["step"]) < 1 << 53:
        raise CheckpointError(f"the optimiser's step: expected a count, got {float(tensors['step'])}")


class Algorithm(Protocol):
    """See the module docstring. `summary` says in a few words how it learns."""

    summary: str
    threads: int  # of torch, while it learns

    def learn(self, batch: Any, moment: Moment) -> dict[str, float]: ...

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]: ...

    def restore(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None: ...
