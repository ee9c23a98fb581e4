"""Space descriptors: plain data that says how one observation or action lies in memory.

    gymnasium space --envs/adapters--> descriptor --> schema field, policy head, checkpoint JSON
    an observation from outside (environment, predict) --split--> its arrays by the names of its leaves

A `Space` is one array, an `ObservationSpace` one or more of them, each with a name. Actions are one array.
They import nothing, so a worker, a checkpoint or another machine can speak of spaces without gymnasium.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import SchemaError


@dataclass(frozen=True)
class Box:
    """An array of numbers. `low` and `high` hold one bound for all entries, or one per entry, flat."""

    shape: tuple[int, ...]
    dtype: str
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Discrete:
    """One of n choices. Slabs hold 0..n-1; `start` is added on the way to the environment."""

    n: int
    start: int = 0
    dtype: str = "int64"


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices at once; `nvec` is flat, in the order of `shape`. Slabs hold 0..n-1 of each."""

    nvec: tuple[int, ...]
    shape: tuple[int, ...]
    start: tuple[int, ...]
    dtype: str = "int64"


@dataclass(frozen=True)
class MultiBinary:
    """Bits, in an array of `shape`."""

    shape: tuple[int, ...]
    dtype: str = "int8"


Space = Box | Discrete | MultiDiscrete | MultiBinary

ObservationSpace = Space  # one array is all that there is so far

Leaves = dict[str, npt.NDArray[Any]]  # the named arrays of observations: {"obs": ...} for one array

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Box, Discrete, MultiDiscrete, MultiBinary)}


def shape_of(space: Space) -> tuple[int, ...]:
    """The shape of one observation or action as it lies in a slab."""
    return () if isinstance(space, Discrete) else space.shape


def leaves_of(space: ObservationSpace) -> dict[str, Space]:
    """The named arrays that an observation of this space consists of. One array is named obs."""
    return {"obs": space}


def split(space: ObservationSpace, obs: Any) -> dict[str, Any]:
    """An observation as its environment returns it, or a batch of them, by leaf. Its arrays are not looked at."""
    return {"obs": obs}


def in_words(name: str) -> str:
    """A leaf's name for people."""
    return name.replace("obs", "observation", 1)


def as_seen(leaves: dict[str, Any]) -> Any:
    """Observations as policies and users see them: the array itself where there is one, else the arrays by name."""
    return next(iter(leaves.values())) if len(leaves) == 1 else leaves


def empty_leaves(space: ObservationSpace, *axes: int) -> Leaves:
    """Memory for observations with these leading axes."""
    return {name: np.empty((*axes, *shape_of(leaf)), leaf.dtype) for name, leaf in leaves_of(space).items()}


def as_rows(space: ObservationSpace, obs: Any) -> tuple[Leaves, bool]:
    """One observation or a batch of them as rows by leaf, and whether it was one."""
    found = {name: np.asarray(part) for name, part in split(space, obs).items()}
    leaves = leaves_of(space)
    is_one = all(found[name].shape == shape_of(leaf) for name, leaf in leaves.items())
    for name, leaf in leaves.items():
        got, shape = found[name], shape_of(leaf)
        if not is_one and got.shape[1:] != shape:
            raise SchemaError(f"expected {in_words(name)}s of shape {shape} or [n, ...], got {got.shape}")
        if not np.can_cast(got.dtype, leaf.dtype, "same_kind"):
            raise SchemaError(f"expected dtype {leaf.dtype}, got {got.dtype}")
        found[name] = np.ascontiguousarray(got[None] if is_one else got, leaf.dtype)
    return found, is_one


def size_of(space: Space) -> int:
    """How many numbers one observation or action has."""
    return math.prod(shape_of(space))


def bounds(space: Box) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Low and high of a Box as arrays of its shape and dtype."""
    return _bound(space, space.low), _bound(space, space.high)


def made_up(space: Space, rng: np.random.Generator, count: int, from_zero: bool = False) -> npt.NDArray[Any]:
    """Rows that lie in the space; choices as the environment has them, or as slabs do (`from_zero`)."""
    shape = (count, *shape_of(space))
    match space:
        case Box():
            low, high = (
                np.clip(bound.astype(np.float64), -3, 3) if space.dtype != "uint8" else bound for bound in bounds(space)
            )
            return rng.uniform(low, high, shape).astype(space.dtype)
        case Discrete():
            return (rng.integers(0, space.n, shape) + (0 if from_zero else space.start)).astype(space.dtype)
        case MultiBinary():
            return rng.integers(0, 2, shape).astype(space.dtype)
    start = np.asarray(space.start).reshape(space.shape) * (not from_zero)
    return np.asarray(start + rng.integers(0, np.asarray(space.nvec).reshape(space.shape), shape), space.dtype)


def encode(space: ObservationSpace) -> dict[str, Any]:
    """The space as JSON; bounds keep their infinities as strings."""
    return {"kind": type(space).__name__} | {
        key: [repr(x) for x in value] if key in ("low", "high") else value for key, value in asdict(space).items()
    }


def decode(data: dict[str, Any]) -> Space:
    """The inverse of `encode`."""
    fields = dict(data)
    kind = fields.pop("kind", None)
    if kind not in _KINDS:
        raise SchemaError(f"expected a space kind of {sorted(_KINDS)}, got {kind!r}")
    for key, value in fields.items():
        if isinstance(value, list):
            fields[key] = tuple(float(x) for x in value) if key in ("low", "high") else tuple(value)
    space: Space = _KINDS[kind](**fields)
    return space


def decode_observation(data: dict[str, Any]) -> ObservationSpace:
    """The same, of an observation space."""
    return decode(data)


def _bound(space: Box, values: tuple[float, ...]) -> npt.NDArray[Any]:
    dtype = np.dtype(space.dtype)
    if dtype.kind in "iu":  # the limits of 64-bit integers are no floats: the nearest ones lie just outside
        limits = np.iinfo(dtype)
        array = np.asarray([min(max(int(x), limits.min), limits.max) for x in values], dtype)
    else:
        array = np.asarray(values, dtype)
    return np.broadcast_to(array, (size_of(space),)).reshape(space.shape)
