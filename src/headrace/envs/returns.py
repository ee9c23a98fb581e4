"""What environments return, read as their spaces say: what is unambiguous is converted, the rest is refused by name.

    obs, reward, terminated, truncated --the step loop takes the usual types itself--> slab
                                       --anything else--> Returns --> slab, or EnvFailure with expected and got

    observation   by leaf, an array of the leaf's shape; lists and tensors too. Nothing is wrapped, cut or broadcast.
    reward        one real number that fits float32; NaN and infinity are the business of nan_policy (mended)
    flags         True or False, or a number that is 0 or 1
    info          is not read

Runs for unusual types and for failures only. Does not know steps, episodes or slabs.
"""

from __future__ import annotations

import copy
import itertools
import math
import numbers
import struct
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.envs.raising import require_own
from headrace.envs.vector_env import EnvFailure
from headrace.errors import SchemaError
from headrace.memory.spaces import (
    Box,
    Dict,
    Discrete,
    Leaves,
    ObservationSpace,
    Space,
    choice_range,
    in_words,
    leaves_of,
    shape_of,
    split,
)

Array = npt.NDArray[Any]

PLAIN = frozenset((float, int, bool, np.float64, np.float32, np.int64, np.int32, np.bool_))
"""Types of rewards that need no second look."""
WHOLE = (int, np.int64)
"""Types of single choices that need no second look."""
_NUMERIC = "?bhilqBHILQefd"
_MOST_REWARD = float(np.finfo(np.float32).max)
_DOUBLE, _MOST_PACKED = np.dtype(np.float64), 64  # of a longer array, numpy's own cast is faster
_SHOWN = 80  # characters of a value in a message


class LeafReader:
    """Reads one array of an observation."""

    def __init__(self, name: str, space: Space) -> None:
        self.name, self._what = name, in_words(name)
        self.shape, self.dtype = shape_of(space), np.dtype(space.dtype)
        self._space = space
        takes_whole = self.dtype.kind == "f" and self.dtype.itemsize > 2  # any of them, rounded
        self.fits = frozenset(
            one for one in map(np.dtype, _NUMERIC)
            if np.can_cast(one, self.dtype, "safe") or (takes_whole and one.kind in "iu")
        )  # fmt: skip
        """Dtypes of arrays that can be stored without a look at their values: none is too large."""
        self.usual_shape = None if isinstance(space, Discrete) else self.shape
        """Of arrays that the step loop takes itself; None for Discrete, whose choices are numbers."""
        self.flat_size = self.shape[0] if len(self.shape) == 1 else 0
        """Of observations whose memory takes them as they are, and refuses other dtypes and lengths; else 0."""
        self.is_ranged = not isinstance(space, Box | Discrete)
        """Arrays whose every row is held against the range: MultiDiscrete, MultiBinary."""
        self._least, self._beyond = choice_range(space)
        self.choices = (self._least, self._beyond) if isinstance(space, Discrete) else (0, 0)
        """The range of numbers that the step loop takes itself."""

    def read(self, position: int, obs: Any) -> Any:
        """One as the slab holds it."""
        if type(obs) is np.ndarray and obs.dtype is self.dtype and obs.shape == self.usual_shape and not self.is_ranged:
            return obs
        if type(obs) in WHOLE and self.choices[0] <= obs < self.choices[1]:
            return obs
        if type(obs) is np.ndarray and obs.shape == self.shape and obs.dtype.kind == self.dtype.kind == "f":
            with suppress(FloatingPointError), np.errstate(over="raise"):
                return obs.astype(self.dtype)
        try:
            array = np.asarray(_arrays(obs, self.shape))
        except BaseException as error:
            require_own(error, f"an {self._what}")
            why = "" if isinstance(error, _NoArrayError) else f" ({type(error).__name__}: {error})"
            raise EnvFailure(
                position,
                f"returned the {self._what} {shown(obs)}, which is no array of shape {self.shape} and dtype "
                f"{self.dtype}{why}",
            ) from error
        if array.shape != self.shape:
            raise EnvFailure(position, f"returned an {self._what} of shape {array.shape}, expected {self.shape}")
        return self._stored(array[None], position)[0]

    def left_alone(self) -> LeafReader:
        """The same, as one of several: the step loop takes nothing of it itself."""
        one = copy.copy(self)
        one.usual_shape, one.choices, one.is_ranged, one.flat_size = None, (0, 0), False, 0
        return one

    def read_pool(self, values: Any, num_envs: int) -> Array:
        """Those of a whole pool."""
        array, shape = _pooled(f"{self._what}s", values), (num_envs, *self.shape)
        if array.shape != shape:
            raise EnvFailure(0, f"returned {self._what}s of shape {array.shape}, expected {shape}")
        return self._stored(array, 0)

    def require_range(self, values: Array) -> None:
        """Refuse the first of some stored ones that is none of the space's choices."""
        is_bad = (values < self._least) | (values >= self._beyond)
        if is_bad.any():
            self._refuse_range(values, is_bad, 0)

    def _stored(self, array: Array, position: int) -> Array:
        """[n, ...] of the right shape, in the space's dtype; the first belongs to `position`."""
        if array.dtype != self.dtype:
            are_whole = array.dtype.kind in "iu" and self.dtype.kind in "iu"  # whose values are looked at
            if not are_whole and not np.can_cast(array.dtype, self.dtype, "same_kind"):
                raise EnvFailure(position, f"returned an {self._what} of dtype {array.dtype}, expected {self.dtype}")
            array = self._cast(array, position)
        if not isinstance(self._space, Box):
            is_bad = (array < self._least) | (array >= self._beyond)
            if is_bad.any():
                self._refuse_range(array, is_bad, position)
        return array

    def _cast(self, array: Array, position: int) -> Array:
        """In the space's dtype; a number that does not fit is refused, where numpy would wrap it."""
        with np.errstate(over="ignore"):
            cast = array.astype(self.dtype)
        is_bad = cast != array if self.dtype.kind in "iu" else np.isfinite(array) & ~np.isfinite(cast)
        if array.dtype.kind in "iu" and self.dtype.kind in "iu":
            is_bad = is_bad | ((cast < 0) != (array < 0))  # int64 and uint64 have no common type to compare them in
        if is_bad.any():
            at = tuple(np.argwhere(is_bad)[0].tolist())
            raise EnvFailure(
                position + at[0],
                f"returned an {self._what} with {shown(array[at].item())}{_entry(at)}, which "
                f"{'is too large for' if self.dtype.kind == 'f' else 'does not fit its dtype: expected'} {self.dtype}",
            )
        return cast

    def _refuse_range(self, array: Array, is_bad: Array, position: int) -> None:
        at = tuple(np.argwhere(is_bad)[0].tolist())
        least, beyond = (int(np.broadcast_to(one, self.shape)[at[1:]]) for one in (self._least, self._beyond))
        raise EnvFailure(
            position + at[0],
            f"returned the {self._what} {shown(array[at].item())}{_entry(at)}, expected {least} to {beyond - 1} "
            f"({type(self._space).__name__})",
        )


