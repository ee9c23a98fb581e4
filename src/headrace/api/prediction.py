"""Actions of a model for observations that a user has in hand.

observation, or a batch of them --> leaves --> the policy, in tiles as in training --> actions for the environment
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.build import Parts
from headrace.collecting.plan import build_noise
from headrace.envs.actions import sender
from headrace.envs.seeds import Purpose
from headrace.errors import SchemaError
from headrace.inference.local import LocalInference
from headrace.memory.spaces import as_rows, shape_of
from headrace.policies.networks import as_policy
from headrace.policies.threads import torch_threads

Array = npt.NDArray[Any]


def predicted(parts: Parts, observation: Any, draw: int | None) -> Array:
    """Actions, or one action for one observation. `draw` numbers the noise; None: the most likely actions."""
    try:
        rows, is_single = as_rows(parts.observation, observation)
    except SchemaError as error:
        raise SchemaError(f"predict: {error}") from error
    count, noise = len(next(iter(rows.values()))), None
    if draw is not None:
        spec = as_policy(parts.module).noise
        drawn = build_noise(spec, range(count), parts.config.seed, Purpose.EVALUATION_NOISE)
        noise = drawn.draw(np.full(count, draw), 1)[0]
    actions = np.empty((count, *shape_of(parts.action)), parts.action.dtype)
    with torch_threads(1):
        LocalInference(parts.module, parts.observation, parts.action, parts.tile).act(rows, noise, actions)
    actions = sender(parts.action)(actions)
    one: Array = actions[0] if is_single else actions
    return one
