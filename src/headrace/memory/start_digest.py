"""A digest of an observation alone: equal for equal observations of any environment and episode.

    rows of a slab in which episodes began ──start_digests──> 64 bits each

The checksum of an episode (`checksum`) begins with its number, so it can't show that two episodes begin alike. The
mixing is the same. Of a frame stack it covers the newest frame: at the start of an episode all frames are that one.
"""

from __future__ import annotations

import numpy as np

from headrace.memory.checksum import ROW, Array, Sums, absorb, words_of
from headrace.memory.spaces import Leaves


def start_digests(obs: Leaves, rows: Array, envs: Array) -> Sums:
    """Of the observations at these places of [T, B]."""
    digest = np.full(len(rows), ROW)
    if len(rows):
        for leaf in obs.values():
            absorb(words_of(leaf[rows, envs], len(rows)), digest)
    return digest
