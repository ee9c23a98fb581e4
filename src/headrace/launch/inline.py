"""Inline: every shard's actor in the caller's thread, one after the other.

    for each shard: lease -> load the latest weights -> fill -> commit          until the pace allows no more leases

The simplest place to run, and for cheap environments often the fastest. A crash here can't be replaced; it reaches the
caller as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headrace.acting.actor import Act, Actor
from headrace.clock import now_ns
from headrace.envs.vector_env import LiveEpisode
from headrace.memory.ring import Ring
from headrace.memory.slab import Array


class InlineActors:
    """All actors of a run, driven by `collect`."""

    def __init__(self, actors: Sequence[Actor], act: Act, latest_version: Callable[[], int]) -> None:
        self._actors = list(actors)
        self._act = act
        self._latest_version = latest_version  # loads the newest weights into what `act` runs, and names them

    def begin(self, shards: Sequence[range], last_obs: Array) -> None:
        """Start all environments; `last_obs` says the shape and dtype of an observation of all of them."""
        for actor, shard in zip(self._actors, shards, strict=True):
            actor.begin(np.empty_like(last_obs[shard.start : shard.stop]))

    def restore(
        self, shards: Sequence[range], live: Sequence[LiveEpisode], last_obs: Array, noise_counter: Array
    ) -> None:
        """Bring all environments back to their last commit."""
        for actor, shard in zip(self._actors, shards, strict=True):
            part = slice(shard.start, shard.stop)
            actor.restore(live[part], last_obs[part], noise_counter[part])

    def collect(self, ring: Ring) -> None:
        """Fill every slab that the pace allows."""
        for shard, actor in enumerate(self._actors):
            lease = ring.lease(shard)
            if lease is not None:
                slab = ring.slab(lease)
                actor.fill(slab, self._act, self._latest_version())
                slab.commit(lease.fence, now_ns())

    def spent_s(self) -> dict[str, float]:
        """Seconds in env, inference and copy since the last call."""
        total = {"env": 0.0, "inference": 0.0, "copy": 0.0}
        for actor in self._actors:
            for name in total:
                total[name] += getattr(actor.spent, name) / 1e9
                setattr(actor.spent, name, 0)
        return total

    def close(self) -> None:
        """Close all environments."""
        for actor in self._actors:
            actor.close()
