"""A rehearsal: what acting and learning will cost, on made-up rows, before anybody is started.

    policy -> acts for all environments a few times · learns from a few minibatches, in one pass and in two -> Rehearsal

What an update does once (log-probabilities, values, advantages) and what it does in every pass are told apart by the
second pass: the first is scaled to all rows, the second to all rows and all passes.

Everything happens on copies. Does not know environments, or what is decided from the numbers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headrace.clock import now_s
from headrace.collecting.topology import TopologyConfig
from headrace.inference.device_names import devices_of
from headrace.inference.devices import inference_on, open_device
from headrace.launch.repeating import repeated
from headrace.learning.algorithm import Algorithm, Moment
from headrace.learning.assembly import assemble
from headrace.learning.batch import Batch
from headrace.learning.config import AlgorithmConfig
from headrace.memory.layout import slab_bytes
from headrace.memory.schema import rollout_schema, state_leaf
from headrace.memory.segment import HeapSegment
from headrace.memory.slab import Slab
from headrace.memory.spaces import ObservationSpace, Space, made_up, made_up_leaves, shape_of
from headrace.policies.networks import as_policy
from headrace.policies.policy import Module, state_size_of
from headrace.policies.threads import torch_threads
from headrace.policies.tiles import default_tile
from headrace.weights.flat import FlatParameters
from headrace.weights.store import Replica

_BUDGET_S = 0.3  # of each, at most; a quiet machine needs a few calls
_MINIBATCHES = 4  # that are learned from, if they do not take long


@dataclass(frozen=True)
class Rehearsal:
    """Seconds of acting for one row of all environments, seconds of learning per update."""

    act_s: float = 0.0
    update_s: float = 0.0
    doubt: float = 1.0
    """The second fastest measurement over the fastest one; the larger of the two."""
    call_s: float = 0.0
    """Of acting, what does not depend on the number of rows: every worker pays it."""


def rehearse(
    module: Module,
    observation: ObservationSpace,
    action: Space,
    place: TopologyConfig,
    tile: int,
    config: AlgorithmConfig,
    build_algorithm: Callable[[AlgorithmConfig, FlatParameters, int], Algorithm] | None,
    least_rows: int = 0,
) -> Rehearsal:
    """Time a copy of the policy. Without `build_algorithm` the updates are not ours, and their time is not known.

    `least_rows`: steps to learn from at a time, if they are to be more than a minibatch.
    """
    module, n_envs = copy.deepcopy(module), place.n_envs
    policy = as_policy(module)
    replica, tile = Replica(FlatParameters(copy.deepcopy(module))), tile or default_tile(n_envs, policy.largest_tile)
    device = open_device(devices_of(place.inference_device)[0], False)
    inference = inference_on(device, replica, observation, action, tile)
    remembered = state_size_of(module)
    minibatch = min(place.n_steps, math.ceil(max(config.batch_size, least_rows) / n_envs))  # rows
    batch = _made_up(observation, action, n_envs, minibatch, remembered)
    noise = np.zeros((n_envs, policy.noise.width), np.float32)
    out = np.zeros((n_envs, *shape_of(action)), action.dtype)
    first = {name: leaf[0] for name, leaf in batch.leaves.items()} | state_leaf(remembered, n_envs)
    with torch_threads(1):
        act_s, doubt = _fastest(lambda: inference.act(first, noise, out))
        row = {name: leaf[:1] for name, leaf in first.items()}
        call_s = min(act_s, _fastest(lambda: inference.act(row, noise[:1], out[:1]))[0])
    if build_algorithm is None:
        return Rehearsal(act_s, doubt=doubt, call_s=call_s)
    actor = copy.deepcopy(module)
    moment = Moment(0, 0, True, 1.0, lambda version: actor)

    def learned_s(batch: Batch, passes: int) -> tuple[float, float]:
        algorithm = build_algorithm(config.quick(passes)[0], FlatParameters(copy.deepcopy(module)), 0)
        with torch_threads(algorithm.threads):
            return _fastest(lambda: algorithm.learn(batch, moment))

    once_s, of_learning = learned_s(batch, 1)
    rows = min(place.n_steps, _MINIBATCHES * minibatch)
    if once_s < _BUDGET_S / _MINIBATCHES**2 and rows > minibatch:  # a single one would count what comes once too often
        batch = _made_up(observation, action, n_envs, rows, remembered)
        once_s, of_learning = learned_s(batch, 1)
    passes = config.quick()[1]
    pass_s = learned_s(batch, 2)[0] - once_s if passes > 1 else 0.0
    pass_s = min(
        max(pass_s, once_s / 2), once_s
    )  # what comes once is a forward pass at most: a busy machine can't say else
    update_s = (once_s + (passes - 1) * pass_s) * place.n_steps * n_envs / batch.steps
    return Rehearsal(act_s, update_s, max(doubt, of_learning), call_s)


def _made_up(observation: ObservationSpace, action: Space, n_envs: int, rows: int, state_size: int) -> Batch:
    """One minibatch of steps: nothing in them matters but their number and shape."""
    schema = rollout_schema(observation, action, rows, n_envs, state_size)
    batch = assemble([Slab(schema, HeapSegment(slab_bytes(schema)).buffer)])
    rng = np.random.default_rng(0)
    batch.action[...] = made_up(action, rng, rows * n_envs, from_zero=True).reshape(batch.action.shape)
    for name, leaf in made_up_leaves(observation, rng, rows * n_envs).items():
        batch.leaves[name][...] = leaf.reshape(batch.leaves[name].shape)
    for name in ("reward", "log_prob", "value", "bootstrap_value", "last_value"):
        getattr(batch, name)[...] = 0
    if batch.state is not None:
        batch.state[...] = 0
    batch.terminated[...] = batch.truncated[...] = False
    batch.valid[...] = True
    return batch


def _fastest(act: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the fastest of a few calls, and their doubt."""
    _timed(act)  # it may compile
    once_s = _timed(act)
    if once_s > _BUDGET_S:
        return once_s, 1.0
    times, doubt = repeated(lambda: [_timed(act)], 2, max(2, min(9, int(_BUDGET_S / once_s))))
    return min(times), doubt


def _timed(act: Callable[[], object]) -> float:
    before = now_s()
    act()
    return now_s() - before
