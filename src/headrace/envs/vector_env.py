"""The contract between an actor and the B environments of its shard, and the common format of their rows.

    begin(first) -> obs of row 0
    step(row, final) -> reads the row's actions; writes reward, flags, valid, episode and step of this row, and the
                        observations of the next one; one call of final() per truncation

The common format, whatever the source's own autoreset does: a row of an environment holds a real transition, or it is
marked invalid and is neither trained on nor counted. A source whose reset takes a step of its own (`skips_rows`) marks
that step invalid; such a row has the number of the episode to come and step 0. `final(b, obs)` hands over the
observation in which a truncated (and not terminated) episode was cut.
With nan_policy=drop an episode may be dropped (mended): the row of its bad step is invalid, and its step DROPPED_END.

Does not know slabs' lifetimes, policies or seeds' origin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from headrace.envs.clamping import Clamp
from headrace.memory.layout import Row
from headrace.memory.spaces import Leaves, ObservationSpace, Space

Array = npt.NDArray[Any]
FinalObs = Callable[[int, dict[str, Any]], None]


@dataclass(frozen=True)
class LiveEpisode:
    """An episode that has begun: all it takes to bring a deterministic environment back to where it is."""

    env_index: int
    episode: int
    seed: int
    actions: Array  # [steps so far, ...] as slabs hold them (see `actions` for what the environment is sent)
    checksum: int
    """Of all that it showed so far (memory/checksum): what its replay must come to."""

    @property
    def name(self) -> str:
        """As the command line takes it."""
        return f"{self.env_index}:{self.episode}"

    @property
    def is_at_start(self) -> bool:
        """Whether the environment has not taken a step in this run."""
        return self.episode == 0 and not len(self.actions)


class EnvFailure(Exception):  # noqa: N818
    """An environment raised or returned nonsense; the actor knows which episode and step that was."""

    def __init__(self, position: int, reason: str, is_raised: bool = False) -> None:
        super().__init__(reason)
        self.position = position  # 0..B-1 within the shard
        self.reason = reason
        self.is_raised = is_raised  # by the environment's own code, which may do better in a fresh process
        self.step: int | None = None  # of a replay


class VectorEnv(Protocol):
    """B environments of one shard, stepped together."""

    num_envs: int
    observation_space: ObservationSpace
    action_space: Space
    skips_rows: bool
    step_ns: Array
    """[B], how long a step of each environment takes, lately; 0: not known."""

    def begin(self, first: Leaves) -> None:
        """Start every environment's first episode and write the observations."""
        ...

    def restore(self, live: Sequence[LiveEpisode], first: Leaves, clamp: Clamp | None = None) -> Sequence[int]:
        """Bring every environment into the middle of an episode by replaying it; refused where it can't be.

        Returns the checksum of each replay, of what was `clamp`ed where that is done; the caller compares them.
        """
        ...

    def step(self, row: Row, final: FinalObs) -> None:
        """Take one step in every environment, with the row's actions."""
        ...

    def close(self) -> None:
        """Close every environment."""
        ...