class Returns:
    """Reads what environments with this observation space return."""

    def __init__(self, space: ObservationSpace) -> None:
        self._space = space
        self._leaves = {name: LeafReader(name, leaf) for name, leaf in leaves_of(space).items()}
        first = next(iter(self._leaves.values()))
        self.usual = usual = first.left_alone() if isinstance(space, Dict) else first
        """Of the one array that an observation is: the step loop takes the usual ones itself."""
        is_short = not isinstance(space, Dict) and usual.dtype == np.float32 and 0 < usual.flat_size <= _MOST_PACKED
        self._doubles = struct.Struct(f"={usual.flat_size}f") if is_short else None

    def observation(self, position: int, obs: Any) -> dict[str, Any]:
        """One observation by leaf, as the slab holds it."""
        return {name: self._leaves[name].read(position, part) for name, part in self._split(position, obs).items()}

    def write(self, position: int, obs: Any, out: Leaves) -> None:
        """The same, into its place in a row."""
        doubles = self._doubles
        if doubles is not None and type(obs) is np.ndarray and obs.dtype is _DOUBLE and obs.shape == self.usual.shape:
            try:
                row: Any = out[self.usual.name]
                doubles.pack_into(row, position * doubles.size, *obs.tolist())
                return
            except (OverflowError, TypeError):  # too large for float32, or memory with gaps
                pass
        for name, part in self._split(position, obs).items():
            out[name][position] = self._leaves[name].read(position, part)

    def observations(self, values: Any, num_envs: int) -> Leaves:
        """Those of a whole pool."""
        return {name: self._leaves[name].read_pool(part, num_envs) for name, part in self._split(0, values).items()}

    def reward(self, position: int, value: Any) -> float:
        """A reward as a number."""
        is_large = isinstance(value, int) and abs(value) > _MOST_REWARD  # maybe too large for a float
        got = 0.0 if is_large else number(value)
        if got is None:
            raise EnvFailure(position, f"returned the reward {shown(value)}, expected a number")
        if is_large or (math.isfinite(got) and abs(got) > _MOST_REWARD):
            raise EnvFailure(
                position, f"returned the reward {shown(value)}, expected a number that fits float32 (up to 3.4e38)"
            )
        return got

    def rewards(self, values: Sequence[Any]) -> list[float]:
        """Those of a row."""
        return [self.reward(position, value) for position, value in enumerate(values)]

    def flag(self, position: int, name: str, value: Any) -> bool:
        """`terminated` or `truncated`."""
        got = number(value)
        if got is None or got not in (0, 1):
            raise EnvFailure(position, f"returned {name}={shown(value)}, expected True or False")
        return bool(got)

    def flags(self, name: str, values: Any, num_envs: int) -> Array:
        """Those of a whole pool."""
        array = _vector(name, values, num_envs)
        is_bad = (array != 0) & (array != 1)  # NaN too
        if is_bad.any():
            bad = int(np.argmax(is_bad))
            raise EnvFailure(bad, f"returned {name}={shown(array[bad])}, expected True or False")
        return np.asarray(array, np.bool_)

    def pool_rewards(self, values: Any, num_envs: int) -> Array:
        """Those of a whole pool."""
        array = _vector("reward", values, num_envs)
        is_bad = np.isfinite(array) & (np.abs(array, dtype=np.float64) > _MOST_REWARD)
        if is_bad.any():
            self.reward(int(np.argmax(is_bad)), float(array[np.argmax(is_bad)]))
        return array

    def _split(self, position: int, obs: Any) -> dict[str, Any]:
        try:
            return split(self._space, obs)
        except SchemaError as error:
            raise EnvFailure(position, f"returned {error}") from error
        except BaseException as error:
            require_own(error, "an observation")
            said = f"{type(error).__name__}: {error}"
            raise EnvFailure(position, f"returned an observation that can't be read ({said})") from error


