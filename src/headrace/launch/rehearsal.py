"""A rehearsal: what acting and learning will cost, on made-up rows, before anybody is started.

    policy -> acts for all environments a few times · learns from one minibatch a few times -> Rehearsal

Everything happens on copies. Does not know environments, or what is decided from the numbers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from headrace.clock import now_s
from headrace.inference.local import LocalInference, plausible
from headrace.inference.threads import torch_threads
from headrace.learning.batch import Batch, assemble
from headrace.learning.config import PpoConfig
from headrace.learning.learner import Learner
from headrace.memory.schema import rollout_schema
from headrace.memory.segment import HeapSegment
from headrace.memory.slab import Slab, slab_bytes
from headrace.memory.spaces import Space, shape_of
from headrace.policies.networks import as_policy
from headrace.policies.policy import Module
from headrace.policies.tiles import default_tile
from headrace.weights.flat import FlatParameters

_BUDGET_S = 0.05  # of each


@dataclass(frozen=True)
class Rehearsal:
    """Rows of a rollout, seconds of acting for one row of all environments, seconds of learning per update."""

    rows: int = 32
    act_s: float = 0.0
    update_s: float = 0.0


def rehearse(
    module: Module, observation: Space, action: Space, n_envs: int, tile: int, config: PpoConfig, is_learning: bool
) -> Rehearsal:
    """Time a copy of the policy. `is_learning` says that the updates are ours; a user's own learner is not known."""
    module = copy.deepcopy(module)
    policy = as_policy(module)
    inference = LocalInference(module, observation, action, tile or default_tile(n_envs, policy.largest_tile))
    batch = _made_up(observation, action, n_envs, min(config.n_steps, math.ceil(config.batch_size / n_envs)))
    noise = np.zeros((n_envs, policy.noise.width), np.float32)
    out = np.zeros((n_envs, *shape_of(action)), action.dtype)
    with torch_threads(1):
        act_s = _fastest(lambda: inference.act(batch.obs[0], noise, out))
    if not is_learning:
        return Rehearsal(config.n_steps, act_s)
    learner = Learner(FlatParameters(module), replace(config, n_epochs=1, target_kl=None), np.random.default_rng)
    minibatches = config.n_epochs * config.n_steps * n_envs / batch.steps
    with torch_threads(config.learner_threads):
        targets = learner.targets(batch, 0)
        once_s = _fastest(lambda: learner.update(batch, targets, 0, 1.0))
    return Rehearsal(config.n_steps, act_s, minibatches * once_s)


def _made_up(observation: Space, action: Space, n_envs: int, rows: int) -> Batch:
    """One minibatch of steps: nothing in them matters but their number and shape."""
    schema = rollout_schema(observation, action, rows, n_envs)
    batch = assemble([Slab(schema, HeapSegment(slab_bytes(schema)).buffer)])
    rng = np.random.default_rng(0)
    for name, space in (("obs", observation), ("action", action)):
        values = getattr(batch, name)
        values[...] = plausible(space, rng, rows * n_envs).reshape(values.shape)
        if name == "action" and hasattr(space, "start"):  # slabs hold choices from 0 on
            values -= np.asarray(space.start).reshape(shape_of(space)).astype(values.dtype)
    for name in ("reward", "log_prob", "value", "bootstrap_value", "last_value"):
        getattr(batch, name)[...] = 0
    batch.terminated[...] = batch.truncated[...] = False
    batch.valid[...] = True
    return batch


def _fastest(act: Callable[[], object]) -> float:
    """Seconds of the fastest of a few calls; the first may compile."""
    times: list[float] = []
    begun = now_s()
    while len(times) < 2 or (len(times) < 5 and now_s() - begun < _BUDGET_S):
        before = now_s()
        act()
        times.append(now_s() - before)
    return min(times)
