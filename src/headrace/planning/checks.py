"""Numbers that a formula can take: finite, larger than 0, and such that products of them are finite, too."""

from __future__ import annotations

import math

from headrace.errors import UsageError

_LEAST, _MOST = 1e-18, 1e18


def positive(name: str, value: float, may_be_zero: bool = False) -> float:
    """The number itself; refused by name if there is no answer for it."""
    if not 0 <= value < math.inf or (value == 0 and not may_be_zero):
        raise UsageError(f"{name}: expected a number {'of at least' if may_be_zero else 'larger than'} 0, got {value}")
    if value and not _LEAST <= value <= _MOST:
        raise UsageError(f"{name}: expected a number between {_LEAST:g} and {_MOST:g}")
    return value
