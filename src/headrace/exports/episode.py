"""A whole episode, and the files that take it. Files appear under their name when they are complete, or not at all.

    replayed or stitched episodes --add--> a RolloutFile --finish--> its name     (an exception: discard, nothing stays)

Does not know where episodes come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.errors import HeadraceError
from headrace.memory.spaces import Leaves

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Episode:
    """T steps and T + 1 observations: the last one is that in which it ended."""

    env_index: int
    episode: int
    seed: int
    """Of its reset."""
    leaves: Leaves
    action: Array
    """As the policy chose them: not clipped, choices counted from 0."""
    reward: Array
    terminated: bool
    truncated: bool
    version: Array
    """Of the policy that acted in each step."""
    log_prob: Array | None = None
    value: Array | None = None

    @property
    def length(self) -> int:
        """T."""
        return len(self.reward)

    @property
    def flags(self) -> tuple[Array, Array]:
        """Terminated and truncated of every step, [T] each."""
        terminated, truncated = np.zeros((2, self.length), np.bool_)
        terminated[-1:], truncated[-1:] = self.terminated, self.truncated
        return terminated, truncated

    @property
    def size_bytes(self) -> int:
        """Of its observations, which are most of it."""
        return sum(leaf.nbytes for leaf in self.leaves.values())


class RolloutFile(Protocol):
    """What episodes are written to."""

    def add(self, episode: Episode) -> None:
        """Write it, now or with others."""

    def finish(self) -> None:
        """Everything was written: let it appear under its name."""

    def discard(self) -> None:
        """Leave nothing."""


@contextmanager
def writing(name: str) -> Iterator[None]:
    """A full disk, a folder that may not be written: an error that names the file."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # HDF5's library raises the second
        raise HeadraceError(f"{name}: can't be written: {error}; make room or choose another place") from error
