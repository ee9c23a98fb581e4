"""What every place where actors run offers to the reader, and how one is chosen.

    launch(start_of) -> lease(ring): leases to whoever can fill them -> wait(): until something is committed -> close()

`start_of(shard)` says where a shard stands (None: at its beginning); it is asked again whenever a lost worker is
replaced, after the reader has taken what the worker had committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from headrace.episodes.books import Whereabouts
from headrace.launch.hand import HandPlan
from headrace.launch.shard import ShardPlan
from headrace.memory.ring import Ring
from headrace.memory.ring_state import Lease
from headrace.memory.schema import Schema
from headrace.policies.noise import NoiseSpec

StartOf = Callable[[int], Whereabouts | None]
Tell = Callable[[str], None]  # a line for people


@dataclass(frozen=True)
class CrewPlan:
    """What all actors of a run are made from."""

    shards: tuple[ShardPlan, ...]
    schemas: tuple[Schema, ...]
    noise: NoiseSpec
    hand: HandPlan


@dataclass
class Spent:
    """Seconds of all actors together since the last look."""

    env: float = 0.0
    inference: float = 0.0
    copy: float = 0.0
    idle: float = 0.0  # waiting for a lease


def every_lease(ring: Ring, shards: Iterable[int]) -> Iterator[Lease]:
    """All leases that the pace allows some shards, one each in turn, so that older rollouts come first."""
    waiting = list(shards)
    while waiting:
        refused = []
        for shard in waiting:
            lease = ring.lease(shard)
            if lease is None:
                refused.append(shard)
            else:
                yield lease
        waiting = [shard for shard in waiting if shard not in refused]


class Actors(Protocol):
    """All actors of a run."""

    restarts: int

    def launch(self, start_of: StartOf, tell: Tell) -> None:
        """Bring everybody up; returns when all environments are ready. Says who is ready if it takes long."""

    def lease(self, ring: Ring, version: int) -> None:
        """Replace who is gone, and hand out every lease that the pace allows; does not wait."""

    def wait(self) -> None:
        """Until a slab is committed or somebody is gone. A failure of an environment is raised here."""

    def spent(self) -> Spent:
        """Where the actors' time went since the last call."""

    def close(self) -> None:
        """End everybody and close all environments; may be called at any time, and twice."""
