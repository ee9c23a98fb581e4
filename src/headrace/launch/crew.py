"""Puts a run's actors where its topology says: the memory they share with the reader, and the actors themselves.

Topology, CrewPlan, policy --open_crew--> Crew(ring, weights, actors), closed as one
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from headrace.launch.actors import Actors, CrewPlan
from headrace.launch.inline import InlineActors
from headrace.launch.processes import ProcessActors
from headrace.launch.schedule import Schedule
from headrace.launch.threads import ThreadActors
from headrace.launch.topology import Topology
from headrace.launch.worker import WorkerPlan
from headrace.memory.ring import Ring
from headrace.memory.segment import HeapSegment, SharedSegment
from headrace.weights.store import WeightStore, store_bytes


@dataclass
class Crew:
    """What the reader works with."""

    ring: Ring
    weights: WeightStore
    actors: Actors

    def close(self) -> None:
        """End the actors, then give the memory back, whatever the actors do."""
        with ExitStack() as stack:
            stack.callback(self.ring.close)
            stack.callback(self.weights.close)
            stack.callback(self.actors.close)


def open_crew(
    topology: Topology, plan: CrewPlan, parameters: int, capacity: int, schedule: Schedule | None = None
) -> Crew:
    """The ring, the store of the last `capacity` versions and the actors of a topology; nothing is started yet."""
    is_shared = topology.topology == "processes"
    make = SharedSegment.create if is_shared else HeapSegment
    with ExitStack() as undo:
        ring = Ring(list(plan.schemas), topology.max_lag + 1, make, topology.is_even)
        undo.callback(ring.close)
        store = WeightStore(parameters, capacity, make(store_bytes(parameters, capacity)))
        undo.callback(store.close)
        actors = _actors(topology, plan, ring, store, parameters, capacity, schedule)
        undo.pop_all()
    return Crew(ring, store, actors)


def _actors(
    topology: Topology,
    plan: CrewPlan,
    ring: Ring,
    store: WeightStore,
    parameters: int,
    capacity: int,
    schedule: Schedule | None,
) -> Actors:
    if topology.topology == "processes":
        make_plan = partial(
            WorkerPlan,
            crew=plan,
            ring_segment=str(ring.segment.name),
            store_segment=str(store.segment.name),
            store_size=parameters,
            store_capacity=capacity,
        )
        return ProcessActors(plan, make_plan, topology.workers, topology.start_method)
    if topology.topology == "threads":
        return ThreadActors(plan, store, topology.workers)
    return InlineActors(plan, store, schedule)
