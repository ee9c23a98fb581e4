"""When a worker process has had enough: its environments leak memory, or it has played its number of episodes.

    at each of its commits: memory of its own, episodes since it came up ──> why it is to be replaced, or None

Memory is what /proc says: resident pages that are not shared, so neither rollouts nor weights count. Ends nothing
itself (workers); what replaces it goes on by replay, to the same bits. The replay of long episodes may leak as much
again: then a worker is above the limit when it comes up, and so would be every other. It stays until it has ended an
episode: from then on another one has less to replay.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from headrace.collecting.place import Say
from headrace.collecting.topology import WorkerLimits
from headrace.errors import HeadraceError, UsageError

_MB = 1 << 20


class Recycling:
    """The limits, and where each worker began."""

    def __init__(self, max_memory_mb: int, max_episodes: int) -> None:
        self._max_memory_mb, self._max_episodes = max_memory_mb, max_episodes
        self._first_episodes: dict[int, int] = {}
        self._came_up_above: set[int] = set()
        self._has_said = False

    @classmethod
    def of(cls, limits: WorkerLimits, is_pool: bool) -> Self | None:
        """None without a limit. Refused where nothing can be replayed."""
        if not (limits.max_memory_mb or limits.max_episodes):
            return None
        if is_pool:
            raise UsageError(
                "worker_max_memory_mb and worker_max_episodes replace workers by replay, and these environments are a "
                "pool that resets itself (class B): pass the single environment, or leave the two options out"
            )
        return cls(limits.max_memory_mb, limits.max_episodes)

    def begin(self, worker: int, pid: int, episodes: int, has_replayed: bool, say: Say) -> None:
        """A worker has come up; refused if it is above the limit without a replay, since so would be every other."""
        self._first_episodes[worker] = episodes
        self._came_up_above.discard(worker)
        used_mb = memory_mb(pid)
        if not self._max_memory_mb or used_mb <= self._max_memory_mb:
            return
        if not has_replayed:
            raise HeadraceError(
                f"worker_max_memory_mb: expected more than a worker needs to begin with, got {self._max_memory_mb}; "
                f"worker {worker} uses {used_mb:.0f} MB before its first step"
            )
        self._came_up_above.add(worker)
        if not self._has_said:
            self._has_said = True
            say(
                f"worker_max_memory_mb is {self._max_memory_mb}, and worker {worker} uses {used_mb:.0f} MB once it has "
                f"replayed its episodes: a worker in that state is replaced only after it has ended an episode; set it "
                f"well above {used_mb:.0f}"
            )

    def reason(self, worker: int, pid: int, episodes: int) -> str | None:
        """Why it should be replaced now, in words."""
        played = episodes - self._first_episodes[worker]
        if self._max_episodes and played >= self._max_episodes:
            return f"it has played {played} episodes (worker_max_episodes is {self._max_episodes})"
        if not self._max_memory_mb or (worker in self._came_up_above and not played):
            return None
        used_mb = memory_mb(pid)
        if used_mb > self._max_memory_mb:
            return f"it uses {used_mb:.0f} MB (worker_max_memory_mb is {self._max_memory_mb})"
        return None


def memory_mb(pid: int) -> float:
    """Resident memory of a process without what it shares; 0 if it is gone."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0.0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE") / _MB
