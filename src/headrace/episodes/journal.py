"""The journal: what it takes to bring every environment of a run back to where it stands.

    committed slab --enter--> actions and checksums of the live episodes · last observations · noise counters

The reader's side writes it, from committed slabs only; workers never do, so a dying worker can't tear it. It holds
actions as the policy chose them; replay turns them into what the environment is sent, as the first play did. When an
episode ends its actions are dropped. A slab that was committed and waits for its batch is not entered yet: a lost
worker goes on after it, a resumed run makes it again.
The checksum covers all that an episode showed, so a replay that differs in a reward alone is noticed.
Does not know how it is read (standing), what goes to disk (entry) or how an environment is replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.memory.checksum import begin, extend_by_slab
from headrace.memory.schema import DROPPED_END
from headrace.memory.slab import Slab
from headrace.memory.spaces import ObservationSpace, Space, empty_leaves

Array = npt.NDArray[Any]


class Journal:
    """The live episodes of all environments of a run."""

    def __init__(
        self, n_envs: int, seed_of: Callable[[int, int], int], observation: ObservationSpace, action: Space
    ) -> None:
        self.seed_of = seed_of
        self.spaces = observation, action
        self.episode = [0] * n_envs
        self.chunks: list[list[Array]] = [[] for _ in range(n_envs)]
        self.checksum = np.array([begin(env, 0) for env in range(n_envs)], np.uint64)
        self.last_obs = empty_leaves(observation, n_envs)
        self.noise_counter = np.zeros(n_envs, np.int64)
        for leaf in self.last_obs.values():
            leaf.fill(0)

    def enter(self, env_indices: range, slab: Slab) -> Array:
        """Take in one committed slab of these environments; returns the checksum of its episode after each row."""
        ended = ((slab.terminated | slab.truncated) & slab.valid) | (slab.step == DROPPED_END)
        self.append(env_indices, slab.action, ended, slab.valid)
        part = slice(env_indices.start, env_indices.stop)
        checksums = extend_by_slab(self.checksum[part], env_indices.start, slab)
        for name, leaf in self.last_obs.items():
            leaf[part] = slab.last_obs[name]
        self.noise_counter[part] = slab.noise_counter
        return checksums

    def append(self, env_indices: range, action: Array, ended: Array, valid: Array) -> None:
        """The actions of some rows, [T, B]; `ended`: the episode did, or was dropped."""
        ends = ended.sum(0)
        after_end = np.where(ends > 0, len(ended) - np.argmax(ended[::-1], axis=0), 0)  # first row of the live episode
        all_valid = bool(valid.all())
        for b, env in enumerate(env_indices):
            if ends[b]:
                self.episode[env] += int(ends[b])
                self.chunks[env].clear()
            first = int(after_end[b])
            rows = action[first:, b]  # copied: the slab will be reused
            self.chunks[env].append(rows.copy() if all_valid else rows[valid[first:, b]])
