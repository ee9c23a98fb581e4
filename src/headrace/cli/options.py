"""Options as users type them: CleanRL's names beside SB3's, and defaults from a file.

argv --translate--> SB3's names      FILE (.toml, or a run's config.json) --file_defaults--> option defaults
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from headrace.errors import UsageError

CLEANRL_NAMES = {
    "num-envs": "n-envs",
    "num-steps": "n-steps",
    "update-epochs": "n-epochs",
    "minibatch-size": "batch-size",
    "clip-coef": "clip-range",
    "norm-adv": "normalize-advantage",
    "env-id": "env",
}

Options = TypeVar("Options")


def translate(argv: list[str]) -> list[str]:
    """Underscores to dashes in option names, CleanRL's names to ours."""
    translated = []
    for argument in argv:
        if not argument.startswith("--"):
            translated.append(argument)
            continue
        name, equals, value = argument[2:].partition("=")
        name = name.replace("_", "-")
        negated = name.startswith("no-")
        bare = name.removeprefix("no-")
        bare = CLEANRL_NAMES.get(bare, bare)
        translated.append(f"--{'no-' if negated else ''}{bare}{equals}{value}")
    return translated


def with_file(options: Options, path: Path) -> Options:
    """The options with the values of a file; unknown keys are refused with a suggestion."""
    try:
        text = path.read_text()
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"--config {path}: can't be read: {error}") from error
    except ValueError as error:
        raise UsageError(f"--config {path}: expected TOML (or JSON in a .json file): {error}") from error
    for key, value in _flat(data).items():
        options = _set(options, CLEANRL_NAMES.get(key.replace("_", "-"), key).replace("-", "_"), value, path)
    return options


def _flat(data: dict[str, Any]) -> dict[str, Any]:
    """A run's config.json is nested by room; keys are unique across rooms."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if key == "env" and isinstance(value, dict):
            flat |= {"env": value["env"], "env_kwargs": json.dumps(value["kwargs"])}
            flat |= {"wrappers": tuple(value["wrappers"]), "action_repeat": value["action_repeat"]}
        elif isinstance(value, dict) and key in ("policy", "ppo", "topology", "session"):
            flat |= _flat(value)
        elif isinstance(value, dict) and key == "env_kwargs":
            flat[key] = json.dumps(value)
        else:
            flat[key] = value
    return flat


def _set(options: Options, key: str, value: Any, path: Path) -> Options:
    assert dataclasses.is_dataclass(options)
    assert not isinstance(options, type)
    names = [field.name for field in dataclasses.fields(options)]
    nested = {name: getattr(options, name) for name in names if dataclasses.is_dataclass(getattr(options, name))}
    if key in names and key not in nested:
        return dataclasses.replace(options, **{key: tuple(value) if isinstance(value, list) else value})
    for name, part in nested.items():
        if key in [field.name for field in dataclasses.fields(part)]:
            value = tuple(value) if isinstance(value, list) else value
            return dataclasses.replace(options, **{name: dataclasses.replace(part, **{key: value})})
    known = names + [field.name for part in nested.values() for field in dataclasses.fields(part)]
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "see headrace train --help"
    raise UsageError(f"--config {path}: unknown key {key!r}: {hint}")
