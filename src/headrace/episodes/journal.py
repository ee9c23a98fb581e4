"""The journal: what is known of the running episodes of a run, and what came of those that ended.

    committed slab --enter--> of every running episode: its number, actions, checksum, return so far
                              of every environment: last observation, noise counter
                         --> the episodes that ended (id, return, length, how), by row, then environment

Actions, last observation and noise counter are what it takes to bring an environment back to where it stands. Actions
are kept as the policy chose them; replay turns them into what the environment is sent, as the first play did. The
checksum covers all that an episode showed, so a replay that differs in a reward alone is noticed. Returns and lengths
are counted here, from slabs, so they do not depend on info dicts.
The reader's side writes it, from committed slabs only; workers never do, so a dying worker can't tear it. A slab that
was committed and waits for its batch is not entered yet: a lost worker goes on after it, a resumed run makes it again.
Does not know how it is read and saved (standing), what goes to disk (entry) or how an environment is replayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.episodes.finished import Finished, Results
from headrace.memory.checksum import begin, extend
from headrace.memory.schema import DROPPED_END, state_leaf
from headrace.memory.slab import Slab
from headrace.memory.spaces import ObservationSpace, Space, empty_leaves

Array = npt.NDArray[Any]


class Entered(NamedTuple):
    """What a slab added."""

    env_start: int
    checksums: Array  # [T, B], of the episode of each row, after it
    ended: list[tuple[int, Finished]]  # with the row


class Journal:
    """The running episodes of all environments of a run; `results` are of those that ended."""

    def __init__(
        self, n_envs: int, seed_of: Callable[[int, int], int], observation: ObservationSpace, action: Space,
        window: int = 100, state_size: int = 0,
    ) -> None:  # fmt: skip
        self.seed_of = seed_of
        self.spaces = observation, action
        self.episode = [0] * n_envs
        self.chunks: list[list[Array]] = [[] for _ in range(n_envs)]  # of actions, slab by slab
        self.checksum = np.array([begin(env, 0) for env in range(n_envs)], np.uint64)
        self.total_reward = np.zeros(n_envs)
        self.last_obs = empty_leaves(observation, n_envs) | state_leaf(state_size, n_envs)
        self.noise_counter = np.zeros(n_envs, np.int64)
        for leaf in self.last_obs.values():
            leaf.fill(0)
        self.results = Results(window)

    def length(self, env: int) -> int:
        """Steps of the running episode of an environment."""
        return sum(map(len, self.chunks[env]))

    def enter(self, env_indices: range, slab: Slab) -> Entered:
        """Take in one committed slab of these environments. An episode that was dropped (nan_policy) has no result."""
        part, valid, dropped = slice(env_indices.start, env_indices.stop), slab.valid, slab.step == DROPPED_END
        rewards = np.where(valid, slab.reward, 0.0).astype(np.float64)
        first, all_valid = [0] * len(env_indices), bool(valid.all())  # rows of the running episodes
        ended, ends = [], np.nonzero(((slab.terminated | slab.truncated) & valid) | dropped)
        columns = (*ends, slab.episode[ends], slab.terminated[ends], dropped[ends])
        for t, b, number, is_terminated, is_dropped in zip(*(one.tolist() for one in columns), strict=True):
            env, rows = env_indices[b], slice(first[b], t + 1)
            if not is_dropped:
                total = float(self.total_reward[env] + np.add.reduce(rewards[rows, b]))
                steps = t + 1 - first[b] if all_valid else int(np.count_nonzero(valid[rows, b]))
                ended.append((t, Finished(env, number, total, self.length(env) + steps, is_terminated)))
            self.chunks[env].clear()
            self.total_reward[env], first[b] = 0.0, t + 1
            self.episode[env] += 1
        running = np.where(np.arange(len(rewards))[:, None] >= first, rewards, 0.0)
        self.total_reward[part] += running.cumsum(0)[-1]  # row by row, also where `sum` would not: B = 1
        for b, env in enumerate(env_indices):
            actions = slab.action[first[b] :, b]  # copied: the slab will be reused
            self.chunks[env].append(actions.copy() if all_valid else actions[valid[first[b] :, b]])
        checksums = extend(self.checksum[part], env_indices.start, slab)
        for name, leaf in slab.whole_last().items():
            self.last_obs[name][part] = leaf
        self.noise_counter[part] = slab.noise_counter
        return Entered(env_indices.start, checksums, ended)


def in_order(entered: Sequence[Entered]) -> list[Finished]:
    """Episodes that ended in some slabs, as one slab of all environments would report them: by row, then environment.

    Those of a shard's second slab come after those of every shard's first.
    """
    ended, seen = [], Counter[int]()
    for one in entered:
        ended += [(seen[one.env_start], row, finished.env_index, finished) for row, finished in one.ended]
        seen[one.env_start] += 1
    return [finished for *_, finished in sorted(ended)]
