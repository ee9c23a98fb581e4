"""Numbers that a formula can take: finite, and larger than 0."""

from __future__ import annotations

import math

from headrace.errors import UsageError


def positive(name: str, value: float, may_be_zero: bool = False) -> float:
    """The number itself; refused by name if there is no answer for it."""
    if not math.isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
        raise UsageError(f"{name}: expected a number {'of at least' if may_be_zero else 'larger than'} 0, got {value}")
    return value
