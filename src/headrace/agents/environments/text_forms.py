"""Actions of a Gymnasium space as JSON: a description for the player, and a reader of its text.

    json_form(space): Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple -> numbers, lists and objects as JSON

What does not fit the space is refused before the environment sees it. Pure: knows no environment and no episode.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from headrace.agents.environments.text_env import TextForm
from headrace.errors import UsageError


def json_form(space: gym.Space[Any]) -> TextForm:
    """Numbers as numbers, several as lists, named parts as objects."""
    part = _part(space)
    example = json.dumps(part.example)
    return TextForm(
        f"JSON: {part.words}, such as {example}", lambda text: part.read(_parsed(text)), example, part.schema
    )


@dataclass(frozen=True)
class _Part:
    """One space: in words, as a JSON schema, by an example, and how its JSON is read."""

    words: str
    schema: dict[str, Any]
    example: Any
    read: Callable[[Any], Any]


def _part(space: gym.Space[Any]) -> _Part:
    if isinstance(space, gym.spaces.Discrete):
        one = _number(int(space.start), int(space.start + space.n - 1), is_whole=True)
        return _Part(one.words, one.schema, one.example, lambda value: space.dtype.type(one.read(value)))
    if isinstance(space, gym.spaces.Box):
        is_whole = space.dtype.kind in "iu"
        return _array(space, [_number(low, high, is_whole, space.dtype) for low, high in _bounds(space)])
    if isinstance(space, gym.spaces.MultiDiscrete):
        choices = zip(np.ravel(space.start).tolist(), np.ravel(space.nvec).tolist(), strict=True)
        return _array(space, [_number(low, low + count - 1, True) for low, count in choices])
    if isinstance(space, gym.spaces.MultiBinary):
        return _array(space, [_number(0, 1, True)] * math.prod(space.shape))
    if isinstance(space, gym.spaces.Dict):
        return _object({name: _part(inner) for name, inner in space.items()})
    if isinstance(space, gym.spaces.Tuple):
        return _list([_part(inner) for inner in space], tuple)
    raise UsageError(
        f"action_form json: expected actions of Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple, got {space}; "
        f"declare a TextForm of your own"
    )


def _bounds(space: gym.spaces.Box) -> list[tuple[float, float]]:
    return list(zip(np.ravel(space.low).tolist(), np.ravel(space.high).tolist(), strict=True))


def _number(low: float, high: float, is_whole: bool, dtype: Any = None) -> _Part:
    kind = "whole number" if is_whole else "number"
    ends = [("minimum", low), ("maximum", high)]
    schema: dict[str, Any] = {"type": "integer" if is_whole else "number"}
    schema |= {name: end for name, end in ends if math.isfinite(end)}
    words = {
        (True, True): f"a {kind} from {low:g} to {high:g}",
        (True, False): f"a {kind} of at least {low:g}",
        (False, True): f"a {kind} of at most {high:g}",
        (False, False): f"a {kind}",
    }[math.isfinite(low), math.isfinite(high)]

    def read(value: Any) -> Any:
        is_number = isinstance(value, int if is_whole else (int, float)) and not isinstance(value, bool)
        if is_number and abs(value) > sys.float_info.max:  # an integer beyond all floats
            raise ValueError(f"expected {words}, got {_short(value)}")
        stored = value
        if is_number and not is_whole and dtype is not None:
            with np.errstate(over="ignore"):
                stored = float(dtype.type(value))
        if not is_number or not math.isfinite(stored) or not low <= stored <= high:
            raise ValueError(f"expected {words}, got {_short(value)}")
        return value

    inside = min(max(0.0, low), high)
    return _Part(words, schema, int(inside) if is_whole else inside, read)


def _array(space: gym.Space[Any], numbers: list[_Part]) -> _Part:
    """Nested lists of the space's shape; all numbers in one array."""
    shape, dtype = space.shape, space.dtype
    assert shape is not None, space
    rows = list(numbers)
    for length in reversed(shape):
        rows = [_list(rows[at : at + length], list) for at in range(0, len(rows), length)]
    (whole,) = rows
    return _Part(whole.words, whole.schema, whole.example, lambda value: np.asarray(whole.read(value), dtype))


def _list(parts: list[_Part], kind: Callable[[Any], Any]) -> _Part:
    count = len(parts)
    words = list(dict.fromkeys(part.words for part in parts))
    told = f"each {words[0]}" if len(words) == 1 else "; ".join(part.words for part in parts)
    schema: dict[str, Any] = {"type": "array", "minItems": count, "maxItems": count}
    schema |= {"items": parts[0].schema} if len(words) == 1 else {"prefixItems": [part.schema for part in parts]}

    def read(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != count:
            raise ValueError(f"expected a list of {count}, got {_short(value)}")
        return kind([part.read(one) for part, one in zip(parts, value, strict=True)])

    return _Part(f"a list of {count}, {told}", schema, [one.example for one in parts], read)


def _object(parts: dict[str, _Part]) -> _Part:
    names = sorted(parts)
    schema = {
        "type": "object",
        "properties": {name: part.schema for name, part in parts.items()},
        "required": list(parts),
        "additionalProperties": False,
    }

    def read(value: Any) -> Any:
        if not isinstance(value, dict) or sorted(value) != names:
            raise ValueError(f"expected an object with {', '.join(names)}, got {_short(value)}")
        read_parts = {}
        for name, part in parts.items():
            try:
                read_parts[name] = part.read(value[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        return read_parts

    words = "; ".join(f"{name}: {part.words}" for name, part in parts.items())
    return _Part(f"an object with {words}", schema, {name: part.example for name, part in parts.items()}, read)


def _parsed(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON ({error.msg} at character {error.pos})") from error


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
