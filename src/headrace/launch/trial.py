"""What decides where the policy should run, measured: a step, the policy by batch size, and a round trip to a server.

    a child, as a worker would be: fills slabs with a few environments · forks an instant server, asks it ──> Time each
    this process: acts with a copy of the policy, on its device, for as many rows as each placement would ──> Time each

It takes about a second. What fails here leaves the question open, and is named as the reason; it will fail again where
the error is shown whole. Decides nothing (placement).
"""

from __future__ import annotations

import copy
import json
import logging
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.clock import now_s
from headrace.collecting.plan import HostPlan, build_actor
from headrace.collecting.topology import TopologyConfig
from headrace.collecting.workers import PRELOAD
from headrace.envs.masks import keep_lawful
from headrace.envs.spec import EnvSpec
from headrace.errors import HeadraceError
from headrace.evaluation.elsewhere import Elsewhere, Hung
from headrace.inference.device_names import CPU, devices_of
from headrace.inference.devices import inference_on, open_device
from headrace.inference.slots import SlotsPlan
from headrace.launch.measuring import FreeCores
from headrace.launch.placement import Costs, Layout, Time
from headrace.launch.round_trip import round_trips
from headrace.memory.crash_note import CrashNote
from headrace.memory.layout import slab_bytes
from headrace.memory.schema import rollout_schema, state_leaf
from headrace.memory.segment import HeapSegment
from headrace.memory.slab import Slab
from headrace.memory.spaces import Leaves, ObservationSpace, Space, made_up_leaves, shape_of
from headrace.plain_text import message_of, shortened
from headrace.policies.networks import as_policy
from headrace.policies.noise_spec import NoiseSpec
from headrace.policies.policy import Module, state_size_of
from headrace.policies.threads import torch_threads
from headrace.policies.tiles import default_tile
from headrace.runtime.standby import Standby
from headrace.weights.flat import FlatParameters
from headrace.weights.store import Replica

Array = npt.NDArray[Any]
_STEPPING_S, _ACTING_S = 0.1, 0.15  # of each measurement
_FIRST_ROWS = 4  # of a rollout, to see how long they take
_MOST_ENVS = 4  # that are built to be measured
_BUSY = 0.7  # other programs leave less than this of the cores: then they count
_LONGEST_REASON = 300  # characters
_LONGEST_S = 30.0  # without a sign of life from the environment

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Unmeasured:
    """Something of it failed."""

    why: str


@dataclass(frozen=True)
class _Asked:
    """What the child is to measure."""

    env: EnvSpec
    seed: int
    nan_policy: str
    layout: Layout
    observation: ObservationSpace
    action: Space
    noise: NoiseSpec
    state_size: int


def measure(
    spec: EnvSpec,
    seed: int,
    config: TopologyConfig,
    layout: Layout,
    policy: Module,
    spaces: tuple[ObservationSpace, Space],
    tile: int,
    rows: set[int],
) -> Costs | Unmeasured:
    """All of it, or what failed."""
    free, begun_s = FreeCores(), now_s()
    asked = _Asked(spec, seed, config.nan_policy, layout, *spaces, as_policy(policy).noise, state_size_of(policy))
    try:
        seen = _answered(asked, config)
        acting = _acting(policy, spaces, tile, config, rows)  # not at the same time: cores are what is measured
    except Exception as error:
        kind = "" if isinstance(error, HeadraceError) else f"{type(error).__name__}: "
        return Unmeasured(shortened(f"{kind}{message_of(error)}".partition("\n")[0], _LONGEST_REASON))
    cores, left = len(os.sched_getaffinity(0)), free.seen(seen["cpu_s"] / max(now_s() - begun_s, 1e-3))
    step, row, trip, slot = (Time(*seen[name]) for name in ("step", "row", "round_trip", "slot"))
    has_one_queue = devices_of(config.inference_device)[0] != CPU  # several servers on the CPU have a core each
    return Costs(step, row, acting, trip, slot, left if left < _BUSY * cores else cores, has_one_queue)


def _answered(asked: _Asked, config: TopologyConfig) -> dict[str, Any]:
    """What the child says; if it fails, another one is asked, unless it hung."""
    limit_s = min(config.hang_ceiling_s or _LONGEST_S, _LONGEST_S)
    for is_last in (False, True):
        child = Standby(config.start_method, PRELOAD, spares=0).take("headrace-trial")
        try:
            with Elsewhere(child, asked.env, _count(asked.layout), _tried, asked, limit_s) as trial:
                seen: dict[str, Any] = json.loads(trial.answer())
                return seen
        except HeadraceError as error:
            if is_last or isinstance(error, Hung):
                raise
            logger.info("inference=auto is measured again: %s", message_of(error))
    raise AssertionError("the last failure was raised")


