"""Steps per second at one batch size: of the environments alone, of the policy alone.

    B environments stepped for a moment · the policy acts on B made-up observations -> steps per second

Each repetition is timed by itself, so that its spread can be shown. Does not know knees (planning/sweep).
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np

from headrace.clock import now_s
from headrace.collecting.topology import TopologyConfig
from headrace.envs.building import build_envs, first_look
from headrace.envs.masks import keep_lawful
from headrace.envs.spec import EnvSpec
from headrace.envs.time_limit import time_limit
from headrace.inference.devices import inference_on, open_device
from headrace.memory.crash_note import CrashNote
from headrace.memory.layout import slab_bytes
from headrace.memory.schema import rollout_schema, state_leaf
from headrace.memory.segment import HeapSegment
from headrace.memory.slab import Slab
from headrace.memory.spaces import ObservationSpace, Space, empty_leaves, made_up, made_up_leaves, shape_of
from headrace.policies.networks import as_policy
from headrace.policies.policy import Module, state_size_of
from headrace.policies.threads import torch_threads
from headrace.policies.tiles import default_tile
from headrace.weights.flat import FlatParameters
from headrace.weights.store import Replica

_FEWEST_CALLS = 3
_LONGEST_S = TopologyConfig.hang_ceiling_s  # without progress of an environment, as before a run
_SLOW = "time it with headrace train --hang-ceiling-s 0"


def looked_at(spec: EnvSpec, seed: int) -> EnvSpec:
    """The same, with seeds that the environment takes."""
    note = CrashNote(1)
    with time_limit(spec.name, note, _LONGEST_S, _SLOW):
        spec, envs = first_look(spec, seed, note=note)
        envs.close()
    return spec


def environment_sps(spec: EnvSpec, seed: int, n_envs: int, repetitions: int, budget_s: float) -> tuple[float, ...]:
    """Of B environments that are stepped by one loop, with actions drawn beforehand."""
    note = CrashNote(n_envs)
    with time_limit(spec.name, note, _LONGEST_S, _SLOW):
        return _environment_sps(spec, seed, n_envs, repetitions, budget_s, note)


def _environment_sps(
    spec: EnvSpec, seed: int, n_envs: int, repetitions: int, budget_s: float, note: CrashNote
) -> tuple[float, ...]:
    envs = build_envs(spec, range(n_envs), seed, note=note)
    try:
        schema = rollout_schema(envs.observation_space, envs.action_space, 1, n_envs)
        row = Slab(schema, HeapSegment(slab_bytes(schema)).buffer).rows[0]
        obs = empty_leaves(envs.observation_space, n_envs)
        envs.begin(obs)
        rng = np.random.default_rng(seed)
        row.action[...] = made_up(envs.action_space, rng, n_envs, from_zero=True).reshape(row.action.shape)

        def step() -> int:
            keep_lawful(envs.action_space, row.action, obs)
            envs.step(row, lambda env, obs: None)
            obs.update(row.next_obs)
            return int(np.count_nonzero(row.valid))  # of a pool, a step that only resets is none

        return _rates(step, repetitions, budget_s)
    finally:
        envs.close()


def policy_sps(
    module: Module,
    observation: ObservationSpace,
    action: Space,
    n_envs: int,
    repetitions: int,
    budget_s: float,
    device: str = "cpu",
) -> tuple[float, ...]:
    """Of the policy's forward pass over B observations, on a device."""
    policy, replica = as_policy(module), Replica(FlatParameters(copy.deepcopy(module)))
    tile = default_tile(n_envs, policy.largest_tile)
    inference = inference_on(open_device(device, is_shared=False), replica, observation, action, tile)
    rng = np.random.default_rng(0)
    obs = made_up_leaves(observation, rng, n_envs) | state_leaf(state_size_of(module), n_envs)
    noise = np.zeros((n_envs, policy.noise.width), np.float32)
    out = np.zeros((n_envs, *shape_of(action)), action.dtype)
    with torch_threads(1):

        def act() -> int:
            inference.act(obs, noise, out)
            return n_envs

        return _rates(act, repetitions, budget_s)


def _rates(call: Callable[[], int], repetitions: int, budget_s: float) -> tuple[float, ...]:
    """Steps per second of every repetition; `call` says how many it made. The first may compile: it is not counted."""
    call()
    rates = []
    for _ in range(repetitions):
        begun, calls, steps = now_s(), 0, 0
        while calls < _FEWEST_CALLS or now_s() - begun < budget_s:
            steps += call()
            calls += 1
        rates.append(steps / (now_s() - begun))
    return tuple(rates)
