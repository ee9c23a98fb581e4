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
from headrace.collecting.warm_up import warm_up
from headrace.collecting.worker import Inference, WorkerPlan
from headrace.collecting.workers import LIGHT_PRELOAD, PRELOAD, Workers
from headrace.envs.seeds import Purpose, leaf
from headrace.episodes.journal import Journal
from headrace.episodes.standing import Standing
from headrace.errors import SchemaError, UsageError
from headrace.inference.batching import BatchLimits
from headrace.inference.client import CentralInference
from headrace.inference.devices import Emulated, TorchDevice, close_devices, open_devices
from headrace.inference.local import OwnInference
from headrace.inference.own_features import own_features
from headrace.inference.own_policy import require_fitting, require_own_policy
from headrace.inference.self_test import fitting_tile
from headrace.inference.server import ServerPlan
from headrace.inference.servers import Servers
from headrace.inference.slots import Slots, SlotsPlan, slots_bytes
from headrace.launch.auto import survey
from headrace.launch.rehearsal import Rehearsal, rehearse
from headrace.learning.algorithm import Algorithm
from headrace.learning.config import AlgorithmConfig
from headrace.learning.normalization import normalizing
from headrace.loading import Fit
from headrace.memory import spaces
from headrace.memory.allocator import keep_freed_memory
from headrace.memory.ring import Ring
from headrace.memory.schema import STATE, explain_difference, rollout_schema
from headrace.memory.segment import HeapSegment, SharedSegment
from headrace.policies.config import BUILT_IN
from headrace.policies.device import device_named
from headrace.policies.masks import built
from headrace.policies.networks import as_policy
from headrace.policies.normalization import normalized
from headrace.policies.policy import Module, state_size_of
from headrace.policies.threads import torch_threads
from headrace.run_config import RunConfig, encode
from headrace.runtime.standby import Standby
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
    devices: tuple[Emulated | TorchDevice | None, ...] = ()

    @property
    def module(self) -> Module:
        """The policy that acts, and is trained."""
        return self.weights.module

    @property
    def acting(self) -> Module:
        """The same on the CPU, where it acts: itself, or a copy of what lies on another device."""
        module = self.weights.module
        return module if self.weights.flat.vector.device.type == "cpu" else copy.deepcopy(module).cpu()

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
            self.weights.store.close()
            close_devices(self.devices)

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
        return Fit(shapes, self.weights.flat.size, self.observation, self.action)

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
        difference = None
        for name, mine, other in (
            ("observation_space", self.observation, observation),
            ("action_space", self.action, action),
        ):
            if difference is None and mine != other:
                said = spaces.in_short(mine), spaces.in_short(other)
                if said[0] == said[1]:  # bounds, or where choices start
                    said = str(mine), str(other)
                difference = f"{name}: expected {said[0]} (the environment's), got {said[1]} (the checkpoint's)"
        difference = difference or explain_difference(
            rollout_schema(self.observation, self.action, ours.n_steps, ours.n_envs),
            rollout_schema(observation, action, theirs["n_steps"], theirs["n_envs"]),
        )
        kept, name = self.reader.journal.last_obs, f"last_{STATE}"
        remembered = [leaf.shape if leaf is not None else () for leaf in (kept.get(STATE), snapshot.episodes.get(name))]
        if difference is None and remembered[0] != remembered[1]:
            difference = f"what the policy remembers: expected {remembered[0]} numbers, got {remembered[1]}"
        if difference is None and saved["seed"] != self.config.seed:
            difference = f"seed: expected {self.config.seed}, got {saved['seed']}"
        if difference is not None:
            raise SchemaError(
                f"the checkpoint does not fit this run: {difference}; resume with the run's own configuration"
            )


