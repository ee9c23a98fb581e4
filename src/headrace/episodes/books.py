"""The books of a run: what the reader knows of every environment, entered from committed slabs and from nothing else.

    slab joins a batch --enter--> ledger (produced) · journal · last observations · noise counters
    batch --settle--> ledger (consumed) · episode statistics, in env order

From the books any shard can be brought up anywhere (`whereabouts`), and a checkpoint is a copy of them. A slab that was
committed and waits for its batch is not in the books yet: a lost worker goes on after it, a resumed run makes it again.
Workers never write here, so a dying one can't tear it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.envs.vector_env import LiveEpisode
from headrace.episodes.journal import Journal
from headrace.episodes.statistics import EpisodeStatistics, Finished
from headrace.memory.ledger import Ledger
from headrace.memory.ring import Taken
from headrace.memory.slab import Slab
from headrace.memory.spaces import Space, shape_of

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Whereabouts:
    """Where a shard goes on: its live episodes, the observations they stand at, and its noise counters."""

    live: list[LiveEpisode]
    last_obs: Array
    noise_counter: Array


class Books:
    """Everything that is remembered of a run's environments between two slabs."""

    def __init__(
        self,
        shards: Sequence[range],
        observation: Space,
        action: Space,
        seed_of: Callable[[int, int], int],
        as_sent: Callable[[Array], Array],
    ) -> None:
        n_envs = shards[-1].stop
        self._shards = shards
        self._action = action
        self.ledger = Ledger(len(shards))
        self.statistics = EpisodeStatistics(n_envs)
        self.journal = Journal(n_envs, seed_of, as_sent)
        self.last_obs = np.zeros((n_envs, *shape_of(observation)), observation.dtype)
        self.noise_counter = np.zeros(n_envs, np.int64)
        self.steps_of_shard = [0] * len(shards)  # consumed since the start of this process
        self._has_begun = [False] * len(shards)
        self._finished: list[Finished] = []  # in rejected slabs since the last batch

    def enter(self, taken: Taken) -> None:
        """A slab was taken from the ring."""
        shard, slab = self._shards[taken.lease.shard], taken.slab
        self.ledger.produce(taken.lease.shard, taken.lease.sequence, int(slab.valid.sum()))
        self.journal.append(shard, slab.action, slab.terminated, slab.truncated, slab.valid)
        self.last_obs[shard.start : shard.stop] = slab.last_obs
        self.noise_counter[shard.start : shard.stop] = slab.noise_counter
        self._has_begun[taken.lease.shard] = True

    def settle(self, batch: Sequence[Taken]) -> list[Finished]:
        """The batch was trained on; returns the episodes that ended in it, by row, then environment."""
        for one in batch:
            steps = int(one.slab.valid.sum())
            self.ledger.consume(steps)
            self.steps_of_shard[one.lease.shard] += steps
        finished, self._finished = [*self._finished, *self._count(batch)], []
        return finished

    def reject(self, taken: Taken) -> None:
        """A slab is passed over; its episodes still happened, and are told with the next batch's."""
        self.enter(taken)
        self.ledger.reject(int(taken.slab.valid.sum()))
        self._finished += self._count([taken])

    def least_share(self) -> float:
        """The smallest consumption of an environment relative to the mean: 1 where all are represented alike."""
        shares = [steps / len(shard) for steps, shard in zip(self.steps_of_shard, self._shards, strict=True)]
        return min(shares) / max(sum(shares) / len(shares), 1e-9)

    def whereabouts(self, shard: int, waiting: Sequence[Slab]) -> Whereabouts | None:
        """Where a shard stands after its slabs that wait for a batch; None before its first."""
        if not self._has_begun[shard] and not waiting:
            return None
        envs = self._shards[shard]
        journal = self.journal.fork(envs)
        for slab in waiting:
            journal.append(envs, slab.action, slab.terminated, slab.truncated, slab.valid)
        if waiting:
            return Whereabouts(journal.live(envs), waiting[-1].last_obs.copy(), waiting[-1].noise_counter.copy())
        part = slice(envs.start, envs.stop)
        return Whereabouts(journal.live(envs), self.last_obs[part].copy(), self.noise_counter[part].copy())

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """The books as JSON and arrays, copied."""
        live = self.journal.live(range(self._shards[-1].stop))
        shape, dtype = shape_of(self._action), self._action.dtype
        actions = [one.actions.reshape(-1, *shape).astype(dtype, copy=False) for one in live]
        state = {
            "is_begun": any(self._has_begun),
            "live_episodes": [[one.episode, one.seed] for one in live],
            "ledger": self.ledger.encode(),
            "statistics": self.statistics.encode(),
        }
        arrays = {
            "last_obs": self.last_obs.copy(),
            "noise_counter": self.noise_counter.copy(),
            "lengths": np.array([len(one.actions) for one in live], np.int64),
            "actions": np.concatenate(actions),
        }
        return state, arrays

    def restore(self, state: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Go on from a checkpoint, with as many shards as there are now."""
        self.ledger.restore(state["ledger"])
        self.statistics.restore(state["statistics"])
        if not state["is_begun"]:
            return
        starts = np.concatenate([[0], np.cumsum(arrays["lengths"])])
        self.journal.restore(
            [
                LiveEpisode(env, episode, seed, arrays["actions"][starts[env] : starts[env + 1]])
                for env, (episode, seed) in enumerate(state["live_episodes"])
            ]
        )
        self.last_obs[:] = arrays["last_obs"]
        self.noise_counter[:] = arrays["noise_counter"]
        self._has_begun = [True] * len(self._shards)

    def _count(self, batch: Sequence[Taken]) -> list[Finished]:
        """One slab of each shard at a time: two of one shard follow one another."""
        done: list[Finished] = []
        rest = list(batch)
        while rest:
            layer: dict[int, Taken] = {}
            for one in rest:
                layer.setdefault(one.lease.shard, one)
            slabs = [layer[shard].slab for shard in sorted(layer)]
            columns = np.concatenate([np.arange(s.start, s.stop) for s in (self._shards[i] for i in sorted(layer))])
            fields = ("reward", "terminated", "truncated", "valid", "episode")
            arrays = {name: np.concatenate([slab.arrays[name] for slab in slabs], 1) for name in fields}
            done += self.statistics.add(**arrays, columns=columns)
            rest = [one for one in rest if one is not layer[one.lease.shard]]
        return done
