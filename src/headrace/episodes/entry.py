"""An entry: what one committed slab adds to the journal on disk.

    slab that was just entered, its checksums --entry_of--> Entry, copied --journal_file--> a frame

Made only where episodes are recorded. Does not know files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.episodes.journal import Journal
from headrace.memory.slab import Slab
from headrace.memory.start_digest import start_digests

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Entry:
    """What one slab adds to the journal, copied: T rows of the B environments from `env_start` on."""

    env_start: int
    worker: int
    version: Array  # [T]
    episode: Array  # [B], of the first row
    step: Array  # [B], of the first row
    action: Array  # [T, B, ...] as slabs hold them
    valid: Array  # [T, B]
    terminated: Array  # [T, B]
    truncated: Array  # [T, B]
    checksum: Array  # [B], of the running episodes after the last row
    end_checksum: Array  # of the episodes that ended, by row, then environment
    start: Array  # rows t * B + b in which episodes began
    start_digest: Array  # of the observation that each began with


def entry_of(journal: Journal, env_indices: range, worker: int, slab: Slab, checksums: Array) -> Entry:
    """What the slab that was just entered adds, with the checksums that `Journal.enter` returned."""
    terminated, truncated = slab.terminated & slab.valid, slab.truncated & slab.valid
    part = slice(env_indices.start, env_indices.stop)
    rows, envs = np.nonzero((slab.step == 0) & slab.valid)
    return Entry(
        env_indices.start, worker, slab.version.copy(), slab.episode[0].copy(), slab.step[0].copy(),
        slab.action.copy(), slab.valid.copy(), terminated, truncated, journal.checksum[part].copy(),
        checksums[terminated | truncated], rows * len(env_indices) + envs, start_digests(slab.obs, rows, envs),
    )  # fmt: skip
