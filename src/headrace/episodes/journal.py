"""The journal: for every live episode, its id, seed and the actions sent to the environment so far.

    committed slab --append--> journal --live()--> LiveEpisode per env --> SerialEnvs.restore (crash, resume, moving)

The reader's side writes it, from committed slabs only; workers never do, so a dying worker can't tear it.
When an episode ends its actions are dropped. Does not know how an environment is replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.envs.vector_env import LiveEpisode
from headrace.errors import ReplayError

Array = npt.NDArray[Any]


class Journal:
    """The live episodes of all environments of a run."""

    def __init__(self, n_envs: int, seed_of: Callable[[int, int], int], as_sent: Callable[[Array], Array]) -> None:
        self._seed_of = seed_of
        self._as_sent = as_sent
        self._episode = [0] * n_envs
        self._chunks: list[list[Array]] = [[] for _ in range(n_envs)]

    def append(self, env_indices: range, action: Array, terminated: Array, truncated: Array, valid: Array) -> None:
        """Take in one committed slab, [T, B]."""
        sent = self._as_sent(action)
        ended = (terminated | truncated) & valid
        ends = ended.sum(0)
        after_end = np.where(ends > 0, len(ended) - np.argmax(ended[::-1], axis=0), 0)  # first row of the live episode
        all_valid = bool(valid.all())
        for b, env in enumerate(env_indices):
            if ends[b]:
                self._episode[env] += int(ends[b])
                self._chunks[env].clear()
            first = int(after_end[b])
            rows = sent[first:, b]  # copied: the slab will be reused
            self._chunks[env].append(rows.copy() if all_valid else rows[valid[first:, b]])

    def live(self, env_indices: range) -> list[LiveEpisode]:
        """The live episodes of some environments, as they stood at the last commit."""
        return [
            LiveEpisode(
                env, self._episode[env], self._seed_of(env, self._episode[env]), np.concatenate(self._chunks[env])
            )
            if self._chunks[env]
            else LiveEpisode(env, self._episode[env], self._seed_of(env, self._episode[env]), np.zeros((0,)))
            for env in env_indices
        ]

    def fork(self, env_indices: range) -> Journal:
        """A journal of some environments that goes its own way from here."""
        other = Journal(len(self._episode), self._seed_of, self._as_sent)
        for env in env_indices:
            other._episode[env] = self._episode[env]
            other._chunks[env] = list(self._chunks[env])
        return other

    def restore(self, live: list[LiveEpisode]) -> None:
        """Take over the live episodes of a checkpoint."""
        for one in live:
            if one.seed != self._seed_of(one.env_index, one.episode):
                raise ReplayError(
                    f"env {one.env_index}, episode {one.episode}: its seed {one.seed} is not the seed tree's; "
                    f"the journal belongs to a run with another seed"
                )
            self._episode[one.env_index] = one.episode
            self._chunks[one.env_index] = [one.actions] if len(one.actions) else []
