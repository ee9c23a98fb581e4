"""Episode statistics, accumulated from committed slabs: they do not depend on info dicts.

    batch in env order -> finished episodes (id, return, length, how it ended), ordered by row, then environment
                       -> the mean over the last `window` of them (SB3's ep_rew_mean)

Does not know files or views.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.memory.schema import DROPPED_END
from headrace.memory.slab import Slab

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Finished:
    """One finished episode."""

    env_index: int
    episode: int
    total_reward: float
    length: int
    terminated: bool


class EpisodeStatistics:
    """Running returns and lengths of all environments of a run."""

    def __init__(self, n_envs: int, window: int = 100) -> None:
        self._return = np.zeros(n_envs, np.float64)
        self._length = np.zeros(n_envs, np.int64)
        self._recent: deque[tuple[float, int]] = deque(maxlen=window)
        self.finished = 0

    def add(
        self,
        reward: Array,
        terminated: Array,
        truncated: Array,
        valid: Array,
        episode: Array,
        columns: Array | None = None,
        step: Array | None = None,
    ) -> list[Finished]:
        """Take in [T, N] rows of all environments, or of those in `columns`; returns the episodes that ended.

        `step` says which rows end an episode that was dropped: it is not among them.
        """
        envs = np.arange(len(self._return)) if columns is None else columns
        ended = (terminated | truncated) & valid
        rewards = np.where(valid, reward, 0.0).astype(np.float64)
        total, count = self._return[envs], self._length[envs]
        begin = np.zeros(len(envs), np.int64)  # first row of each environment's running episode
        done: list[Finished] = []
        dropped = np.zeros_like(ended) if step is None else step == DROPPED_END
        for t, b in np.argwhere(ended | dropped):  # by row, then environment
            rows = slice(begin[b], t + 1)
            final, length = float(total[b] + rewards[rows, b].sum()), int(count[b] + valid[rows, b].sum())
            if not dropped[t, b]:
                done.append(Finished(int(envs[b]), int(episode[t, b]), final, length, bool(terminated[t, b])))
            total[b], count[b], begin[b] = 0.0, 0, t + 1
        running = np.arange(len(reward))[:, None] >= begin
        self._return[envs] = total + np.where(running, rewards, 0.0).sum(0)
        self._length[envs] = count + (valid & running).sum(0)
        self._recent.extend((one.total_reward, one.length) for one in done)
        self.finished += len(done)
        return done

    def add_slabs(self, slabs: Sequence[tuple[range, Slab]]) -> list[Finished]:
        """Take in slabs with their env indices; of a shard's slabs one after the other, in the order given."""
        done: list[Finished] = []
        rest = list(slabs)
        while rest:
            layer: dict[int, tuple[range, Slab]] = {}
            for envs, slab in rest:
                layer.setdefault(envs.start, (envs, slab))
            now = [layer[start] for start in sorted(layer)]
            columns = np.concatenate([np.arange(envs.start, envs.stop) for envs, _ in now])
            fields = ("reward", "terminated", "truncated", "valid", "episode", "step")
            done += self.add(
                **{name: np.concatenate([slab.arrays[name] for _, slab in now], 1) for name in fields}, columns=columns
            )
            rest = [one for one in rest if one[1] is not layer[one[0].start][1]]
        return done

    def means(self) -> tuple[float, float] | None:
        """Mean return and length of the recent episodes; None before the first one ended."""
        if not self._recent:
            return None
        returns, lengths = zip(*self._recent, strict=True)
        return float(np.mean(returns)), float(np.mean(lengths))

    def encode(self) -> dict[str, Any]:
        """All of it as JSON. Python writes floats so that they read back to the last bit."""
        return {
            "return": self._return.tolist(),
            "length": self._length.tolist(),
            "recent": [list(pair) for pair in self._recent],
            "finished": self.finished,
        }

    def restore(self, data: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._return[:], self._length[:] = data["return"], data["length"]
        self._recent.clear()
        self._recent.extend((total, length) for total, length in data["recent"])
        self.finished = data["finished"]
