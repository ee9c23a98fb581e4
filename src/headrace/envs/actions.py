"""From the policy's actions, as slabs hold them, to the actions an environment is sent. One pure function.

Boxes are clipped to their bounds (the slab keeps the unclipped action: its log-probability is what PPO needs);
choices that do not start at 0 are shifted. Environments are sent what comes out of here, in play and in replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.memory.spaces import Box, Discrete, MultiDiscrete, Space, bounds

Array = npt.NDArray[Any]


def sender(space: Space) -> Callable[[Array], Array]:
    """The function that turns a batch of slab actions into actions as sent."""
    if isinstance(space, Box):
        low, high = bounds(space)
        return lambda actions: np.clip(actions, low, high)
    if isinstance(space, Discrete) and space.start:
        start = space.start
        return lambda actions: actions + start
    if isinstance(space, MultiDiscrete) and any(space.start):
        starts = np.asarray(space.start, space.dtype).reshape(space.shape)
        return lambda actions: actions + starts
    if isinstance(space, Discrete):
        return lambda actions: actions  # it is handed out number by number
    return lambda actions: actions.copy()  # an environment may keep or change what it is sent; a slab is reused
