"""From a configuration to the parts of a run. Read once, at the start; nothing here runs per update.

    RunConfig ──survey──> spaces, topology ──> policy ──> weights · reader over ring and place ── collector's parts
                                                     └──> algorithm ──> Run

`Parts` is what is known about a run before it begins: what `plan` prints, what evaluation needs, what can be rescaled.
"""

from __future__ import annotations

import copy
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

from headrace.checkpoints.snapshot import Snapshot
from headrace.collecting.inline import Inline
from headrace.collecting.place import Place, Replaced
from headrace.collecting.plan import HostPlan
from headrace.collecting.processes import Processes
from headrace.collecting.reader import Reader
from headrace.collecting.schedule import Schedule
from headrace.collecting.threads import Threads
from headrace.collecting.topology import Topology, publishing
from headrace.collecting.worker import WorkerPlan
from headrace.collecting.workers import Workers
from headrace.envs.seeds import Purpose, leaf
from headrace.episodes.journal import Journal
from headrace.episodes.standing import Standing
from headrace.errors import SchemaError, UsageError
from headrace.inference.self_test import fitting_tile
from headrace.launch.auto import survey
from headrace.launch.rehearsal import Rehearsal, rehearse
from headrace.learning.algorithm import Algorithm
from headrace.learning.config import AlgorithmConfig
from headrace.loading import Fit
from headrace.memory import spaces
from headrace.memory.allocator import keep_freed_memory
from headrace.memory.ring import Ring
from headrace.memory.schema import explain_difference, rollout_schema
from headrace.memory.segment import HeapSegment, SharedSegment
from headrace.policies.networks import as_policy, build_policy
from headrace.policies.policy import Module
from headrace.policies.threads import torch_threads
from headrace.run_config import RunConfig, encode
from headrace.train import Run
from headrace.weights.flat import FlatParameters
from headrace.weights.store import Weights, WeightStore, store_bytes


@dataclass
class Parts:
    """What a run is made of, before it begins."""

    config: RunConfig
    topology: Topology
    observation: spaces.ObservationSpace
    action: spaces.Space
    tile: int
    schedule: Schedule | None
    weights: Weights
    reader: Reader

    @property
    def module(self) -> Module:
        """The policy that acts, and is trained."""
        return self.weights.module

    def rescale(self, workers: int) -> None:
        """Go on with another number of workers, between two updates; environments move by replay."""
        if self.topology.topology == "inline":
            raise UsageError("rescale: topology=inline has no workers")
        if not 1 <= workers <= len(self.topology.shards):
            raise UsageError(f"rescale: expected 1 to {len(self.topology.shards)} workers (shards), got {workers}")
        self.topology = replace(self.topology, workers=workers)
        self.reader.reopen(self.topology)

    def close(self) -> None:
        """End what collects and give the memory back."""
        try:
            self.reader.close()
        finally:
            self.weights.close()

    def identity(self) -> dict[str, Any]:
        """What a checkpoint says about the run it belongs to."""
        return {
            "config": encode(self.config),
            "observation_space": spaces.encode(self.observation),
            "action_space": spaces.encode(self.action),
        }

    def fit(self) -> Fit:
        """What a checkpoint's weights must fit to."""
        shapes = {name: tuple(tensor.shape) for name, tensor in self.module.state_dict().items()}
        flat = self.weights.flat
        return Fit(shapes, flat.vector.numel(), flat.size, self.observation, self.action)

    def require_fit(self, snapshot: Snapshot) -> None:
        """Refuse a checkpoint of a run with other spaces, rollouts or seed."""
        if self.schedule is not None and self.topology.max_lag:
            raise UsageError(
                "a replay can't be resumed: it needs versions that a checkpoint does not keep; begin it again"
            )
        saved = snapshot.state["config"]
        ours, theirs = self.config.topology, saved["topology"]
        observation = spaces.decode_observation(snapshot.state["observation_space"])
        action = spaces.decode(snapshot.state["action_space"])
        difference = explain_difference(
            rollout_schema(self.observation, self.action, ours.n_steps, ours.n_envs),
            rollout_schema(observation, action, theirs["n_steps"], theirs["n_envs"]),
        )
        for name, mine, other in (
            ("observation_space", self.observation, observation),
            ("action_space", self.action, action),
        ):
            if difference is None and mine != other:  # bounds and numbers of choices have no field
                difference = f"{name}: expected {mine}, got {other}"
        if difference is None and saved["seed"] != self.config.seed:
            difference = f"seed: expected {self.config.seed}, got {saved['seed']}"
        if difference is not None:
            raise SchemaError(
                f"the checkpoint does not fit this run: {difference}; resume with the run's own configuration"
            )


