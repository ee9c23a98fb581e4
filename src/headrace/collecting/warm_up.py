"""What a warm spare does before it is needed: everything that takes long the first time, and nothing else.

    observation, action spaces --> a policy of a few weights, on memory of its own: published, loaded, acted with once

That loads the compiled code that acting needs: close to a second in a new process. No environment is made, no shared
memory is touched, and nothing stays but the loaded code, so a spare's rollouts are those of any other worker.
"""

from __future__ import annotations

import contextlib

import numpy as np

from headrace.inference.local import LocalInference
from headrace.memory.spaces import Dict, ObservationSpace, Space, leaves_of, shape_of
from headrace.policies.config import PolicyConfig
from headrace.policies.networks import as_policy, build_policy
from headrace.policies.threads import torch_threads
from headrace.policies.tiles import SMALLEST_TILE
from headrace.runtime.line import Line
from headrace.weights.flat import FlatParameters
from headrace.weights.store import Replica, WeightStore


def warm_up(line: Line, spaces: tuple[ObservationSpace, Space]) -> None:
    """A target for children; spaces that the shipped policies do not take are no reason to fail."""
    with torch_threads(1), contextlib.suppress(Exception):
        act_once(*spaces)


def act_once(observation: ObservationSpace, action: Space) -> None:
    """Publish, load, act."""
    rows, name = SMALLEST_TILE, "MultiInputPolicy" if isinstance(observation, Dict) else "MlpPolicy"
    flat = FlatParameters(build_policy(PolicyConfig(name, net_arch=(4,)), observation, action, 0))
    store = WeightStore(flat.size, 1)
    store.publish(flat.published, 0)
    Replica(flat).load(store, 0)
    obs = {name: np.zeros((rows, *shape_of(leaf)), leaf.dtype) for name, leaf in leaves_of(observation).items()}
    noise = np.zeros((rows, as_policy(flat.module).noise.width), np.float32)
    out = np.zeros((rows, *shape_of(action)), action.dtype)
    LocalInference(flat.module, observation, action, rows).act(obs, noise, out)
