"""Which policy a run uses, and its size. Imports no torch: the command line reads it before anything heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
