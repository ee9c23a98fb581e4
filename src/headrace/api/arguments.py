"""Keyword arguments, as users give them, to the parts of a RunConfig.

PPO(...), IMPALA(...), Collector(...) --> EnvSpec · PolicyConfig · TopologyConfig · seed
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.collecting.topology import TopologyConfig
from headrace.envs.spec import EnvSource, EnvSpec
from headrace.errors import UsageError
from headrace.policies.config import PolicyConfig
from headrace.policies.policy import Module


def env_spec(
    env: EnvSource | EnvSpec,
    kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[EnvSource] = (),
    action_repeat: int = 1,
) -> EnvSpec:
    """The environment and how it is wrapped."""
    if not isinstance(env, EnvSpec):
        return EnvSpec(env, dict(kwargs or {}), tuple(wrappers), action_repeat)
    if kwargs or wrappers or action_repeat != 1:
        raise UsageError("env: an EnvSpec has its own kwargs, wrappers and action_repeat; give them there")
    return env


def with_env(saved: dict[str, Any], env: EnvSource) -> EnvSpec:
    """Another environment, wrapped as the saved one was."""
    lost = [wrapper["callable"] for wrapper in saved["wrappers"] if not isinstance(wrapper, str)]
    if lost:
        raise UsageError(
            f"the run's environment had wrappers ({', '.join(lost)}), which a file can't hold; "
            f"pass env=EnvSpec(..., wrappers=...)"
        )
    return EnvSpec(env, saved["kwargs"], tuple(saved["wrappers"]), saved["action_repeat"])


def policy_config(policy: str | Module, kwargs: Mapping[str, Any] | None = None) -> PolicyConfig:
    """A policy by name with SB3's policy_kwargs, or the name of a module of the user's own."""
    options = dict(kwargs or {})
    if "net_arch" in options:
        sizes = options["net_arch"]
        if not isinstance(sizes, Sequence) or not all(isinstance(size, int) and size > 0 for size in sizes):
            raise UsageError(f"net_arch: expected the sizes of the hidden layers, as in [64, 64], got {sizes!r}")
        options["net_arch"] = tuple(sizes)
    try:
        return PolicyConfig(policy if isinstance(policy, str) else type(policy).__name__, **options)
    except TypeError as error:
        known = ", ".join(name for name in PolicyConfig.__dataclass_fields__ if name != "policy")
        raise UsageError(f"policy_kwargs: {error}; expected some of {known}") from error


def place(**options: Any) -> TopologyConfig:
    """Where things run; numbers may be given where the command line takes text."""
    for name in ("workers", "publish_every"):
        if name in options:
            options[name] = str(options[name])
    return TopologyConfig(**options)


def own_module(policy: str | Module) -> Module | None:
    """The user's module; None if the policy was named."""
    return None if isinstance(policy, str) else policy


def drawn_seed(seed: int | None) -> int:
    """A seed that was not given is drawn, and recorded with the configuration."""
    return int.from_bytes(os.urandom(4), "little") if seed is None else seed
