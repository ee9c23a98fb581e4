"""The contract between an actor and whatever steps B environments for it, and its one normal form.

    begin(first) -> obs of row 0
    step(actions, row, final) -> reward, flags, valid of this row; obs of the next one; a call of final() per truncation

The normal form, whatever the source's own autoreset does: a row of an environment holds a real transition, or it is
marked invalid and nobody trains on it or counts it. A source whose reset takes a step of its own (`skips_rows`) marks
that step invalid. `final(b, obs)` hands over the observation in which a truncated (and not terminated) episode was cut.

Does not know slabs' lifetimes, policies or seeds' origin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from headrace.memory.slab import Row
from headrace.memory.spaces import Space

Array = npt.NDArray[Any]
FinalObs = Callable[[int, Any], None]


@dataclass(frozen=True)
class LiveEpisode:
    """An episode that has begun: all it takes to bring a deterministic environment back to where it is."""

    env_index: int
    episode: int
    seed: int
    actions: Array  # [steps so far, ...] as sent to the environment


class EnvFailure(Exception):  # noqa: N818
    """An environment raised or returned nonsense; the actor knows which episode and step that was."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position  # 0..B-1 within the shard
        self.reason = reason


class VectorEnv(Protocol):
    """B environments of one shard, stepped together."""

    num_envs: int
    observation_space: Space
    action_space: Space
    skips_rows: bool

    def begin(self, first: Array) -> None:
        """Start every environment's first episode and write the observations."""
        ...

    def restore(self, live: Sequence[LiveEpisode], first: Array) -> None:
        """Bring every environment into the middle of an episode by replaying it; refused where it can't be."""
        ...

    def step(self, actions: Array, row: Row, final: FinalObs) -> None:
        """Take one step in every environment. `actions` are as the environment wants them (see `actions`)."""
        ...

    def close(self) -> None:
        """Close every environment."""
        ...
