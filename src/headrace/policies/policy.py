"""The policy port: what a torch module must offer to act and to be trained. Three methods and two attributes.

    class MyPolicy(torch.nn.Module):
        noise = NoiseSpec("gumbel", 2)                 # what act() needs to sample one action
        largest_tile = 64                              # the batch size that acts best; see policies/tiles

        def act(self, obs, noise): ...                 # [N, ...], [N, width] | None -> actions [N, ...]; None: the mode
        def evaluate(self, obs, actions): ...          # -> Evaluation(log_prob [N], entropy [N], value [N])
        def value(self, obs): ...                      # -> [N]

Observations arrive raw, as the environment gave them (images as uint8). `act` runs in actors, on tiles, without
gradients, and should compute no more than acting needs; `evaluate` runs in the learner, for completion and training.
All randomness of `act` comes from `noise`: that is what makes rollouts repeatable anywhere.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from headrace.errors import UsageError
from headrace.policies.noise_spec import NoiseSpec

Module = nn.Module  # the name by which rooms that know no torch speak of one


class Evaluation(NamedTuple):
    """What the learner needs to know about a batch of actions."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor


class Evaluator(Protocol):
    """The half of a policy that completion asks."""

    def evaluate(self, obs: Tensor, actions: Tensor) -> Evaluation: ...

    def value(self, obs: Tensor) -> Tensor: ...


@runtime_checkable
class Policy(Protocol):
    """See the module docstring. An implementation is also a torch.nn.Module."""

    noise: NoiseSpec
    largest_tile: int

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor: ...

    def evaluate(self, obs: Tensor, actions: Tensor) -> Evaluation: ...

    def value(self, obs: Tensor) -> Tensor: ...


def state_size_of(module: Any) -> int:
    """How many numbers a policy remembers of an environment (policies/recurrent); 0: it remembers nothing."""
    size: int = getattr(module, "state_size", 0)
    return size


def require_policy(candidate: Any) -> None:
    """Refuse what is not a policy, naming what is missing."""
    if not isinstance(candidate, nn.Module):
        got = (
            f"the class {candidate.__name__}; pass an instance of it"
            if isinstance(candidate, type)
            else repr(candidate)
        )
        raise UsageError(f"policy: expected a policy name or a torch.nn.Module, got {got}")
    missing = [name for name in ("noise", "largest_tile", "act", "evaluate", "value") if not hasattr(candidate, name)]
    if missing:
        raise UsageError(
            f"{type(candidate).__name__} is no policy: it lacks {', '.join(missing)}; see docs/guides/your-policy.md"
        )
    if not isinstance(candidate.noise, NoiseSpec):
        raise UsageError(f"{type(candidate).__name__}.noise: expected a NoiseSpec, got {candidate.noise!r}")
