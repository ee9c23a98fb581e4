"""Finds out what an environment is, and where its actors should run.

one environment built -> spaces · what a step, acting and an update cost, how many cores are free (measuring,
rehearsal) -> inline, threads or processes, how many workers, and why (decision)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from headrace.collecting.placing import Placement, can_take_turns
from headrace.collecting.topology import Choice, Topology, TopologyConfig, resolve
from headrace.envs.building import first_look
from headrace.envs.mended import mended
from headrace.envs.spec import EnvSpec
from headrace.envs.time_limit import time_limit
from headrace.inference.device_names import devices_of, number_of_queues
from headrace.launch.decision import Machine, Measured, choose
from headrace.launch.first_look import look_elsewhere
from headrace.launch.measuring import FreeCores, measure
from headrace.launch.placement import BUFFERED, CENTRAL, LOCAL, WORTH_MEASURING, Layout, place
from headrace.launch.rehearsal import Rehearsal
from headrace.launch.trial import Unmeasured
from headrace.launch.trial import measure as measure_placements
from headrace.memory.crash_note import CrashNote
from headrace.memory.spaces import ObservationSpace, Space
from headrace.policies.policy import Module

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Survey:
    """What one look at the environment showed."""

    topology: Topology
    observation: ObservationSpace
    action: Space
    env: EnvSpec  # as it is to be built from now on


def survey(
    spec: EnvSpec,
    seed: int,
    config: TopologyConfig,
    rehearsed: Callable[[ObservationSpace, Space], Rehearsal] = lambda observation, action: Rehearsal(),
    replayed_shards: int | None = None,
    steps: int | None = None,
    policy_of: Callable[[ObservationSpace, Space], tuple[Module, int]] | None = None,
) -> Survey:
    """Build one environment, look at its spaces, settle the topology. `rehearsed` is asked if it matters.

    `steps` are those that the session has left, if that is known. `policy_of` makes the policy and names its tile (0:
    the usual one), for inference=auto; without it the policy runs where it is simplest.
    For worker processes it is built in one; else here, where it may be measured, within the same limit of time.
    """
    if config.inference == "central" and config.topology == "auto":
        config = replace(config, topology="processes")
    if config.topology == "processes" and replayed_shards is None:
        spec, observation, action = look_elsewhere(spec, seed, config)
        place = partial(_place, spec, seed, config, (observation, action), policy_of, steps)
        topology = resolve(config, lambda wanted: choose(wanted, Machine(cpus()), lambda: None), place)
        return Survey(topology, observation, action, spec)
    note = CrashNote(1)
    in_time = partial(time_limit, spec.name, note, config.hang_ceiling_s)
    with in_time():
        spec, envs = first_look(spec, seed, note=note)
    try:
        mended(envs, config.nan_policy)  # refused here, before anything starts, if they can't be
        observation, action = envs.observation_space, envs.action_space

        def look() -> Measured | None:
            free = FreeCores()
            with in_time():
                measured = measure(spec, seed, envs, config.n_envs)
            if measured is None:
                return None
            try:
                measured = replace(measured, policy=rehearsed(observation, action))
            except Exception as error:  # a policy that fails will fail again where its error is shown whole
                logger.debug("auto: the policy could not be measured: %s: %s", type(error).__name__, error)
            return replace(measured, free_cores=free.seen())

        if replayed_shards is not None:
            inline = replace(
                config,
                topology="inline",
                inference="local",
                inference_device=devices_of(config.inference_device)[0],
                double_buffering="off",
                workers="auto",
                shards=replayed_shards,
            )
            topology = resolve(inline, _no_choice)
        else:
            put = partial(_place, spec, seed, config, (observation, action), policy_of, steps)
            machine = Machine(cpus(), available_bytes())
            topology = resolve(config, lambda wanted: choose(wanted, machine, look, steps), put)
    finally:
        with in_time():
            envs.close()
    return Survey(topology, observation, action, spec)


def _place(
    spec: EnvSpec,
    seed: int,
    config: TopologyConfig,
    spaces: tuple[ObservationSpace, Space],
    policy_of: Callable[[ObservationSpace, Space], tuple[Module, int]] | None,
    steps: int | None,
    workers: int,
) -> Placement | str:
    """Where the policy should run with so many worker processes, or why that was not measured."""
    can_buffer = config.double_buffering != "off" and can_take_turns(config, workers)
    can_serve = [config.inference_servers <= (config.shards or turns * workers) for turns in (1, 2)]  # a shard each
    can_buffer = can_buffer and can_serve[1]
    kinds: tuple[str, ...] = (LOCAL,) if config.inference == "auto" else ()
    kinds += (CENTRAL,) if can_serve[0] and (config.double_buffering != "on" or not can_buffer) else ()
    kinds += (BUFFERED,) if can_buffer else ()
    if policy_of is None or len(kinds) < 2:
        return "" if can_serve[0] else f"inference_servers={config.inference_servers} are more than there are shards"
    if steps is not None and steps < WORTH_MEASURING:
        return f"{steps:,} steps are too few to measure what is faster"
    devices = number_of_queues(config.inference_device)
    servers, most = config.inference_servers, config.inference_max_batch
    layout = Layout(config.n_envs, config.n_steps, workers, servers, devices, most)
    policy, tile = policy_of(*spaces)
    costs = measure_placements(spec, seed, config, layout, policy, spaces, tile, layout.rows(can_buffer))
    if isinstance(costs, Unmeasured):
        return f"what is faster could not be measured: {costs.why}"
    return place(costs, layout, kinds)


def cpus() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def _no_choice(config: TopologyConfig) -> Choice:
    raise AssertionError("inline asks for no choice")


def available_bytes() -> int:
    """What could be had without swapping, the page cache included."""
    with open("/proc/meminfo") as lines:
        sizes = dict(line.split(":", 1) for line in lines)
    return int(sizes["MemAvailable"].split()[0]) * 1024