def build_run(
    config: RunConfig, module: Module | None = None, schedule: Schedule | None = None, steps: int | None = None
) -> tuple[Run, Parts]:
    """A run, ready for its first update. `steps`: how many it has before it, if that is known."""
    parts = build_parts(config, module, schedule, steps=steps)
    try:
        algorithm = build_algorithm(config.algorithm, parts.weights.flat, config.seed)
    except BaseException:
        parts.close()
        raise
    return Run(parts.reader, algorithm, parts.weights, parts.identity()), parts


def build_algorithm(config: AlgorithmConfig, flat: FlatParameters, seed: int) -> Algorithm:
    """The algorithm of a configuration."""
    if not any(parameter.requires_grad for parameter in flat.module.parameters()):
        raise UsageError(f"policy: {type(flat.module).__name__} has requires_grad=False everywhere: nothing to train")
    home = _home(config, "recurrent_" if state_size_of(flat.module) else "")
    return normalizing(home.build(flat, config, seed), flat.module, config)


def acting_policy(
    module: Module, config: RunConfig, observation: spaces.ObservationSpace, action: spaces.Space
) -> Module:
    """What acts and is trained: the policy, normalised if asked for, unless its algorithm says otherwise."""
    module = normalized(module, observation, config.policy)
    acting = getattr(_home(config.algorithm), "acting", None)
    return module if acting is None else acting(module, observation, action, config.algorithm)


def _home(config: AlgorithmConfig, kind: str = "") -> Any:
    """The file of an algorithm; names are those of our own configs (learning/config), whatever a file says."""
    try:
        return import_module(f"headrace.learning.{kind}{config.name}")
    except ModuleNotFoundError as error:
        if not kind:
            raise
        raise UsageError(f"policy: {config.name.upper()} does not train recurrent policies; use hr.PPO") from error


def build_parts(
    config: RunConfig,
    module: Module | None = None,
    schedule: Schedule | None = None,
    is_learning: bool = True,
    steps: int | None = None,
) -> Parts:
    """A source and its weights; no learner. `is_learning`: the updates will be ours, so auto counts their time."""
    keep_freed_memory()
    place, learns_on = config.topology, device_named(config.algorithm.learner_device if is_learning else "cpu")

    def policy_of(observation: spaces.ObservationSpace, action: spaces.Space) -> tuple[Module, int]:
        own = own_features(config.extractors, observation, config.policy)
        policy = module or built(config.policy, observation, action, 0, own)
        return acting_policy(policy, config, observation, action), config.policy.tile

    def rehearsed(observation: spaces.ObservationSpace, action: spaces.Space) -> Rehearsal:
        policy, _ = policy_of(observation, action)
        learns = build_algorithm if is_learning else None
        return rehearse(policy, observation, action, place, config.policy.tile, config.algorithm, learns)

    replayed = schedule.num_shards if schedule else None
    found = survey(config.env, config.seed, place, rehearsed, replayed, steps, policy_of)
    topology, config = found.topology, replace(config, env=found.env)
    if module is not None:
        require = require_fitting if config.policy.policy in BUILT_IN else require_own_policy
        with torch_threads(1):
            require(module, found.observation, found.action)
    if module is None:
        with torch_threads(1):  # orthogonal matrices come out with other bits on another number of threads
            own = own_features(config.extractors, found.observation, config.policy)
            seed = leaf(config.seed, Purpose.WEIGHTS)
            module = built(config.policy, found.observation, found.action, seed, own)
    module = acting_policy(module, config, found.observation, found.action)
    with torch_threads(1):
        tile = fitting_tile(
            copy.deepcopy(module), found.observation, found.action, place.n_envs, config.policy.tile
        )  # fmt: skip
    devices = open_devices(place.inference_device, topology.topology == "processes")
    plan = HostPlan(
        config.env,
        config.seed,
        topology.shards,
        tuple(
            rollout_schema(found.observation, found.action, place.n_steps, len(one), state_size_of(module))
            for one in topology.shards
        ),
        copy.deepcopy(module),
        as_policy(module).noise,
        found.observation,
        found.action,
        tile,
        topology.pick_up_rows,
        place.nan_policy,
        place.out_of_bounds,
        devices,
    )
    flat = FlatParameters(module.to(learns_on))
    make = SharedSegment.create if topology.topology == "processes" else HeapSegment
    capacity = schedule.capacity if schedule else topology.pace.versions_kept
    store = WeightStore(flat.size, capacity, make(store_bytes(flat.size, capacity)))
    try:
        weights = Weights(flat, store, schedule.is_publishing if schedule else publishing(place.publish_every))
        seed_of = config.env.seed_of(config.seed, Purpose.ENV)
        spaces_of, remembered = (found.observation, found.action), state_size_of(module)
        journal = Journal(place.n_envs, seed_of, *spaces_of, place.stats_window_size, remembered)
        reader = Reader(
            partial(open_place, plan, store, flat.size, capacity, Replaced()),
            topology,
            journal,
            store,
            is_learning and config.algorithm.admits_late,  # a learner that is not ours is promised max_lag
            schedule,
        )
    except BaseException:
        store.close()
        close_devices(devices)
        raise
    return Parts(config, topology, found.observation, found.action, tile, schedule, weights, reader, devices)


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
            place = _processes(plan, store, size, capacity, replaced, topology, str(ring.segment.name))
        elif topology.topology == "threads":
            place = Threads(plan, ring.segment.buffer, store, topology.workers)
        else:
            place = Inline(plan, ring.segment.buffer, store)
        undo.pop_all()
    return ring, place


