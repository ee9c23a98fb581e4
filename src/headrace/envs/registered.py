"""Gymnasium's registry in other processes: the entry of a registered id goes along with the id.

    parent: gym.register(...) in a script, `import ale_py` ──entry_of──> pickled with the environment's spec
    worker: ──adopt──> the same entry in its own registry ──> gym.make

A worker imports neither the user's script nor what the script imported, so without this it would not know the id.
Does not know how environments are made (envs/spec).
"""

from __future__ import annotations

import copy
import importlib
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec as Entry


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
    if entry is not None:
        gym.registry[entry.id] = entry
