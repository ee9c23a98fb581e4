"""Gymnasium's registry in other processes: the entry of a registered id goes along with the id.

    parent: gym.register(...) in a script, `import ale_py` ──known_of──> pickled with the environment's spec
    worker: ──adopt──> the same entry in its own registry ──> gym.make

A worker imports neither the user's script nor what the script imported, so without this it would not know the id.
Code of the user's (a function, a class) may ask gym.make for any id: it gets all entries that are not Gymnasium's own.
Packages that register a family of ids (ALE/..., MiniGrid-...) are imported here, and only for such an id.
Does not know how environments are made (envs/spec).
"""

from __future__ import annotations

import copy
import importlib
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import cloudpickle
import gymnasium as gym
from gymnasium.envs.registration import EnvSpec as Entry

from headrace.errors import UsageError

_FAMILIES = {"ALE/": ("ale_py", "atari"), "MiniGrid-": ("minigrid", "minigrid"), "BabyAI-": ("minigrid", "minigrid")}
"""How ids begin whose package registers them when it is imported: that package, and the extra that brings it."""
_GYMNASIUMS = "gymnasium."  # modules whose ids every process has
_AGAIN = r".*Overriding environment .* already in registry"  # says Gymnasium where the package is imported after all

Known = tuple[Entry | None, list[bytes]]
"""The entry of an id, and further ones that the environment's code may ask for."""


class _Packing(threading.local):
    """Whether this thread is at it: what an entry refers to may hold an environment's spec again."""

    is_on = False


_packing = _Packing()


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


def known_of(env: Any) -> Known:
    """What another process must know to make this environment: an id, or code of the user's."""
    entry = gym.registry.get(env) if isinstance(env, str) else None
    is_code = entry is None or _is_of_script(entry)
    return None if entry is None else _resolved(entry), _others() if is_code and not _packing.is_on else []


def adopt(known: Known) -> None:
    """The same id means the same here as where the entry comes from."""
    entry, others = known
    if entry is not None:
        if isinstance(entry.entry_point, str):
            with suppress(Exception):  # it will be raised again, and explained, where the environment is made
                _import(
                    entry.entry_point.partition(":")[0]
                )  # now: it may register the id itself, and warn if it's there
        gym.registry[entry.id] = entry
    new = [one for one in _unpacked(others) if one.id not in gym.registry]
    gym.registry.update({one.id: one for one in new})
    if new:
        warnings.filterwarnings("ignore", _AGAIN, UserWarning)


def hush(module: str) -> None:
    """Every process that makes an Atari environment would print ALE's name and version."""
    ale = sys.modules.get("ale_py")
    if module.startswith("ale_py") and ale is not None:
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)


def _module(entry: Entry) -> str:
    """Where its class or function is."""
    point = entry.entry_point
    return point.partition(":")[0] if isinstance(point, str) else str(getattr(point, "__module__", ""))


def _is_of_script(entry: Entry) -> bool:
    """Whether it names what is in the user's script, or is a function or class itself."""
    return not isinstance(entry.entry_point, str) or _module(entry) == "__main__"


def _resolved(entry: Entry) -> Entry:
    """An entry point in the user's script is a name that no other process can look up: the object itself goes along."""
    if not isinstance(entry.entry_point, str):
        return entry
    module, _, attribute = entry.entry_point.partition(":")
    found = getattr(importlib.import_module(module), attribute, None) if module == "__main__" else None
    if found is None:
        return entry
    resolved = copy.copy(entry)
    resolved.entry_point = found
    return resolved


def _others() -> list[bytes]:
    """All that is not Gymnasium's own. What can't be pickled is left out: most of it is never asked for."""
    every = [one for one in gym.registry.values() if not _module(one).startswith(_GYMNASIUMS)]
    of_script = [[_resolved(one)] for one in every if _is_of_script(one)]
    of_packages = [one for one in every if not _is_of_script(one)]
    packed, _packing.is_on = [], True
    try:
        for group in ([of_packages] if of_packages else []) + of_script:
            with suppress(Exception):
                packed.append(cloudpickle.dumps(group))
    finally:
        _packing.is_on = False
    return packed


def _unpacked(packed: list[bytes]) -> Iterator[Entry]:
    for data in packed:
        with suppress(Exception):  # a package that only the parent can import
            yield from cloudpickle.loads(data)


def _import(module: str) -> None:
    importlib.import_module(module)
    hush(module)
