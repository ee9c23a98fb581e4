"""Observations that a user has in hand, on their way to a policy.

    one observation, or a batch of them --as_rows--> rows by leaf, and whether it was one

Only what a policy can compute with gets through: the right arrays, their shapes and dtypes, as many rows of each, and
choices that the space has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import SchemaError
from headrace.memory.spaces import (
    Box,
    Leaves,
    ObservationSpace,
    Space,
    choice_range,
    in_words,
    leaves_of,
    name_of,
    shape_of,
    split,
)


def as_rows(space: ObservationSpace, obs: Any) -> tuple[Leaves, bool]:
    """One observation or a batch of them as rows by leaf, and whether it was one."""
    leaves = leaves_of(space)
    found = {name: _as_array(name, leaves[name], part) for name, part in split(space, obs).items()}
    is_one = all(found[name].shape == shape_of(leaf) for name, leaf in leaves.items())
    for name, leaf in leaves.items():
        got, shape = found[name], shape_of(leaf)
        if not is_one and got.shape == shape != got.shape[1:]:
            shapes = {name_of(each): array.shape for each, array in found.items()}
            raise SchemaError(f"expected one observation of every array, or a batch of every array, got {shapes}")
        if not is_one and got.shape[1:] != shape:
            raise SchemaError(f"{_wanted(name, leaf)} {got.shape}")
        if not np.can_cast(got.dtype, leaf.dtype, "same_kind"):
            raise SchemaError(f"expected dtype {leaf.dtype}, got {got.dtype}")
        found[name] = np.ascontiguousarray(got[None] if is_one else got, leaf.dtype)
        if not isinstance(leaf, Box):
            _require_choices(name, leaf, found[name])
    counts = {name_of(name): len(rows) for name, rows in found.items()}
    if len(set(counts.values())) > 1:
        raise SchemaError(f"expected as many rows of every array, got {counts}")
    return found, is_one


def _as_array(name: str, leaf: Space, part: Any) -> npt.NDArray[Any]:
    """What a user has in hand: no dict, nothing ragged."""
    wanted = _wanted(name, leaf)
    if part is None or isinstance(part, dict):
        raise SchemaError(f"{wanted} {'None' if part is None else 'a dict'}")
    try:
        return np.asarray(part)
    except (TypeError, ValueError) as error:
        hint = "; reset() returns (observation, info), pass the first" if isinstance(part, tuple) else ""
        raise SchemaError(f"{wanted} a {type(part).__name__} that is no array{hint}") from error


def _wanted(name: str, leaf: Space) -> str:
    what = in_words(name)
    return f"expected {what}{'' if '/' in what else 's'} of shape {shape_of(leaf)} or [n, ...], got"


def _require_choices(name: str, leaf: Space, rows: npt.NDArray[Any]) -> None:
    """Refuse what is none of the space's choices: a network has no input for it."""
    least, beyond = choice_range(leaf)
    is_bad = (rows < least) | (rows >= beyond)
    if is_bad.any():
        at = np.argwhere(is_bad)[0]
        low, high = (int(np.broadcast_to(one, rows.shape[1:])[tuple(at[1:])]) for one in (least, beyond))
        raise SchemaError(f"expected {in_words(name)} from {low} to {high - 1}, got {rows[tuple(at)]}")
