"""Space descriptors: plain data that says how one observation or action lies in memory.

    gymnasium space --envs/adapters--> descriptor --> schema field, policy head, checkpoint JSON
    an observation from outside (environment, predict) --split--> its arrays by the names of its leaves

A `Space` is one array, an `ObservationSpace` one or more of them, each with a name. Actions are one array. The leaves
of a Dict are named obs/<name>, so that no name of an environment meets a field of the schema; policies and users see
the names alone.
They import nothing, so a worker, a checkpoint or another machine can speak of spaces without gymnasium.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import SchemaError


@dataclass(frozen=True)
class Box:
    """An array of numbers. `low` and `high` hold one bound for all entries, or one per entry, flat.

    With `stack` it is a stack of so many frames along its first axis, of which slabs store the newest (stacks).
    """

    shape: tuple[int, ...]
    dtype: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    stack: int = field(default=0, compare=False)


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


@dataclass(frozen=True)
class Dict:
    """Several arrays by name; observations only. Nested names are joined (arm/joint), a tuple's items are numbered."""

    leaves: tuple[tuple[str, Space], ...]
    left_out: tuple[str, ...] = ()
    """What else the environment returns: texts, which no policy sees."""

    @cached_property
    def tree(self) -> dict[str, Any]:
        """As the environment nests it: the leaf's name at every end."""
        tree: dict[str, Any] = {}
        for name, _ in self.leaves:
            *path, last = name.split("/")
            node = tree
            for part in path:
                node = node.setdefault(part, {})
            node[last] = _PREFIX + name
        return tree


ObservationSpace = Space | Dict

Leaves = dict[str, npt.NDArray[Any]]  # the named arrays of observations: {"obs": ...} for one array

_PREFIX = "obs/"
MASK = "action_mask"
"""The array of a Dict that says which choices are allowed."""
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Box, Discrete, MultiDiscrete, MultiBinary)}


def shape_of(space: Space) -> tuple[int, ...]:
    """The shape of one observation or action as it lies in a slab."""
    return () if isinstance(space, Discrete) else space.shape


def leaves_of(space: ObservationSpace) -> dict[str, Space]:
    """The named arrays that an observation of this space consists of. One array is named obs."""
    return {_PREFIX + name: leaf for name, leaf in space.leaves} if isinstance(space, Dict) else {"obs": space}


def leaf_of(name: str) -> str:
    """The leaf that holds an array of a Dict."""
    return _PREFIX + name


def name_of(leaf: str) -> str:
    """The inverse: what policies and users call it."""
    return leaf.removeprefix(_PREFIX)


def left_out_of(space: ObservationSpace) -> tuple[str, ...]:
    """What else the environment returns, which no policy sees: texts."""
    return space.left_out if isinstance(space, Dict) else ()


def split(space: ObservationSpace, obs: Any) -> dict[str, Any]:
    """An observation as its environment returns it, or a batch of them, by leaf. Its arrays are not looked at.

    Refused if it is not nested as its space is.
    """
    if not isinstance(space, Dict):
        return {"obs": obs}
    found: dict[str, Any] = {}
    _collect(space.tree, obs, "", space.left_out, found)
    return found


def stack_of(space: Space) -> int:
    """How many frames are stacked in an observation, each of which is stored once; 0 if it is stored as it is."""
    return space.stack if isinstance(space, Box) else 0


def stored_shape(space: Space) -> tuple[int, ...]:
    """The shape of what a slab stores of one observation."""
    return shape_of(space)[1:] if stack_of(space) else shape_of(space)


def stored(space: ObservationSpace, leaves: Leaves) -> Leaves:
    """Observations with any leading axes, as a slab stores them."""
    return {
        name: np.take(leaf, -1, leaf.ndim - len(shape_of(one))) if stack_of(one) else leaf
        for (name, one), leaf in zip(leaves_of(space).items(), leaves.values(), strict=True)
    }


def in_words(name: str) -> str:
    """A leaf's name for people."""
    return name.replace("obs", "observation", 1)


def in_short(space: ObservationSpace) -> str:
    """A space for people: its kind, size and type."""
    match space:
        case Dict(leaves=leaves):
            return f"Dict({', '.join(f'{name}: {in_short(leaf)}' for name, leaf in leaves)})"
        case Discrete(n=n):
            size = f"n={n}"
        case MultiDiscrete(nvec=nvec):
            size = f"nvec={nvec}"
        case _:
            size = f"shape={shape_of(space)}"
    return f"{type(space).__name__}({size}, {space.dtype})"


