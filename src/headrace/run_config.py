"""A run's configuration: the rooms' small configs side by side. No room sees the whole.

CLI flags, TOML/JSON file, keyword arguments --> RunConfig --encode--> config.json, checkpoint --decode--> RunConfig
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from headrace.envs.spec import EnvSpec
from headrace.errors import UsageError
from headrace.launch.topology import TopologyConfig
from headrace.learning.config import PpoConfig
from headrace.policies.config import PolicyConfig


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run's bits, and where it runs."""

    env: EnvSpec
    seed: int
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    ppo: PpoConfig = field(default_factory=PpoConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UsageError(f"seed: expected 0 or more, got {self.seed}")


def encode(config: RunConfig) -> dict[str, Any]:
    """The configuration as JSON; functions by name, since a file can't hold them."""
    return {
        "env": config.env.encode(),
        "seed": config.seed,
        "policy": dataclasses.asdict(config.policy),
        "ppo": {
            key: {"callable": getattr(value, "__qualname__", repr(value))} if callable(value) else value
            for key, value in dataclasses.asdict(config.ppo).items()
        },
        "topology": dataclasses.asdict(config.topology),
    }


def decode(data: dict[str, Any], env: EnvSpec | None = None, **ppo: Any) -> RunConfig:
    """The inverse of `encode`. What was a function must be given again: `env`, or a schedule by its name."""
    saved = data["env"]
    parts = [saved["env"], *saved["wrappers"]]
    if env is None:
        if any(isinstance(part, dict) for part in parts):
            names = ", ".join(part["callable"] for part in parts if isinstance(part, dict))
            raise UsageError(
                f"the run's environment was built by functions ({names}), which a file can't hold; pass env=... again"
            )
        env = EnvSpec(saved["env"], saved["kwargs"], tuple(saved["wrappers"]), saved["action_repeat"])
    options = data["ppo"] | ppo
    for name, value in options.items():
        if isinstance(value, dict):
            raise UsageError(
                f"{name} was a function ({value['callable']}), which a file can't hold; pass {name}=... again"
            )
    policy = data["policy"] | {"net_arch": tuple(data["policy"]["net_arch"])}
    return RunConfig(
        env, data["seed"], PolicyConfig(**policy), PpoConfig(**options), TopologyConfig(**data["topology"])
    )