def build_run(config: RunConfig, module: Module | None = None, schedule: Schedule | None = None) -> tuple[Run, Parts]:
    """A run, ready for its first update."""
    parts = build_parts(config, module, schedule)
    try:
        algorithm = build_algorithm(config.algorithm, parts.weights.flat, config.seed)
    except BaseException:
        parts.close()
        raise
    return Run(parts.reader, algorithm, parts.weights, parts.identity()), parts


def build_algorithm(config: AlgorithmConfig, flat: FlatParameters, seed: int) -> Algorithm:
    """The algorithm of a configuration."""
    algorithm: Algorithm = _home(config).build(flat, config, seed)
    return algorithm


def acting_policy(
    module: Module, config: AlgorithmConfig, observation: spaces.ObservationSpace, action: spaces.Space
) -> Module:
    """What acts and is trained: the policy itself, unless its algorithm says otherwise."""
    acting = getattr(_home(config), "acting", None)
    return module if acting is None else acting(module, observation, action, config)


def _home(config: AlgorithmConfig) -> Any:
    """The file of an algorithm; names are those of our own configs (learning/config), whatever a file says."""
    return import_module(f"headrace.learning.{config.name}")


def build_parts(
    config: RunConfig, module: Module | None = None, schedule: Schedule | None = None, is_learning: bool = True
) -> Parts:
    """A source and its weights; no learner. `is_learning`: the updates will be ours, so auto counts their time."""
    keep_freed_memory()
    place = config.topology

    def rehearsed(observation: spaces.ObservationSpace, action: spaces.Space) -> Rehearsal:
        policy = module or build_policy(config.policy, observation, action, 0)
        policy = acting_policy(policy, config.algorithm, observation, action)
        learns = build_algorithm if is_learning else None
        return rehearse(policy, observation, action, place, config.policy.tile, config.algorithm, learns)

    found = survey(config.env, config.seed, place, rehearsed, schedule.num_shards if schedule else None)
    topology, config = found.topology, replace(config, env=found.env)
    if module is None:
        with torch_threads(1):  # orthogonal matrices come out with other bits on another number of threads
            module = build_policy(config.policy, found.observation, found.action, leaf(config.seed, Purpose.WEIGHTS))
    module = acting_policy(module, config.algorithm, found.observation, found.action)
    with torch_threads(1):
        tile = fitting_tile(
            copy.deepcopy(module), found.observation, found.action, place.n_envs, config.policy.tile
        )  # fmt: skip
    plan = HostPlan(
        config.env,
        config.seed,
        topology.shards,
        tuple(rollout_schema(found.observation, found.action, place.n_steps, len(one)) for one in topology.shards),
        copy.deepcopy(module),
        as_policy(module).noise,
        found.observation,
        found.action,
        tile,
        topology.pick_up_rows,
        place.nan_policy,
        place.out_of_bounds,
    )
    flat = FlatParameters(module)
    make = SharedSegment.create if topology.topology == "processes" else HeapSegment
    capacity = schedule.capacity if schedule else topology.pace.versions_kept
    store = WeightStore(flat.size, capacity, make(store_bytes(flat.size, capacity)))
    try:
        is_due = schedule.is_publishing if schedule else None
        weights = Weights(flat, store, *publishing(place.publish_every), is_due)
        journal = Journal(place.n_envs, config.env.seed_of(config.seed, Purpose.ENV), found.observation, found.action)
        reader = Reader(
            partial(open_place, plan, store, flat.size, capacity, Replaced()),
            topology,
            journal,
            store,
            config.algorithm.admits_late,
            schedule,
        )
    except BaseException:
        store.close()
        raise
    return Parts(config, topology, found.observation, found.action, tile, schedule, weights, reader)


def open_place(
    plan: HostPlan, store: WeightStore, size: int, capacity: int, replaced: Replaced, topology: Topology
) -> tuple[Ring, Place]:
    """The ring of a topology and the place of its hosts; nothing is started yet."""
    make = SharedSegment.create if topology.topology == "processes" else HeapSegment
    with ExitStack() as undo:
        ring = Ring(plan.schemas, topology.max_lag + 1, make, topology.is_even)
        undo.callback(ring.close)
        place: Place
        if topology.topology == "processes":
            names = (str(ring.segment.name), str(store.segment.name))
            make_plan = partial(_worker_plan, plan, names, size, capacity)
            workers = Workers(
                plan, make_plan, topology.workers, topology.start_method, topology.limits, topology.spares, replaced
            )
            place = Processes(workers)
        elif topology.topology == "threads":
            place = Threads(plan, ring.segment.buffer, store, topology.workers)
        else:
            place = Inline(plan, ring.segment.buffer, store)
        undo.pop_all()
    return ring, place


def _worker_plan(
    plan: HostPlan, segments: tuple[str, str], size: int, capacity: int, starts: dict[int, Standing | None],
    notes: str, worker: int,
) -> WorkerPlan:  # fmt: skip
    return WorkerPlan(plan, starts, *segments, size, capacity, notes, worker)
