"""A policy of the user's own that remembers, as one that does not: with the same state at every row.

    act(obs, noise, state) -> actions, state      --at_one_state-->      act(obs, noise) -> actions

So the tests of any policy (own_policy, honesty) are its tests, too. What comes back as state is looked at here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headrace.errors import UsageError
from headrace.policies.policy import Evaluation

_GUIDE = "see docs/guides/memory.md"
_MOST = 1 << 20


def at_one_state(module: Any) -> nn.Module:
    """The module behind the port of a policy without a memory, under its own name."""
    size = module.state_size
    if type(size) is not int or not 1 <= size <= _MOST:
        raise UsageError(
            f"{type(module).__name__}.state_size: expected a whole number of at least 1, got {size!r}; {_GUIDE}"
        )
    kind: type[_AtOneState] = type(type(module).__name__, (_AtOneState,), {})
    return kind(module)


class _AtOneState(nn.Module):
    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module, self.noise, self.largest_tile = module, module.noise, module.largest_tile
        self.skip_honesty_check = getattr(module, "skip_honesty_check", False)
        self._state = torch.empty(1, module.state_size).uniform_(-0.5, 0.5, generator=torch.Generator().manual_seed(0))

    def act(self, obs: Any, noise: Tensor | None) -> Tensor:
        """Actions."""
        rows = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        actions: Tensor = self._checked("act", self.module.act(obs, noise, self._states(rows)), rows)
        return actions

    def evaluate(self, obs: Any, actions: Tensor) -> Evaluation:
        """The same of evaluate."""
        said = self.module.evaluate(obs, actions, self._states(len(actions)))
        evaluation: Evaluation = self._checked("evaluate", said, len(actions))
        return evaluation

    def value(self, obs: Any) -> Tensor:
        """Values."""
        rows = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        value: Tensor = self.module.value(obs, self._states(rows))
        return value

    def require_one_memory(self, obs: Any, noise: Tensor, dtype: torch.dtype) -> None:
        """Refuse an act and an evaluate that remember different things of the same rows."""
        rows = len(noise)
        with torch.no_grad():
            actions, acted = self.module.act(obs, noise, self._states(rows))
            _, evaluated = self.module.evaluate(obs, actions.to(dtype), self._states(rows))
        gap = float((acted - evaluated).abs().max())
        if not torch.allclose(acted, evaluated, rtol=1e-3, atol=1e-3, equal_nan=True):
            raise UsageError(
                f"{type(self).__name__}: act and evaluate remember different things. For the same observations, "
                f"actions and state, the states that they return differ by up to {gap:.3g}. "
                f"headrace acts with the one and learns with the other; {_GUIDE}"
            )

    def _states(self, rows: int) -> Tensor:
        return self._state.repeat(rows, 1)

    def _checked(self, name: str, returned: Any, rows: int) -> Any:
        if not isinstance(returned, tuple) or isinstance(returned, Evaluation) or len(returned) != 2:
            raise TypeError(f"{name}: expected two results, the second of them the state after the row")
        first, state = returned
        size, is_tensor = (rows, self.module.state_size), isinstance(state, Tensor)
        if not is_tensor or tuple(state.shape) != size or state.dtype != torch.float32:
            got = f"{state.dtype} of shape {tuple(state.shape)}" if is_tensor else type(state).__name__
            raise TypeError(f"{name}: expected a state of float32 and shape {size}, got {got}")
        return first
