"""Every error headrace raises on purpose, and the exit code each one means.

A message says what was expected, what came, where (env index, episode id, seed, step) and what to do. It may quote an
environment's own message, which may have any length: it is cut (plain_text). Knows nothing of any room.
"""

from __future__ import annotations

from copy import copy
from operator import index
from sys import float_info
from typing import Any, SupportsIndex

from headrace.plain_text import MAX_ERROR, shortened


class HeadraceError(Exception):
    """Something failed and the message says what to do about it."""

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        super().__init__(shortened(message, MAX_ERROR))


def again(error: HeadraceError) -> HeadraceError:
    """An error that was raised before, to be raised once more: its words and notes, without what it held on to."""
    return copy(error)


class UsageError(HeadraceError):
    """What the user asked for can't be done as written: a bad value, or an option that is not built yet."""

    exit_code = 2


class ConsentError(UsageError):
    """A file names code, kwargs or places that the user neither named nor agreed to; nothing of it was used."""


def require_types(options: object, kinds: dict[type, tuple[str, ...]]) -> None:
    """Refuse options of the wrong type by name: {int: ("n_steps", ...), float: (...)}; an int is a float too.

    None is for options whose default it is. Numbers of numpy and torch become Python's, which files can hold.
    """
    for name, value in list(vars(options).items()):
        object.__setattr__(options, name, plain(value))
    for kind, names in kinds.items():
        for name in names:
            value = getattr(options, name)
            if value is None and getattr(type(options), name, None) is None:
                continue
            is_bool = isinstance(value, bool) and kind is not bool
            is_beyond = kind is float and isinstance(value, int) and abs(value) > float_info.max  # JSON has such
            if is_bool or is_beyond or not isinstance(value, (int, float) if kind is float else kind):
                what = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}[kind]
                raise UsageError(f"{name}: expected {what}, got {shortened(repr(value), 200)}")


def plain(value: Any) -> Any:
    """A number of numpy or torch as one of Python's; anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def whole(name: str, value: object, least: int, expected: str = "") -> int:
    """A whole number of at least that, or an error that names it."""
    if isinstance(value, SupportsIndex) and not isinstance(value, bool) and index(value) >= least:
        return index(value)
    raise UsageError(f"{name}: expected {expected or f'a whole number of at least {least}'}, got {value!r}")


class EnvError(HeadraceError):
    """An environment could not be made, or raised, or returned something its spaces do not allow."""


class EnvRaised(EnvError):  # noqa: N818  # a kind of EnvError, for a catch of it
    """An environment's own code raised. A worker process that this happens in may be replaced."""

    def __init__(self, message: str = "", place: tuple[int, int, int] | None = None) -> None:
        super().__init__(message)
        self.place = place
        """(env index, episode, step); (env index, -1, -1): it could not be made."""


class NumericsError(HeadraceError):
    """A NaN or an infinity turned up where a finite number must be."""


class SchemaError(HeadraceError):
    """Two sides of a slab, or a run and a checkpoint, disagree about the arrays."""


class RingError(HeadraceError):
    """A slab was leased, committed, read or released by somebody who does not own it."""


class LedgerError(HeadraceError):
    """Steps were lost, counted twice, or a batch was dropped."""


class CheckpointError(HeadraceError):
    """A checkpoint is missing, torn, corrupt, or belongs to something else."""


class JournalError(HeadraceError):
    """Recorded episodes are missing, damaged, or belong to something else."""


class ReplayError(HeadraceError):
    """An episode did not come out again as its journal says it was."""
