"""Gymnasium's registry in other processes: the entry of a registered id goes along with the id.

    parent: gym.register(...) in a script, `import ale_py` ──entry_of──> pickled with the environment's spec
    worker: ──adopt──> the same entry in its own registry ──> gym.make

A worker imports neither the user's script nor what the script imported, so without this it would not know the id.
Packages that register a family of ids (ALE/..., MiniGrid-...) are imported here, and only for such an id.
Does not know how environments are made (envs/spec).
"""

from __future__ import annotations

import copy
import importlib
import sys
from contextlib import suppress
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec as Entry

from headrace.errors import UsageError

_FAMILIES = {"ALE/": ("ale_py", "atari"), "MiniGrid-": ("minigrid", "minigrid"), "BabyAI-": ("minigrid", "minigrid")}
"""How ids begin whose package registers them when it is imported: that package, and the extra that brings it."""


def register_family(env_id: str) -> None:
    """Import the package that registers an id, if it is known and the id is not registered here yet."""
    found = next((family for start, family in _FAMILIES.items() if env_id.startswith(start)), None)
    if found is None or env_id in gym.registry:
        return
    module, extra = found
    try:
        _import(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise UsageError(
            f"environment {env_id!r} needs the package {module}: pip install 'headrace[{extra}]'"
        ) from error


def entry_of(env: Any) -> Entry | None:
    """The registry's entry of an id; None if it is none, or not registered here.

    An entry point in the user's script is a name that another process can't look up: the object itself goes along.
    """
    entry = gym.registry.get(env) if isinstance(env, str) else None
    if entry is None or not isinstance(entry.entry_point, str):
        return entry
    module, _, attribute = entry.entry_point.partition(":")
    found = getattr(importlib.import_module(module), attribute, None) if module == "__main__" else None
    if found is None:
        return entry
    resolved = copy.copy(entry)
    resolved.entry_point = found
    return resolved


def adopt(entry: Entry | None) -> None:
    """The same id means the same here as where the entry comes from."""
    if entry is None:
        return
    if isinstance(entry.entry_point, str):
        with suppress(Exception):  # it will be raised again, and explained, where the environment is made
            _import(entry.entry_point.partition(":")[0])  # now: it may register the id itself, and warn if it is there
    gym.registry[entry.id] = entry


def hush(module: str) -> None:
    """Every process that makes an Atari environment would print ALE's name and version."""
    ale = sys.modules.get("ale_py")
    if module.startswith("ale_py") and ale is not None:
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)


def _import(module: str) -> None:
    importlib.import_module(module)
    hush(module)
