"""Steps per second at one batch size: of the environments alone, of the policy alone.

    B environments stepped for a moment · the policy acts on B made-up observations -> steps per second

Each repetition is timed by itself, so that its spread can be shown. Does not know knees (planning/sweep).
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np

from headrace.clock import now_s
from headrace.envs.building import build_envs
from headrace.envs.spec import EnvSpec
from headrace.inference.devices import inference_on, open_device
from headrace.memory.layout import slab_bytes
from headrace.memory.schema import rollout_schema, state_leaf
from headrace.memory.segment import HeapSegment
from headrace.memory.slab import Slab
from headrace.memory.spaces import ObservationSpace, Space, empty_leaves, leaves_of, made_up, shape_of
from headrace.policies.networks import as_policy
from headrace.policies.policy import Module, state_size_of
from headrace.policies.threads import torch_threads
from headrace.policies.tiles import default_tile
from headrace.weights.flat import FlatParameters
from headrace.weights.store import Replica

_FEWEST_CALLS = 3


def environment_sps(spec: EnvSpec, seed: int, n_envs: int, repetitions: int, budget_s: float) -> tuple[float, ...]:
    """Of B environments that are stepped by one loop, with actions drawn beforehand."""
    envs = build_envs(spec, range(n_envs), seed)
    try:
        schema = rollout_schema(envs.observation_space, envs.action_space, 1, n_envs)
        row = Slab(schema, HeapSegment(slab_bytes(schema)).buffer).rows[0]
        envs.begin(empty_leaves(envs.observation_space, n_envs))
        rng = np.random.default_rng(seed)
        row.action[...] = made_up(envs.action_space, rng, n_envs, from_zero=True).reshape(row.action.shape)
        return _rates(lambda: envs.step(row, lambda env, obs: None), n_envs, repetitions, budget_s)
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
    obs = {name: made_up(leaf, rng, n_envs) for name, leaf in leaves_of(observation).items()}
    obs |= state_leaf(state_size_of(module), n_envs)
    noise = np.zeros((n_envs, policy.noise.width), np.float32)
    out = np.zeros((n_envs, *shape_of(action)), action.dtype)
    with torch_threads(1):
        return _rates(lambda: inference.act(obs, noise, out), n_envs, repetitions, budget_s)


def _rates(call: Callable[[], object], n_envs: int, repetitions: int, budget_s: float) -> tuple[float, ...]:
    """Steps per second of every repetition; the first call is not counted, since it may compile."""
    call()
    rates = []
    for _ in range(repetitions):
        begun, calls = now_s(), 0
        while calls < _FEWEST_CALLS or now_s() - begun < budget_s:
            call()
            calls += 1
        rates.append(calls * n_envs / (now_s() - begun))
    return tuple(rates)
