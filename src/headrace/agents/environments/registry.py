"""Environments by name: the shipped ones, module:attribute of a user's own, and what a configuration says of a tag."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

from headrace.agents.environments.adapters import adapted
from headrace.agents.environments.bandit import Bandit
from headrace.agents.environments.countdown import Countdown
from headrace.agents.environments.lookup import Lookup
from headrace.agents.environments.sokoban import Sokoban
from headrace.agents.environments.text_env import TextEnv, TextEnvSpec
from headrace.errors import UsageError


def _frozen_lake(**options: Any) -> TextEnv:
    from headrace.agents.environments.frozen_lake import FrozenLake

    return FrozenLake(**options)


SHIPPED: dict[str, Callable[..., TextEnv]] = {
    "bandit": Bandit,
    "sokoban": Sokoban,
    "frozen_lake": _frozen_lake,
    "countdown": Countdown,
    "lookup": Lookup,
}
_TAGS = {
    "Bandit": "bandit",
    "Sokoban": "sokoban",
    "FrozenLake": "frozen_lake",
    "Countdown": "countdown",
    "Lookup": "lookup",
}
# What an episode of a shipped environment can't do more of.
_LIMITS: dict[str, dict[str, Any]] = {"bandit": {"max_actions_per_traj": 1}, "countdown": {"max_actions_per_traj": 1}}


def spec_of(tag: str, custom: Mapping[str, Any] | None = None) -> TextEnvSpec:
    """The environment of a tag: a shipped one by its name, or what `custom_envs` says of it."""
    settings = dict(custom or {})
    if not settings and tag not in _TAGS:
        close = difflib.get_close_matches(tag, _TAGS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"shipped are {', '.join(_TAGS)}"
        raise UsageError(f"tag {tag!r}: not in custom_envs and not shipped: {hint}")
    kind = str(settings.pop("env_type", None) or _TAGS.get(tag, ""))
    if not kind:
        raise UsageError(f"custom_envs.{tag}: expected env_type, one of {', '.join(SHIPPED)} or module:attribute")
    options = settings.pop("env_config", None) or {}
    if not isinstance(options, Mapping):
        raise UsageError(f"custom_envs.{tag}.env_config: expected names and values, got {options!r}")
    return TextEnvSpec(tag, factory_of(kind), dict(options), {**_LIMITS.get(kind, {}), **settings})


EnvSource = str | TextEnvSpec | Callable[..., Any]
EnvSources = EnvSource | Sequence[EnvSource] | Mapping[str, EnvSource]


def as_specs(envs: EnvSources) -> tuple[TextEnvSpec, ...]:
    """What users hand in: a tag, a class, a spec, several of them, or tags mapped to them."""
    if isinstance(envs, Mapping):
        return tuple(_as_spec(source, tag) for tag, source in envs.items())
    if isinstance(envs, str | TextEnvSpec) or callable(envs):
        return (_as_spec(envs),)
    if not isinstance(envs, Iterable):
        raise UsageError(f"envs: expected tags, classes or TextEnvSpecs, got {envs!r}")
    return tuple(_as_spec(source) for source in envs)


def _as_spec(source: EnvSource, tag: str | None = None) -> TextEnvSpec:
    if isinstance(source, TextEnvSpec):
        return source if tag is None else replace(source, tag=tag)
    if isinstance(source, str):
        if source in _TAGS:
            spec = spec_of(source)
            return spec if tag is None else replace(spec, tag=tag)
        return TextEnvSpec(tag or source, factory_of(source)) if ":" in source else spec_of(source)
    if callable(source):
        return TextEnvSpec(tag or str(getattr(source, "__name__", source)), partial(adapted, source))
    raise UsageError(f"envs: expected tags, classes or TextEnvSpecs, got {source!r}")


def factory_of(kind: str) -> Callable[..., TextEnv]:
    """By name, or module:attribute."""
    if kind in SHIPPED:
        return SHIPPED[kind]
    if ":" not in kind:
        close = difflib.get_close_matches(kind, SHIPPED, n=1)
        hint = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(SHIPPED)} or module:attribute"
        raise UsageError(f"env_type {kind!r}: {hint}")
    module, _, attribute = kind.partition(":")
    if not module or module.startswith(".") or not attribute:
        raise UsageError(f"env_type {kind!r}: expected module:attribute, as in my_package.envs:MyEnv")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"env_type {kind!r}: {error}") from error
    return partial(adapted, found)
