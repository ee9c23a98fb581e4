"""The journal: what it takes to bring every environment of a run back to where it stands.

    committed slab --enter--> actions of the live episodes · last observations · noise counters
                   --standing(shard)--> Standing: an actor goes on from it (a lost worker, a resume, another topology)

The reader's side writes it, from committed slabs only; workers never do, so a dying worker can't tear it. It holds
actions as the policy chose them; replay turns them into what the environment is sent, as the first play did. When an
episode ends its actions are dropped. A slab that was committed and waits for its batch is not entered yet: a lost
worker goes on after it, a resumed run makes it again. An environment without a slab so far is at the beginning of its
episode 0, and no observation is recorded for it. Does not know how an environment is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.envs.vector_env import LiveEpisode
from headrace.errors import ReplayError
from headrace.memory.slab import Slab
from headrace.memory.spaces import Leaves, Space, empty_leaves, shape_of

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Standing:
    """Where a shard goes on: its live episodes, the observations they stand at, and its noise counters."""

    live: list[LiveEpisode]
    last_obs: Leaves
    noise_counter: Array


class Journal:
    """The live episodes of all environments of a run."""

    def __init__(self, n_envs: int, seed_of: Callable[[int, int], int], observation: Space, action: Space) -> None:
        self._seed_of = seed_of
        self._spaces = observation, action
        self._episode = [0] * n_envs
        self._chunks: list[list[Array]] = [[] for _ in range(n_envs)]
        self._last_obs = empty_leaves(observation, n_envs)
        self._noise_counter = np.zeros(n_envs, np.int64)
        for leaf in self._last_obs.values():
            leaf.fill(0)

    def enter(self, env_indices: range, slab: Slab) -> None:
        """Take in one committed slab of these environments."""
        self.append(env_indices, slab.action, slab.terminated, slab.truncated, slab.valid)
        part = slice(env_indices.start, env_indices.stop)
        for name, leaf in self._last_obs.items():
            leaf[part] = slab.last_obs[name]
        self._noise_counter[part] = slab.noise_counter

    def append(self, env_indices: range, action: Array, terminated: Array, truncated: Array, valid: Array) -> None:
        """The actions of some rows, [T, B]."""
        ended = (terminated | truncated) & valid
        ends = ended.sum(0)
        after_end = np.where(ends > 0, len(ended) - np.argmax(ended[::-1], axis=0), 0)  # first row of the live episode
        all_valid = bool(valid.all())
        for b, env in enumerate(env_indices):
            if ends[b]:
                self._episode[env] += int(ends[b])
                self._chunks[env].clear()
            first = int(after_end[b])
            rows = action[first:, b]  # copied: the slab will be reused
            self._chunks[env].append(rows.copy() if all_valid else rows[valid[first:, b]])

    def standing(self, env_indices: range, waiting: Sequence[Slab] = ()) -> Standing | None:
        """Where environments of one shard stand after its slabs that wait for a batch; None before its first."""
        if not waiting and not any(self._episode[env] or self._chunks[env] for env in env_indices):
            return None
        fork = Journal(len(self._episode), self._seed_of, *self._spaces)
        part = slice(env_indices.start, env_indices.stop)
        fork._episode[part] = self._episode[part]
        fork._chunks[part] = [list(chunks) for chunks in self._chunks[part]]
        fork._noise_counter[part] = self._noise_counter[part]
        for name, leaf in fork._last_obs.items():
            leaf[part] = self._last_obs[name][part]
        for slab in waiting:
            fork.enter(env_indices, slab)
        last_obs = {name: leaf[part].copy() for name, leaf in fork._last_obs.items()}
        return Standing(fork.live(env_indices), last_obs, fork._noise_counter[part].copy())

    def live(self, env_indices: range) -> list[LiveEpisode]:
        """The live episodes of some environments, as they stood at the last commit."""
        _, action = self._spaces
        none = np.zeros((0, *shape_of(action)), action.dtype)
        return [
            LiveEpisode(
                env,
                self._episode[env],
                self._seed_of(env, self._episode[env]),
                np.concatenate(self._chunks[env]) if self._chunks[env] else none,
            )
            for env in env_indices
        ]

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """As JSON and arrays, copied."""
        live = self.live(range(len(self._episode)))
        state = {"live_episodes": [[one.episode, one.seed] for one in live]}
        arrays = {
            "noise_counter": self._noise_counter.copy(),
            "lengths": np.array([len(one.actions) for one in live], np.int64),
            "actions": np.concatenate([one.actions for one in live]),
        }
        return state, arrays | {f"last_{name}": leaf.copy() for name, leaf in self._last_obs.items()}

    def restore(self, state: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Go on from a checkpoint, whatever the shards were then."""
        starts = np.concatenate([[0], np.cumsum(arrays["lengths"])])
        for env, (episode, seed) in enumerate(state["live_episodes"]):
            self._take_over(LiveEpisode(env, episode, seed, arrays["actions"][starts[env] : starts[env + 1]]))
        for name, leaf in self._last_obs.items():
            leaf[:] = arrays[f"last_{name}"]
        self._noise_counter[:] = arrays["noise_counter"]

    def _take_over(self, live: LiveEpisode) -> None:
        if live.seed != self._seed_of(live.env_index, live.episode):
            raise ReplayError(
                f"env {live.env_index}, episode {live.episode}: its seed {live.seed} is not the seed tree's; "
                f"the journal belongs to a run with another seed"
            )
        self._episode[live.env_index] = live.episode
        self._chunks[live.env_index] = [live.actions] if len(live.actions) else []
