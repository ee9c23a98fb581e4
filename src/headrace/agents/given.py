"""What users hand over by name, in the forms they hand it over in: one instead of several, a text instead of a path.

listed("groups", one_or_several, Group, "groups") --> a list        path("path", "x.parquet") --> a Path
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from headrace.errors import UsageError

T = TypeVar("T")

GROUPS = "groups, as rollouts.run(n) returns them"


def listed(name: str, given: Any, kind: type[T], expected: str) -> list[T]:
    """One of them, or several, as a list; what is none of them is refused."""
    several = [given] if isinstance(given, kind) else list(given) if isinstance(given, Iterable) else None
    if several is None or not all(isinstance(one, kind) for one in several):
        wrong = given if several is None else next(one for one in several if not isinstance(one, kind))
        raise UsageError(f"{name}: expected {expected}, got {_shown(wrong)}")
    return several


def path(name: str, given: Any) -> Path:
    """A path, as text or as such."""
    if not isinstance(given, str | os.PathLike):
        raise UsageError(f"{name}: expected a path, got {_shown(given)}")
    return Path(given)


def require(name: str, given: Any, expected: str, *methods: str) -> None:
    """Refuse what has not all of some attributes."""
    if not all(hasattr(given, one) for one in methods):
        raise UsageError(f"{name}: expected {expected}, got {_shown(given)}")


def _shown(given: Any) -> str:
    text = repr(given)
    return text if len(text) < 80 else f"{text[:76]} ..."