def _acting(
    policy: Module, spaces: tuple[ObservationSpace, Space], tile: int, config: TopologyConfig, rows: set[int]
) -> dict[int, Time]:
    device = open_device(devices_of(config.inference_device)[0], is_shared=False)
    rng, (observation, action) = np.random.default_rng(0), spaces
    tile = tile or default_tile(config.n_envs, as_policy(policy).largest_tile)
    infers = inference_on(device, Replica(FlatParameters(copy.deepcopy(policy))), observation, action, tile)
    found = {}
    for count in sorted(rows):
        obs = made_up_leaves(observation, rng, count) | state_leaf(state_size_of(policy), count)
        noise = np.zeros((count, as_policy(policy).noise.width), np.float32)
        out = np.zeros((count, *shape_of(action)), action.dtype)
        with torch_threads(1):
            found[count] = _timed(lambda: infers.act(obs, noise, out))  # noqa: B023  # called at once
    return found


def _timed(once: Callable[[], object]) -> Time:
    """Of a call that is repeated for a moment."""
    once()
    times: list[float] = []
    begun_s, cpu_s = now_s(), time.process_time()
    while now_s() - begun_s < _ACTING_S or len(times) < 3:
        before = now_s()
        once()
        times.append(now_s() - before)
    used_s = time.process_time() - cpu_s
    return _typical(times, used_s)


def _typical(times: list[float], cpu_s: float) -> Time:
    """A median, and the same share of a core as all of them together took."""
    wall_s = median(times)
    return Time(wall_s, wall_s * min(1.0, cpu_s / max(sum(times), 1e-9)))


def _count(layout: Layout) -> int:
    return min(layout.per_worker, _MOST_ENVS)


def _tried(asked: _Asked, note: CrashNote) -> bytes:
    """The child's side."""
    with torch_threads(1):
        trip, slot = round_trips(_slots_of(asked))
    count = _count(asked.layout)
    one = _stepping(asked, 1, note if count == 1 else None)
    many = one if count == 1 or asked.env.is_vector() else _stepping(asked, count, note)
    if many is one:
        step, row = one, Time(0.0, 0.0)
    else:
        further = [(b - a) / (count - 1) for a, b in zip(_pair(one), _pair(many), strict=True)]
        step = Time(*(min(max(f, 0.0), a) for f, a in zip(further, _pair(one), strict=True)))
        row = Time(one.wall_s - step.wall_s, one.cpu_s - step.cpu_s)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = time.process_time() + children.ru_utime + children.ru_stime
    times = {"step": step, "row": row, "round_trip": trip, "slot": slot}
    return json.dumps({name: _pair(one) for name, one in times.items()} | {"cpu_s": used_s}).encode()


def _pair(one: Time) -> tuple[float, float]:
    return one.wall_s, one.cpu_s


def _stepping(asked: _Asked, count: int, note: CrashNote | None) -> Time:
    """Of one row of a rollout, without acting."""
    once = _Filling(asked, count, _FIRST_ROWS, note)
    try:
        first = once.fill()  # environments warm up
        cpu_s = time.process_time()
        first = min(first, again := once.fill())
        if again > _STEPPING_S:  # they take long: this says enough
            return _typical([again], (time.process_time() - cpu_s) / _FIRST_ROWS)
    finally:
        once.close()
    rows = max(_FIRST_ROWS, min(asked.layout.n_steps, int(_STEPPING_S / 4 / first)))
    filling = _Filling(asked, count, rows, note)
    times: list[float] = []
    try:
        filling.fill()
        begun_s, cpu_s = now_s(), time.process_time()
        while now_s() - begun_s < _STEPPING_S or len(times) < 2:
            times.append(filling.fill())
        return _typical(times, (time.process_time() - cpu_s) / rows)
    finally:
        filling.close()


class _Filling:
    """An actor like a worker's, and a slab; its actions are the first ones there are, or that a mask allows."""

    def __init__(self, asked: _Asked, count: int, rows: int, note: CrashNote | None) -> None:
        schema = rollout_schema(asked.observation, asked.action, rows, count)
        plan = HostPlan(
            asked.env, asked.seed, (range(count),), (schema,), None, asked.noise, asked.observation, asked.action, 0, 0,
            asked.nan_policy, "ignore",
        )  # fmt: skip
        self._actor, self._rows = build_actor(plan, 0, None, note), rows
        self._schema, self._memory = schema, HeapSegment(slab_bytes(schema))
        self._action = asked.action

    def fill(self) -> float:
        """Seconds of a row."""
        slab = Slab(self._schema, self._memory.buffer)  # as fresh as one that is leased
        begun_s = now_s()
        self._actor.fill(slab, self._act)
        return (now_s() - begun_s) / self._rows

    def _act(self, row: int, obs: Leaves, noise: Array, out: Array) -> int:
        out[...] = 0
        keep_lawful(self._action, out, obs)
        return 0

    def close(self) -> None:
        self._actor.close()


def _slots_of(asked: _Asked) -> SlotsPlan:
    """Of one server."""
    layout = asked.layout
    sizes = (layout.per_worker,) * -(-layout.workers // layout.servers)
    return SlotsPlan(sizes, asked.observation, asked.action, asked.noise.width, 1, asked.state_size)
