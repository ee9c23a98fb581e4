"""A finding: what was looked at, what was found, how bad it is, what to do, and the numbers that say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of a doctor's answer."""

    name: str
    level: Level
    found: str
    advice: str = ""
    """What to do; empty if nothing is to be done."""
    evidence: Mapping[str, float | int | str | bool | None] = field(default_factory=dict)
    """Numbers, by name."""

    @property
    def sentence(self) -> str:
        """As a note beside other things."""
        return f"{self.name}: {self.found}{f'; {self.advice}' if self.advice else ''}"
