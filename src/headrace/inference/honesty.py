"""Whether a policy of the user's own acts as it says: what `act` draws against the log_prob of `evaluate`.

    choices --> frequencies        numbers --> density

Tested is a copy whose parameters are moved: a lie about a weight that starts at 0 would not show otherwise. Seeds are
fixed, and the number of draws follows from the processor's time, so a policy passes or fails every time.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from headrace.inference.density import require_density
from headrace.inference.frequencies import require_frequencies
from headrace.inference.tried import OBSERVATIONS, Tried, moved
from headrace.memory.spaces import Box, ObservationSpace, Space, made_up_leaves


def require_honest(module: nn.Module, observation: ObservationSpace, action: Space) -> None:
    """Raise if `act` does not sample from what `evaluate` describes."""
    rng = np.random.default_rng(1)
    obs = made_up_leaves(observation, rng, OBSERVATIONS)
    tried = Tried(module, obs, action)
    other = Tried(moved(module, 1.0), obs, action)
    if isinstance(action, Box):
        require_density(other if other.is_sound() else tried)
        return
    for scale in (1.0, 4.0, 16.0, 64.0):  # a head that starts small would hide what happens to its logits
        scaled = Tried(moved(module, scale), obs, action)
        if not scaled.is_sound():
            break
        other = scaled
        if other.spread() > 1.0:
            break
    require_frequencies(other if other.is_sound() else tried)