def _processes(
    plan: HostPlan, store: WeightStore, size: int, capacity: int, replaced: Replaced, topology: Topology, ring: str
) -> Processes:
    """Workers that act themselves, or workers without a policy and the servers that they ask."""
    access = str(store.segment.name), size, capacity
    standby = partial(Standby, topology.start_method)
    warm = standby(PRELOAD, topology.spares, (warm_up, (plan.observation, plan.action)))
    workers = partial(Workers, count=topology.workers, limits=topology.limits, replaced=replaced)
    if topology.inference == "local":
        make_plan = partial(_worker_plan, plan, ring, OwnInference(plan, *access))
        return Processes(workers(plan, make_plan, standby=warm))
    sizes = tuple(len(shard) for shard in topology.shards)
    remembered = plan.schemas[0].state_size
    layout = SlotsPlan(sizes, plan.observation, plan.action, plan.noise.width, topology.servers, remembered)
    slots = Slots(layout, SharedSegment.create(slots_bytes(layout)))
    name, limits = str(slots.segment.name), BatchLimits(topology.max_batch, topology.max_wait_s)
    module, devices = plan.module, plan.devices
    assert module is not None

    def make_server(number: int, notes: str) -> ServerPlan:
        device = devices[number % len(devices)]
        return ServerPlan(number, layout, name, module, plan.tile, limits, *access, notes, device, turns)

    turns = tuple(shard // topology.workers % topology.turns for shard in range(len(sizes)))
    hang = topology.limits.hang_floor_s, topology.limits.hang_ceiling_s
    plan = replace(plan, module=None, devices=())
    asking = CentralInference(layout, name, plan.schemas[0].n_steps, plan.pick_up_rows)
    make_plan = partial(_worker_plan, plan, ring, asking, in_turns=topology.turns > 1)
    light = standby(LIGHT_PRELOAD, topology.spares)
    with ExitStack() as undo:
        undo.callback(slots.segment.unlink)
        servers = Servers(slots, topology.servers, make_server, warm, *hang)
        undo.callback(servers.end)
        place = Processes(workers(plan, make_plan, standby=light), servers)
        undo.pop_all()
    return place


def _worker_plan(
    plan: HostPlan,
    ring: str,
    inference: Inference,
    starts: dict[int, Standing | None],
    notes: str,
    worker: int,
    in_turns: bool = False,
) -> WorkerPlan:
    return WorkerPlan(plan, starts, ring, inference, notes, worker, in_turns)
