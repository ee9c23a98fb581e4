"""A run's configuration: the rooms' small configs side by side, and how long a session of it lasts.

CLI flags, TOML/JSON file, keyword arguments --> RunConfig --encode--> config.json, checkpoint --decode--> RunConfig

No room sees the whole. Imports no torch: the command line reads it before anything heavy.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.collecting.topology import TopologyConfig
from headrace.envs.masks import masked
from headrace.envs.spec import EnvSpec, jsonable
from headrace.errors import UsageError, require_types
from headrace.learning.config import ALGORITHMS, AlgorithmConfig, PpoConfig
from headrace.policies.config import Extractors, PolicyConfig

CLASS, KWARGS = "features_extractor_class", "features_extractor_kwargs"


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run's bits, and where it runs."""

    env: EnvSpec
    seed: int
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    algorithm: AlgorithmConfig = field(default_factory=PpoConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    extractors: Extractors | None = None

    def __post_init__(self) -> None:
        seed: Any = self.seed
        if not isinstance(seed, int) or seed < 0:
            raise UsageError(f"seed: expected a whole number of at least 0, got {seed!r}")
        if self.policy.action_masks:
            object.__setattr__(self, "env", masked(self.env))
        if self.algorithm.norm_reward and self.topology.batch == "first_come":
            raise UsageError("norm_reward: needs a batch of every environment; use batch=every_shard")


@dataclass(frozen=True)
class SessionConfig:
    """How long to train, and what to keep of it."""

    total_timesteps: int = 100_000
    """Environment steps to train for; the last update is finished, so it may take a few more."""
    tags: Literal["sb3", "cleanrl", "both"] = "sb3"
    """Names of the metrics in TensorBoard."""
    log_interval: int = 1
    """Updates between two entries of the metrics."""
    checkpoint_every: int = 100_000
    """Steps between checkpoints; 0 for one at the end only."""
    keep_checkpoints: int = 3
    """How many of them to keep; 0 for all."""
    keep_episodes_mb: int = 256
    """Megabytes of recorded episodes to keep for headrace replay, the newest ones; 0 for none."""
    eval_every: int = 0
    """Steps between evaluations; 0 for none."""
    n_eval_episodes: int = 10
    """Episodes of an evaluation."""
    stop_reward: float | None = None
    """Stop when an evaluation's mean reward reaches this; exit code 3 if it never does."""
    check_episodes: int = 3
    """Episodes of environment 0 that a process of low priority plays again, to see whether they repeat; 0 for none."""
    stall_after_s: float = 120.0
    """Seconds without an update after which log.txt gets the stack of every thread; the run goes on. 0 for never."""

    def __post_init__(self) -> None:
        require_types(self, {float: ("stop_reward", "stall_after_s")})
        for name, least in (
            ("total_timesteps", 1),
            ("log_interval", 1),
            ("checkpoint_every", 0),
            ("keep_checkpoints", 0),
            ("keep_episodes_mb", 0),
            ("eval_every", 0),
            ("n_eval_episodes", 1),
            ("check_episodes", 0),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise UsageError(f"{name}: expected a whole number of at least {least}, got {value!r}")
        stall_after_s: Any = self.stall_after_s
        if stall_after_s is None or not 0 <= stall_after_s <= 1e6:
            raise UsageError(f"stall_after_s: expected 0 to 1,000,000 seconds, got {stall_after_s!r}")
        if self.stop_reward is not None and self.eval_every == 0:
            raise UsageError("stop_reward needs evaluations to look at: set eval_every as well")
        if self.tags not in ("sb3", "cleanrl", "both"):
            raise UsageError(f"tags: expected sb3, cleanrl or both, got {self.tags!r}")


def encode(config: RunConfig) -> dict[str, Any]:
    """The configuration as JSON; functions by name, since a file can't hold them."""
    return {
        "env": config.env.encode(),
        "seed": config.seed,
        "policy": dataclasses.asdict(config.policy) | _encoded(config.extractors),
        "algorithm": {"name": config.algorithm.name}
        | {
            key: {"callable": getattr(value, "__qualname__", repr(value))} if callable(value) else value
            for key, value in dataclasses.asdict(config.algorithm).items()
        },
        "topology": dataclasses.asdict(config.topology),
    }


def decode(
    data: dict[str, Any], env: EnvSpec | None = None, extractors: Extractors | None = None, **options: Any
) -> RunConfig:
    """The inverse of `encode`. What was a function must be given again: `env`, or a schedule by its name.

    `extractors` take the place of the saved ones. Classes that those name are not imported here.
    """
    env = decode_env(data["env"]) if env is None else env
    values = data["algorithm"] | options
    kind = ALGORITHMS.get(values.pop("name"))
    if kind is None:
        raise UsageError(f"algorithm: expected one of {', '.join(ALGORITHMS)}, got {data['algorithm']['name']!r}")
    for name in options:
        if name not in kind.__dataclass_fields__:
            raise UsageError(f"load: {name} is no option of {kind.name} that can change; leave it out")
    for name, value in values.items():
        if isinstance(value, dict):
            raise UsageError(
                f"{name} was a function ({value['callable']}), which a file can't hold; pass {name}=... again"
            )
    policy, place = policy_of(data["policy"]), TopologyConfig(**data["topology"])
    return RunConfig(env, data["seed"], policy, kind(**values), place, extractors or extractors_of(data["policy"]))


def policy_of(saved: dict[str, Any]) -> PolicyConfig:
    """The policy of a saved configuration."""
    saved = {name: value for name, value in saved.items() if name not in (CLASS, KWARGS)}
    lists = {name: tuple(value) for name, value in saved.items() if isinstance(value, list)}
    return PolicyConfig(**saved | lists)


def extractors_of(saved: dict[str, Any]) -> Extractors | None:
    """The feature extractors of a saved configuration, by name."""
    if CLASS not in saved:
        return None
    lost = [one["callable"] for one in saved[CLASS].values() if not isinstance(one, str)]
    lost += [repr(value["object"]) for one in saved[KWARGS].values() for value in one.values() if is_object(value)]
    if lost:
        raise UsageError(
            f"the policy's {CLASS} or {KWARGS} ({', '.join(lost)}) can't be found by a name; pass policy_kwargs=... "
            f"again"
        )
    return Extractors(saved[CLASS], saved[KWARGS])


def _encoded(extractors: Extractors | None) -> dict[str, Any]:
    """By leaf; the name "" is that of whole observations. A class that can't be imported by its name is marked."""
    if extractors is None:
        return {}
    return {
        CLASS: {leaf: _named(one) for leaf, one in extractors.classes.items()},
        KWARGS: {leaf: jsonable(one) for leaf, one in extractors.kwargs.items()},
    }


def _named(kind: Any) -> Any:
    if isinstance(kind, str):
        return kind
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return f"{kind.__module__}:{kind.__qualname__}" if found is kind else {"callable": kind.__qualname__}


def is_object(value: Any) -> bool:
    """Whether it stands for what a file can't hold."""
    return isinstance(value, dict) and set(value) == {"object"}


def decode_env(saved: dict[str, Any]) -> EnvSpec:
    """The environment of a saved configuration, if a file can hold it."""
    lost = [key for key, value in saved["kwargs"].items() if is_object(value)]
    if lost:
        raise UsageError(
            f"the environment's kwargs {', '.join(lost)} were objects that a file can't hold; pass "
            f"env=hr.EnvSpec(...) again"
        )
    parts = [saved["env"], *saved["wrappers"]]
    if any(isinstance(part, dict) for part in parts):
        names = ", ".join(part["callable"] for part in parts if isinstance(part, dict))
        raise UsageError(
            f"the run's environment was built by functions ({names}), which a file can't hold; pass env=... again"
        )
    wrappers = tuple(saved["wrappers"])
    return EnvSpec(saved["env"], saved["kwargs"], wrappers, saved["action_repeat"], saved["seed_bits"])
