"""Consent for LLM rollouts: what a YAML file names is imported, called, opened or sent to only if the user says so.

    values after all files and overrides - values by overrides alone = what files decide --> nothing, or an error

Shipped environments with options of theirs need no consent, nor do servers on this machine. An env_type of
module:attribute with its env_config, a tokenizer's folder and servers elsewhere (they get the prompts and the API key)
do. Imports nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from headrace.envs.consent import require_consent, shown

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HOW = "if it is what you want, give the same as key=value, or look at the file and say --trust (in Python trust=True)"

Values = Mapping[str, Any]


def require_own_words(where: str, values: Values, custom: Values, typed: Values, typed_custom: Values) -> None:
    """Raise if a file decides what is imported, called, opened or sent to."""
    parts = []
    for tag in _listed(values["es_manager.train.env_configs.tags"]):
        entry, by_hand = custom.get(tag) or {}, typed_custom.get(tag) or {}
        kind, options = str(entry.get("env_type") or ""), entry.get("env_config")
        if ":" not in kind:
            continue
        if kind != by_hand.get("env_type"):
            parts.append(f"custom_envs.{tag}.env_type {shown(kind)} (imports {shown(kind.partition(':')[0])[1:-1]})")
        if options and options != by_hand.get("env_config"):
            parts.append(f"custom_envs.{tag}.env_config {shown(repr(options))}")
    if values["engine.urls"] != typed["engine.urls"]:
        far = [url for url in _listed(values["engine.urls"]) if not _is_here(url)]
        parts += [f"engine.urls {shown(str(url))}" for url in far]
    if values["engine.tokenizer"] != typed["engine.tokenizer"]:
        parts.append(f"engine.tokenizer {shown(str(values['engine.tokenizer']))}")
    require_consent(parts, where, "a file's words are not yours until you say so", _HOW)


def _listed(value: Any) -> list[Any]:
    """A list as it is, one value as a list; tags that can't be looked up are refused later."""
    values = value if isinstance(value, list) else [value]
    return [one for one in values if isinstance(one, str)]


def _is_here(url: str) -> bool:
    try:
        return urlsplit(url).hostname in _LOOPBACK
    except ValueError:
        return False
