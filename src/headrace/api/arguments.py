"""Keyword arguments, as users give them, to the parts of a RunConfig.

PPO(...), IMPALA(...), Collector(...) --> EnvSpec · PolicyConfig · TopologyConfig · seed
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import gymnasium as gym

from headrace.collecting.topology import TopologyConfig
from headrace.envs.instances import spec_of
from headrace.envs.spec import EnvSource, EnvSpec, Wrapper
from headrace.errors import UsageError
from headrace.policies.config import PolicyConfig
from headrace.policies.policy import Module


def env_spec(
    env: EnvSource | EnvSpec | gym.Env[Any, Any],
    kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Wrapper] = (),
    action_repeat: int = 1,
) -> EnvSpec:
    """The environment and how it is wrapped."""
    if isinstance(env, gym.Env):
        if kwargs:
            raise UsageError(
                "env_kwargs: an instance was made already; pass its id, or what makes one, with env_kwargs"
            )
        spec = spec_of(env)
        return replace(spec, wrappers=(*spec.wrappers, *wrappers), action_repeat=action_repeat)
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
    require_known("policy_kwargs", options, [field.name for field in fields(PolicyConfig) if field.name != "policy"])
    return PolicyConfig(policy if isinstance(policy, str) else type(policy).__name__, **options)


def place(**options: Any) -> TopologyConfig:
    """Where things run; numbers may be given where the command line takes text, and None for the default."""
    options = {name: value for name, value in options.items() if value is not None}
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


def require_known(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Refuse options that there are not, with the one that was meant."""
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"expected some of {', '.join(sorted(known))}"
            raise UsageError(f"{what}: unknown option {name}: {hint}")


def require_device(device: Any) -> None:
    """The one that there is."""
    if str(device) not in ("auto", "cpu"):
        raise UsageError(
            f"device: expected cpu or auto, got {str(device)!r}; training on other devices is not built yet"
        )


def next_folder(folder: Path, name: str) -> Path:
    """The next of <folder>/<name>_1, <name>_2 ..., as Stable-Baselines3 numbers them."""
    taken = [path.name.removeprefix(f"{name}_") for path in folder.glob(f"{name}_*")]
    return folder / f"{name}_{1 + max((int(one) for one in taken if one.isdecimal()), default=0)}"
