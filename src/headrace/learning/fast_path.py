"""Which policies take the fast path: the closed form where it knows the policy, autograd for everything else.

    module, `gradients` option --gradients_of--> how a minibatch becomes a gradient
    module --Evaluators.of--> how log-probabilities and values are computed for completion

Both choose alike, so that an update's first ratio is 1. Chosen once for each module. Does not know any arithmetic.
"""

from __future__ import annotations

from torch import nn

from headrace.errors import UsageError
from headrace.learning.closed_form import ClosedFormEvaluator, ClosedFormGradients, categorical
from headrace.learning.config import PpoConfig
from headrace.learning.gaussian_form import gaussian
from headrace.learning.ppo_loss import AutogradGradients, Gradients
from headrace.learning.sequences import RecurrentGradients
from headrace.policies.distributions import Categorical, DiagonalGaussian
from headrace.policies.networks import MlpPolicy, as_policy
from headrace.policies.plain_mlp import KINDS
from headrace.policies.policy import Evaluator, state_size_of
from headrace.weights.flat import FlatParameters


def supports(module: nn.Module) -> bool:
    """Whether the closed form knows this policy. Subclasses may have changed anything, so they are not taken."""
    return (
        type(module) is MlpPolicy
        and next(module.parameters()).device.type == "cpu"
        and isinstance(module.distribution, Categorical | DiagonalGaussian)
        and module.activation in KINDS
        and module.is_even  # its memory is for two towers alike
    )


def gradients_of(flat: FlatParameters, config: PpoConfig) -> Gradients:
    """How minibatches of this policy become gradients."""
    is_known = supports(flat.module)
    if config.gradients == "closed_form" and not is_known:
        raise UsageError(
            f"gradients=closed_form: expected MlpPolicy with discrete or continuous actions, {' or '.join(KINDS)}, and "
            f"the same layers for actor and critic, got {_described(flat.module)}; use auto"
        )
    if state_size_of(flat.module):
        return RecurrentGradients(flat)
    return closed_form(flat) if is_known and config.gradients != "autograd" else AutogradGradients(flat)


def closed_form(flat: FlatParameters) -> ClosedFormGradients:
    """With the loss of the policy's head."""
    return ClosedFormGradients(flat, gaussian if getattr(flat.module, "log_std", None) is not None else categorical)


def _described(module: nn.Module) -> str:
    name = type(module).__name__
    return f"{name} ({module.activation})" if type(module) is MlpPolicy else name


class Evaluators:
    """The evaluator of every module that completes batches; made once, it reads parameters in place."""

    def __init__(self, is_closed_form: bool = True) -> None:
        self._is_closed_form = is_closed_form
        self._made: dict[int, tuple[nn.Module, Evaluator]] = {}

    def of(self, module: nn.Module) -> Evaluator:
        """As training computes them, so that the first ratio is 1."""
        if id(module) not in self._made:
            is_closed = self._is_closed_form and supports(module)
            evaluator = ClosedFormEvaluator(module) if is_closed else as_policy(module)  # type: ignore[arg-type]
            self._made[id(module)] = (module, evaluator)
        return self._made[id(module)][1]
