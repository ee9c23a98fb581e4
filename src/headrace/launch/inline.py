"""Inline: every shard's actor in the caller's thread, one after the other.

    lease: a lease per shard that the pace allows -> wait: fill and commit them, in shard order

The simplest place to run, and for cheap environments often the fastest. A crash here can't be replaced; it reaches the
caller as it is. Replays recorded schedules of other places, since it can act with any version that is still kept.
"""

from __future__ import annotations

from collections import deque

from headrace.acting.actor import Actor
from headrace.errors import HeadraceError
from headrace.launch.actors import CrewPlan, Spent, StartOf, Tell, every_lease
from headrace.launch.hand import Hand
from headrace.launch.schedule import Schedule
from headrace.launch.shard import build_actor, seat
from headrace.memory.ring import Ring
from headrace.memory.ring_state import Lease
from headrace.weights.store import WeightStore


class InlineActors:
    """All actors of a run, driven by the caller."""

    restarts = 0

    def __init__(self, plan: CrewPlan, store: WeightStore, schedule: Schedule | None = None) -> None:
        self._plan = plan
        self._actors: list[Actor] = []
        self._hand = Hand(plan.hand, store)
        self._schedule = schedule
        self._scheduled: int | None = None  # rollouts of it that are done or asked for
        self._pending: deque[tuple[Ring, Lease, int]] = deque()

    def launch(self, start_of: StartOf, tell: Tell) -> None:
        """Start, or bring back, all environments."""
        for plan in self._plan.shards:
            self._actors.append(build_actor(plan, self._plan.noise))
        for shard, (actor, plan) in enumerate(zip(self._actors, self._plan.shards, strict=True)):
            seat(actor, start_of(shard), self._plan.hand.observation, len(plan.env_indices))

    def lease(self, ring: Ring, version: int) -> None:
        """Note every lease that the pace allows: older rollouts first, or in the order of the schedule."""
        if self._schedule is None:
            leases = list(every_lease(ring, range(len(self._actors))))
        else:
            leases = []
            uses = self._schedule.uses
            if self._scheduled is None:  # a resumed replay goes on where its books end
                self._scheduled = sum(ring.sequences)
            while self._scheduled < len(uses) and (lease := ring.lease(uses[self._scheduled].shard)) is not None:
                leases.append(lease)
                self._scheduled += 1
        self._pending.extend((ring, lease, version) for lease in leases)

    def wait(self) -> None:
        """Fill the next slab; only one, since the weights of the later ones may not be there yet."""
        if not self._pending:
            raise HeadraceError(
                "no rollout is leased, so none can be waited for"
                + ("" if self._schedule is None else ": the schedule has no more; train for no more steps than it has")
            )
        ring, lease, version = self._pending.popleft()
        versions = None if self._schedule is None else self._schedule.versions_of(lease.shard, lease.sequence)
        self._hand.fill(self._actors[lease.shard], ring.slab(lease), lease.fence, version, versions)

    def spent(self) -> Spent:
        """Seconds in env, inference and copy since the last call."""
        total = Spent()
        for actor in self._actors:
            total.env += actor.spent.env / 1e9
            total.inference += actor.spent.inference / 1e9
            total.copy += actor.spent.copy / 1e9
            actor.spent.env = actor.spent.inference = actor.spent.copy = 0
        return total

    def close(self) -> None:
        """Close all environments."""
        actors, self._actors = self._actors, []
        for actor in actors:
            actor.close()
