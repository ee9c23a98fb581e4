"""Which policy a run uses, and its size. Imports no torch: the command line reads it before anything heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.errors import UsageError, require_types

SIZED = ("MlpPolicy", "auto")  # their hidden layers are net_arch
BUILT_IN = (*SIZED, "CnnPolicy")  # any other name is a module of the user's


@dataclass(frozen=True)
class PolicyConfig:
    """Which policy, and its size."""

    policy: str = "MlpPolicy"
    """MlpPolicy, CnnPolicy, or auto (CnnPolicy for images)."""
    net_arch: tuple[int, ...] = (64, 64)
    """Hidden layers of the actor and of the critic (MlpPolicy)."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Of the hidden layers (MlpPolicy)."""
    log_std_init: float = 0.0
    """Initial log standard deviation of continuous actions."""
    tile: int = 0
    """Rows a policy acts on at once; 0 chooses by policy and n_envs."""

    def __post_init__(self) -> None:
        require_types(self, {int: ("tile",), float: ("log_std_init",)})
        if any(width < 1 for width in self.net_arch):
            raise UsageError(f"net_arch: expected whole numbers of at least 1, got {self.net_arch}")
