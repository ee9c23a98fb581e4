"""Configuration files of LLM rollouts: a name becomes YAML sections, each after those that it builds on.

    name -> the file, one of --config-dir, or a shipped one -> (defaults:) parents first -> sections as data

Files are read within limits and say what they like: which keys exist is config.py's matter.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from importlib.resources import files
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.files import read_named, require_bounded

_MAX_BYTES, _MAX_VALUES = 1 << 20, 100_000  # of a file; what an alias stands for counts each time


def names(folder: Path | None = None) -> list[str]:
    """Configurations that are there."""
    shipped = [one.name for one in files("headrace.agents").joinpath("configs").iterdir()]
    own = [path.name for path in folder.glob("*.yaml")] if folder is not None and folder.is_dir() else []
    return sorted({one.removesuffix(".yaml") for one in [*shipped, *own] if one.endswith(".yaml")})


def sections(
    name: str, folder: Path | None, needless: Collection[str] = (), above: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """The file and, before it, those it builds on; of the needless ones only those that are there."""
    if name in above:
        raise UsageError(f"{name}: its defaults lead back to it: {' -> '.join((*above, name))}")
    if name in needless and above and name not in names(folder):
        return []
    section = _read(name, folder)
    below = section.pop("defaults", None) or []
    below = [below] if isinstance(below, str) else below
    if not isinstance(below, list) or not all(isinstance(one, str | dict) for one in below):
        raise UsageError(f"{name}: defaults: expected the name of a configuration, or several, got {below!r}")
    # a mapping is Hydra's way to fill a section of a trainer's from another folder
    parents = [one for one in below if isinstance(one, str) and one != "_self_"]
    for parent in parents:
        if not re.fullmatch(r"[\w-]+", parent):  # a path would read a file that the user did not name
            raise UsageError(f"{name}: defaults: expected names such as base, got {parent[:80]!r}")
    return [one for parent in parents for one in sections(parent, folder, needless, (*above, name))] + [section]


def _read(name: str, folder: Path | None) -> dict[str, Any]:
    import yaml

    candidates = [Path(name)] if name.endswith((".yaml", ".yml")) else []
    if folder is not None:
        candidates.append(folder / f"{name}.yaml")
    path = next((one for one in candidates if one.is_file()), None)
    try:
        if path is not None:
            text = read_named(path, _MAX_BYTES).decode()
        else:
            text = files("headrace.agents").joinpath("configs", f"{name}.yaml").read_text()
        section = yaml.safe_load(text) or {}
        require_bounded(section, _MAX_VALUES)
    except OSError as error:
        close = difflib.get_close_matches(name, names(folder), n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names(folder))}"
        where = "" if folder is not None else "; --config-dir names a folder of your own"
        raise UsageError(f"--config-name {name}: no such configuration: {hint}{where}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path or name}: not YAML: {error}") from error
    if not isinstance(section, dict):
        raise UsageError(f"{path or name}: expected keys and values, got {type(section).__name__}")
    return section
