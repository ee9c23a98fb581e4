"""The start-up test of a policy of the user's own: what its methods return, before anything is built on it.

    made-up observations --act, evaluate, value--> shapes, types and devices as the policy port has them, or an error
                         --honesty--> act samples from the distribution that log_prob describes, or an error

Errors speak of the policy's own class and methods. Built-in policies are not looked at.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from headrace.errors import UsageError
from headrace.inference.honesty import require_honest
from headrace.inference.own_memory import at_one_state
from headrace.inference.tried import counts_of
from headrace.memory.spaces import Box, Dict, ObservationSpace, Space, as_seen, in_short, made_up_leaves, shape_of
from headrace.policies.networks import as_policy
from headrace.policies.noise import CounterNoise
from headrace.policies.policy import Evaluation, require_policy

_ROWS = 8
_GUIDE = "see docs/guides/your-policy.md"


def require_own_policy(module: nn.Module, observation: ObservationSpace, action: Space) -> None:
    """Raise unless a module does what a policy must do."""
    require_policy(module)
    if hasattr(module, "state_size"):
        module = at_one_state(module)
    Returned(module, observation, action).require()
    if not getattr(module, "skip_honesty_check", False):
        require_honest(copy.deepcopy(module), observation, action)


def require_fitting(module: Any, observation: ObservationSpace, action: Space) -> None:
    """Raise unless a built-in policy, passed as a module, was made for spaces like these."""
    fitting = observation, action
    for role, made_for, found in zip(
        ("observation", "action"), getattr(module, "_spaces", fitting), fitting, strict=True
    ):
        if in_short(made_for) != in_short(found):
            masks = "; with action_masks, pass the policy by its name" if isinstance(found, Dict) else ""
            raise UsageError(
                f"policy: this {type(module).__name__} was made for the {role} {in_short(made_for)}, the environment "
                f"has {in_short(found)}{masks}"
            )


class Returned:
    """What a policy's methods return for some made-up rows."""

    def __init__(self, module: nn.Module, observation: ObservationSpace, action: Space) -> None:
        self._policy: Any = copy.deepcopy(module)
        self._name, self._action = type(module).__name__, action
        rng, spec = np.random.default_rng(0), as_policy(module).noise
        self._obs = as_seen(
            {name: torch.from_numpy(leaf) for name, leaf in made_up_leaves(observation, rng, _ROWS).items()}
        )
        self._noise = torch.from_numpy(CounterNoise(spec, [(1, 2)]).draw(np.zeros(1, np.int64), _ROWS)[:, 0])

    def require(self) -> None:
        """Raise at the first thing that is not as it must be."""
        for name, parameter in self._policy.named_parameters():
            if is_lazy(parameter):
                advice = "pass an observation through its lazy layers before"
                self._refuse(f"parameter {name}", "a parameter with a shape", "one without", advice)
            if parameter.device.type != "cpu":
                self._refuse(f"parameter {name}", "the device cpu", str(parameter.device), "call .cpu() before")
        largest: Any = self._policy.largest_tile
        if type(largest) is not int or not 4 <= largest <= 1 << 16:
            self._refuse("largest_tile", "a whole number of at least 4, as 64", repr(largest), "it is a batch size")
        with torch.no_grad():
            acted = self._call("act", self._obs, self._noise)
            best = self._call("act", self._obs, None)
        for what, actions in (("act(obs, noise)", acted), ("act(obs, None)", best)):
            self._require_actions(what, actions)
        actions = acted.to(getattr(torch, self._action.dtype))
        evaluated = self._call("evaluate", self._obs, actions)
        if not isinstance(evaluated, Evaluation):
            self._refuse(
                "evaluate", "hr.Evaluation(log_prob=..., entropy=..., value=...)", _shown(evaluated),
                "names keep the three numbers apart",
            )  # fmt: skip
        for field in Evaluation._fields:
            self._require_row(f"evaluate(...).{field}", getattr(evaluated, field))
        if any(parameter.requires_grad for parameter in self._policy.parameters()) and not (
            evaluated.log_prob.requires_grad or evaluated.value.requires_grad
        ):
            self._refuse("evaluate", "log_prob and value with gradients", "none", "leave out no_grad and detach")
        with torch.no_grad():
            value = self._call("value", self._obs)
        self._require_row("value(obs)", value)
        beside = evaluated.value.detach()
        if not torch.allclose(value, beside, rtol=1e-3, atol=1e-3):
            self._refuse(
                "value(obs)", "the values that evaluate returns", f"others, by up to "
                f"{float((value - beside).abs().max()):.3g}", "both are the value of the same observation",
            )  # fmt: skip
        if hasattr(self._policy, "require_one_memory"):
            self._policy.require_one_memory(self._obs, self._noise, actions.dtype)

    def _call(self, name: str, *inputs: Any) -> Any:
        try:
            return getattr(self._policy, name)(*inputs)
        except Exception as error:
            given = ", ".join(_shown(one) for one in inputs)
            raise UsageError(
                f"{self._name}.{name} raised {type(error).__name__}: {error}. It was called with {given}; its noise is "
                f"{self._policy.noise}, actions have the shape {self._shape_words()}; {_GUIDE}"
            ) from error

    def _require_actions(self, what: str, actions: Any) -> None:
        shape = (_ROWS, *shape_of(self._action))
        self._require_tensor(what, actions, shape)
        is_float = isinstance(self._action, Box) and self._action.dtype.startswith("float")
        if actions.dtype.is_floating_point != is_float:
            kind = "numbers of a float type" if is_float else "choices of a whole-number type"
            self._refuse(what, kind, _shown(actions), "as the action space has them")
        if isinstance(self._action, Box):
            if not torch.isfinite(actions).all():
                self._refuse(what, "finite numbers", "NaN or infinities", "look at the initial weights")
            return
        most = torch.from_numpy(counts_of(self._action)).reshape(shape[1:])
        if (actions < 0).any() or (actions >= most).any():
            self._refuse(what, f"choices from 0, below {_shortly(most)}", _shortly(actions), "a `start` is added later")

    def _require_row(self, what: str, tensor: Any) -> None:
        self._require_tensor(what, tensor, (_ROWS,))
        if tensor.dtype not in (torch.float32, torch.float64):
            self._refuse(what, "float32", str(tensor.dtype).removeprefix("torch."), "convert it")
        if torch.isnan(tensor).any():
            self._refuse(what, "numbers", "NaN", "look at the formula and the initial weights")

    def _require_tensor(self, what: str, tensor: Any, shape: tuple[int, ...]) -> None:
        words = f"a tensor [N{''.join(f', {size}' for size in shape[1:])}] (N = {_ROWS} rows)"
        if not isinstance(tensor, Tensor):
            self._refuse(what, words, _shown(tensor), "return a tensor")
        if tensor.device.type != "cpu":
            self._refuse(what, "a tensor on the cpu", f"one on {tensor.device}", "call .cpu()")
        if tuple(tensor.shape) != shape:
            is_column = tuple(tensor.shape) == (*shape, 1)
            self._refuse(what, words, _shown(tensor), ".squeeze(-1) drops the last axis" if is_column else _GUIDE)

    def _shape_words(self) -> str:
        return f"[N{''.join(f', {size}' for size in shape_of(self._action))}]"

    def _refuse(self, what: str, expected: str, got: str, hint: str) -> None:
        raise UsageError(f"{self._name}.{what}: expected {expected}, got {got}; {hint}")


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, tuple):
        return f"a plain tuple of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _shortly(tensor: Tensor) -> str:
    return f"{int(tensor.min())} to {int(tensor.max())}" if tensor.numel() > 1 else str(int(tensor))