def as_seen(leaves: dict[str, Any]) -> Any:
    """Observations as policies and users see them: the array itself, or those of a Dict by name."""
    return leaves["obs"] if "obs" in leaves else {name.removeprefix(_PREFIX): leaf for name, leaf in leaves.items()}


def empty_leaves(space: ObservationSpace, *axes: int) -> Leaves:
    """Memory for observations with these leading axes."""
    return {name: np.empty((*axes, *shape_of(leaf)), leaf.dtype) for name, leaf in leaves_of(space).items()}


def choice_range(space: Space) -> tuple[Any, Any]:
    """The least choice, and the first number beyond the last one. A Box has bounds instead."""
    match space:
        case Discrete(n=n, start=start):
            return start, start + n
        case MultiDiscrete(nvec=nvec, shape=shape, start=starts):
            least = np.array(starts, np.int64).reshape(shape)
            return least, least + np.array(nvec, np.int64).reshape(shape)
    return 0, 2


def size_of(space: Space) -> int:
    """How many numbers one observation or action has."""
    return math.prod(shape_of(space))


def flat_size(space: Space) -> int:
    """How many numbers one observation has for a network: choices are one-hot."""
    match space:
        case Discrete():
            return space.n
        case MultiDiscrete():
            return sum(space.nvec)
    return size_of(space)


def choices_of(space: Space) -> tuple[int, ...]:
    """How many choices each number of an action has; a bit has two."""
    match space:
        case Discrete(n=n):
            return (n,)
        case MultiDiscrete(nvec=nvec):
            return nvec
    return (2,) * size_of(space)


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


def made_up_leaves(space: ObservationSpace, rng: np.random.Generator, count: int) -> Leaves:
    """Rows of every leaf; masks allow everything."""
    leaves = {name: made_up(leaf, rng, count) for name, leaf in leaves_of(space).items()}
    if _PREFIX + MASK in leaves:
        leaves[_PREFIX + MASK][...] = 1
    return leaves


def encode(space: ObservationSpace) -> dict[str, Any]:
    """The space as JSON; bounds keep their infinities as strings."""
    if isinstance(space, Dict):
        leaves = [[name, encode(leaf)] for name, leaf in space.leaves]
        return {"kind": "Dict", "leaves": leaves, "left_out": list(space.left_out)}
    return {"kind": type(space).__name__} | {
        key: [repr(x) for x in value] if key in ("low", "high") else value
        for key, value in asdict(space).items()
        if key != "stack" or value
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
    if data.get("kind") != "Dict":
        return decode(data)
    return Dict(tuple((name, decode(leaf)) for name, leaf in data["leaves"]), tuple(data["left_out"]))


def _collect(tree: Any, obs: Any, path: str, left_out: tuple[str, ...], found: dict[str, Any]) -> None:
    """Take what lies at the ends of the tree."""
    if isinstance(tree, str):
        found[tree] = obs
        return
    entries = obs
    if isinstance(obs, tuple | list):
        entries = {str(number): item for number, item in enumerate(obs)}
    if not isinstance(entries, Mapping):
        inside = f" with {path[:-1]!r}" if path else ""
        raise SchemaError(f"an observation{inside} of type {type(obs).__name__}, expected a dict of {', '.join(tree)}")
    expected = ", ".join(path + one for one in tree)
    for name, below in tree.items():
        if name not in entries:
            raise SchemaError(f"an observation without {path + name!r}, expected {expected}")
        _collect(below, entries[name], f"{path}{name}/", left_out, found)
    if len(entries) > len(tree):
        more = [f"{path}{name}" for name in entries if name not in tree]
        unknown = next((name for name in more if name not in left_out), None)
        if unknown is not None:
            raise SchemaError(f"an observation with {unknown!r}, expected {expected}")


def _bound(space: Box, values: tuple[float, ...]) -> npt.NDArray[Any]:
    dtype = np.dtype(space.dtype)
    if dtype.kind in "iu":  # the limits of 64-bit integers are no floats: the nearest ones lie just outside
        limits = np.iinfo(dtype)
        array = np.asarray([min(max(int(x), limits.min), limits.max) for x in values], dtype)
    else:
        array = np.asarray(values, dtype)
    return np.broadcast_to(array, (size_of(space),)).reshape(space.shape)
