"""Steps per second before anything is started: what every place would reach, from one short measurement.

    one environment stepped, the policy rehearsed -> Measured --forecasts--> steps/s of inline, threads, processes

The same numbers and the same arithmetic with which `topology=auto` decides (decision). Does not print.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from headrace.clock import now_s
from headrace.collecting.topology import TopologyConfig
from headrace.envs.building import build_envs, first_look
from headrace.envs.spec import EnvSpec
from headrace.envs.time_limit import RAISE, time_limit
from headrace.errors import EnvError
from headrace.launch.decision import CHEAP_S, Measured, update_s
from headrace.launch.measuring import FreeCores, measure, measured_together
from headrace.launch.rehearsal import Rehearsal
from headrace.memory.crash_note import CrashNote
from headrace.memory.spaces import ObservationSpace, Space

_TOGETHER = 4  # cheap environments that are stepped in turn, to see what they share


@dataclass(frozen=True)
class Forecast:
    """What a place would reach."""

    topology: str
    workers: int
    max_lag: int
    sps: float


@dataclass(frozen=True)
class Look:
    """What was measured, and the spaces it was measured with."""

    measured: Measured
    observation: ObservationSpace
    action: Space
    make_s: float = 0.0
    """To build one more environment."""


def look_at(
    spec: EnvSpec,
    seed: int,
    place: TopologyConfig,
    rehearsed: Callable[[ObservationSpace, Space], Rehearsal],
    until_s: float = math.inf,
    advice: str = RAISE,
) -> Look:
    """Build one environment, step it for a moment, rehearse policy and update.

    After `until_s` nothing else is measured of the environment; `advice` is for one that hangs.
    """
    free, note = FreeCores(), CrashNote(1)
    in_time = partial(time_limit, spec.name, note, place.hang_ceiling_s, advice)
    with in_time():
        begun_s = now_s()
        spec, envs = first_look(spec, seed, note=note)
        make_s = now_s() - begun_s
    try:
        observation, action = envs.observation_space, envs.action_space
        with in_time():
            measured = measure(spec, seed, envs, place.n_envs, until_s)
            if now_s() < until_s:
                make_s, measured = _among_others(spec, seed, measured, place.n_envs, until_s)
        if measured is None:
            raise EnvError(f"{spec.name}: could not be stepped; headrace check {spec.name} shows why")
        measured = replace(measured, policy=rehearsed(observation, action))
        return Look(replace(measured, free_cores=free.seen()), observation, action, make_s)
    finally:
        with in_time():
            envs.close()


def _among_others(
    spec: EnvSpec, seed: int, measured: Measured | None, n_envs: int, until_s: float
) -> tuple[float, Measured | None]:
    """What one more environment takes to build, now that everything is imported; and a step of it beside others."""
    some = min(n_envs, _TOGETHER)
    is_shared = measured is not None and measured.step_s < CHEAP_S and not measured.is_pool and some > 1
    count, begun_s = some if is_shared else 1, now_s()
    envs = build_envs(spec, range(1, 1 + count), seed)
    try:
        make_s = (now_s() - begun_s) / count
        if measured is not None and is_shared:
            measured = measured_together(envs, measured, n_envs, until_s)
    finally:
        envs.close()
    return make_s, measured


def forecasts(measured: Measured, place: TopologyConfig, cores: int) -> list[Forecast]:
    """Of every place on this machine, the fastest one first."""
    counts = range(1, min(cores, place.n_envs) + 1)
    places = [("inline", 1, 0)]
    places += [(kind, count, lag) for kind in ("threads", "processes") for count in counts for lag in (0, 1)]
    steps = place.n_envs * place.n_steps
    found = [
        Forecast(kind, count, lag, steps / update_s(kind, count, measured, replace(place, max_lag=lag), cores))
        for kind, count, lag in places
        if kind == "inline" or count > 1 or lag  # one worker in step with the learner is inline with a pipe
    ]
    return sorted(found, key=lambda one: -one.sps)
