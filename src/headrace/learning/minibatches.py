"""Which rows make up which minibatch: one permutation of the valid rows per epoch, from the seed tree.

A partial last minibatch is trained, as SB3 does. Pure: the permutation depends on (seed, update, epoch) only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


def minibatches(rows: Indices, batch_size: int, generator: np.random.Generator) -> Iterator[Indices]:
    """One epoch over the given rows."""
    order = generator.permutation(rows)
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
