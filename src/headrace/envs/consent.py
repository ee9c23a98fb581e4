"""Consent: what a file names is built only if the user named it too, said so, or wrote the file.

    file's {env, kwargs, wrappers} - what the user named = what would be imported or called --> nothing, or an error

An id of Gymnasium or EnvPool without kwargs needs no consent: their registries decide what it imports, not the file. A
module:attribute, a module:Id-v0, kwargs and wrappers do; headrace's own wrapper of action masks does not. Imports and
calls nothing itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.envs.adapters import envpool
from headrace.envs.spec import MASKS, EnvSpec
from headrace.errors import ConsentError

_SHOWN = 2000  # characters of kwargs in a message
HOW_TO_CONSENT = (
    "if it is what you want, name it yourself (env=hr.EnvSpec(...), policy_kwargs=...; on the command line ENV, "
    "--env-kwargs, --wrappers), or look at the file and say trust=True (--trust)"
)


def parts_to_ask_for(named: Mapping[str, Any], given: EnvSpec | None) -> list[str]:
    """What building an encoded EnvSpec would import or call that the user did not name, a line each."""
    own = {"env": None, "kwargs": {}, "wrappers": []} if given is None else given.encode()
    parts = []
    env, kwargs, wrappers = named["env"], named["kwargs"], [one for one in named["wrappers"] if one != MASKS]
    if isinstance(env, str) and ":" in env and not env.startswith(envpool.PREFIX) and env != own["env"]:
        parts.append(f"environment {_import_of(env)}")
    if kwargs and _canonical(kwargs) != _canonical(own["kwargs"]):
        parts.append(f"environment kwargs {shown(kwargs)}")
    if wrappers and wrappers != [one for one in own["wrappers"] if one != MASKS]:
        parts += [f"wrapper {_import_of(wrapper)}" for wrapper in wrappers if isinstance(wrapper, str)]
    return parts


def extractors_to_ask_for(policy: Mapping[str, Any]) -> list[str]:
    """What building the feature extractors of a saved policy would import and call, a line each."""
    classes, kwargs = policy.get("features_extractor_class", {}), policy.get("features_extractor_kwargs", {})
    parts = [f"features_extractor_class {_import_of(one)}" for one in classes.values() if isinstance(one, str)]
    return [*parts, *([f"features_extractor_kwargs {shown(kwargs)}"] if parts and any(kwargs.values()) else [])]


def require_consent(parts: Sequence[str], source: str, doubt: str, how: str = HOW_TO_CONSENT) -> None:
    """Raise if there is anything to ask for; the message names all of it."""
    if parts:
        raise ConsentError(
            f"{source} names what you did not name yourself: {'; '.join(parts)}. Nothing was imported or called. "
            f"You are asked because {doubt}; {how}"
        )


def shown(value: object) -> str:
    """A value from a file for a message: no control characters, no line breaks, not endless."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... and {len(text) - _SHOWN:,} more characters"


def _import_of(name: str) -> str:
    module, _, attribute = name.partition(":")
    return f"{shown(name)} (imports {shown(module)[1:-1]}, calls {shown(attribute)[1:-1]})"


def _canonical(value: object) -> str:
    """By JSON, since Python says that True equals 1."""
    return json.dumps(value, sort_keys=True)