def shown(value: Any) -> str:
    """A value in a message: on one line, not too long, whatever its repr does."""
    try:
        text = " ".join(repr(value).split())
    except BaseException as error:
        require_own(error, "a value's repr")
        text = f"an object of type {type(value).__name__} that can't be printed"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


class _NoArrayError(ValueError):
    """It is not made of numbers, or its lengths differ from the shape's."""


def _arrays(obs: Any, shape: tuple[int, ...]) -> Any:
    """What numpy may be given: lengths are looked at first, since it would walk through a sequence to its end."""
    if isinstance(obs, np.ma.MaskedArray) and np.ma.is_masked(obs):
        raise _NoArrayError
    if isinstance(obs, bool | int | float) or hasattr(obs, "__array__"):
        return obs
    is_list = isinstance(obs, Sequence) and not isinstance(obs, str | bytes)
    if not is_list or not shape or len(obs) != shape[0]:
        raise _NoArrayError
    return [_arrays(one, shape[1:]) for one in itertools.islice(obs, shape[0])]


def number(value: Any) -> float | None:
    """The one real number that a value is; None if it is none."""
    try:
        if isinstance(value, np.timedelta64) or (isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value)):
            return None
        if isinstance(value, numbers.Real | Decimal | np.bool_):
            return float(value)
        array = np.asarray(value) if hasattr(value, "__array__") else None
        is_one = array is not None and array.size == 1 and array.dtype.kind in "biuf"
        return float(array.item()) if array is not None and is_one else None
    except BaseException as error:
        require_own(error, "a returned value")
        return None


def _pooled(what: str, values: Any) -> Array:
    try:
        return np.asarray(values)
    except BaseException as error:
        require_own(error, what)
        raise EnvFailure(
            0, f"(or another one of its pool) returned {what} that are no array: {type(error).__name__}: {error}"
        ) from error


def _vector(name: str, values: Any, num_envs: int) -> Array:
    array = _pooled(f"values of {name}", values)
    if array.shape != (num_envs,) or array.dtype.kind not in "biuf":
        raise EnvFailure(
            0,
            f"(or another one of its pool) returned {name} of shape {array.shape} and dtype {array.dtype}, "
            f"expected {num_envs} numbers",
        )
    return array


def _entry(at: tuple[int, ...]) -> str:
    return f" at {at[1:]}" if len(at) > 1 else ""
