"""What a policy says about the noise it acts with: how many numbers of which kind an action takes. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from headrace.errors import UsageError
from headrace.keywords import in_words

Kind = Literal["gumbel", "normal", "logistic"]


@in_words()
@dataclass(frozen=True)
class NoiseSpec:
    """What a policy needs to sample one action: `width` numbers of one kind."""

    kind: Kind
    width: int

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UsageError(f"NoiseSpec: expected the kind {', '.join(get_args(Kind))}, got {self.kind!r}")
        if type(self.width) is not int or self.width < 1:
            raise UsageError(f"NoiseSpec: expected a width of at least 1, numbers for one action, got {self.width!r}")

    @property
    def words(self) -> int:
        """Raw words per transition."""
        return 2 * self.width if self.kind == "normal" else self.width
