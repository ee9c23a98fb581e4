"""The first episodes of environment 0 that a session sees from their beginning, kept to be played once more.

    entered slab, checksums --take--> rows of environment 0 --> ShownEpisode: actions, rewards, flags, checksum per step

Plain arrays, so that another process can play them. What has begun before is left out (a resumed run); what is not
contiguous with the rows before it is begun anew. Keeps a few episodes and no more rows than fit. Does not know who
plays them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.memory.slab import Slab

Array = npt.NDArray[Any]
_MOST_STEPS = 100_000  # of all that is kept


@dataclass(frozen=True)
class ShownEpisode:
    """One episode as the run saw it."""

    episode: int
    actions: Array  # [steps, ...] as slabs hold them
    rewards: npt.NDArray[np.float32]
    flags: npt.NDArray[np.bool_]  # [steps, 2]: terminated, truncated
    checksums: npt.NDArray[np.uint64]  # after each step: of all that it showed up to there


class FirstEpisodes:
    """Collects them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._at: tuple[int, int] | None = None  # episode and step that must come next
        self._parts: list[tuple[Array, ...]] = []
        self._steps = 0
        self.finished: list[ShownEpisode] = []
        self.is_full = False

    def take(self, env_indices: range, slab: Slab, checksums: Array) -> None:
        """One slab that was just entered, with the checksums that `Journal.enter` returned."""
        if self.is_full or env_indices.start != 0:
            return
        rows = np.flatnonzero(slab.valid[:, 0])
        columns = slab.episode, slab.step, slab.action, slab.reward, slab.terminated, slab.truncated, checksums
        episode, step, action, reward, terminated, truncated, checksum = (one[rows, 0] for one in columns)  # copies
        start = 0
        for end in [*(np.flatnonzero(terminated | truncated) + 1).tolist(), len(rows)]:
            if start == end:
                continue
            place = int(episode[start]), int(step[start])
            if place[1] == 0 or place != self._at:
                self._parts = []
            part = slice(start, end)
            flags = np.stack([terminated[part], truncated[part]], axis=1)
            if place[1] == 0 or self._parts:
                self._parts.append((action[part], reward[part], flags, checksum[part]))
                self._steps += end - start
            self._at = place[0], place[1] + end - start
            if flags[-1].any() and self._parts:
                whole = [np.concatenate(arrays) for arrays in zip(*self._parts, strict=True)]
                self.finished.append(ShownEpisode(place[0], *whole))
                self._parts = []
            start = end
            self.is_full = len(self.finished) == self._count or self._steps > _MOST_STEPS
            if self.is_full:
                self._parts = []
                return
