"""NaN and infinities of observations and rewards, made finite: what nan_policy=clamp stores instead of them.

    NaN -> 0, or the bound nearest to it        an infinity -> the bound of its Box, no further than 1e6

A pure function of what the environment returned, so a replay clamps as the run did. Does not know rows or episodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.memory.spaces import Box, ObservationSpace, Space, bounds, leaves_of

Array = npt.NDArray[Any]
LIMIT = 1e6  # what an infinity becomes where its Box has no nearer bound


class Clamp:
    """Clamps observations of one space, and rewards."""

    def __init__(self, space: ObservationSpace) -> None:
        self._limits = {name: _limits(leaf) for name, leaf in leaves_of(space).items()}

    def observations(self, name: str, values: Array) -> Array:
        """Observations without NaN and infinity; the other numbers stay as they are."""
        low, high = self._limits[name]
        near = np.where(np.isnan(values), np.clip(np.zeros_like(values), low, high), np.where(values > 0, high, low))
        return np.asarray(np.where(np.isfinite(values), values, near), values.dtype)

    def rewards(self, values: Array) -> Array:
        """The same for rewards."""
        return np.nan_to_num(values, nan=0.0, posinf=LIMIT, neginf=-LIMIT)


def _limits(space: Space) -> tuple[Array, Array]:
    """What infinities become: the bounds of a Box, if they are nearer than LIMIT."""
    if not isinstance(space, Box) or np.dtype(space.dtype).kind != "f":
        return np.zeros(()), np.zeros(())  # whole numbers have no infinities
    low, high = bounds(space)
    low = np.where(low > -LIMIT, low, -LIMIT)
    return low, np.maximum(np.where(high < LIMIT, high, LIMIT), low)
