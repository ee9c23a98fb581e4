"""Acting on frame stacks: what is new in each is stored before it is acted on (memory/stacks)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from headrace.acting.culprit import Culprit
from headrace.envs.vector_env import EnvFailure
from headrace.memory.slab import Slab
from headrace.memory.spaces import Leaves
from headrace.memory.stacks import Stacks

Array = npt.NDArray[Any]
Act = Callable[[int, Leaves, Array, Array], int]
"""(row, obs [B, ...], noise [B, width], out [B, ...]) -> the version of the policy that acted."""
_TORN = (
    "changed a frame after it was shown, so FrameStackObservation does not stack what the environment showed; copy its "
    "observations in a wrapper below the stack, as in gymnasium.wrappers.TransformObservation(env, np.copy, None)"
)


def keeping(stacks: Stacks, act: Act) -> Act:
    """Acts, and stores what is new in the frame stacks that are acted on."""

    def keep_and_act(row: int, obs: Leaves, noise: Array, out: Array) -> int:
        stacks.keep(row)
        return act(row, obs, noise, out)

    return keep_and_act


def end_stacks(slab: Slab, stacks: Stacks, culprit: Culprit) -> None:
    """Store the stacks after the last row; an environment that changed what it had shown is named."""
    stacks.keep(slab.schema.n_steps)
    if stacks.torn is not None:
        t, env = stacks.torn
        raise culprit.in_row(EnvFailure(env, _TORN), slab, t)
