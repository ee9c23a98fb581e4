"""How long anything may take, and how often it is tried: every wait of the room has one of these deadlines."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import UsageError, require_types
from headrace.keywords import in_words

END_S = 5.0  # for environments to close when all is over


@in_words()
@dataclass(frozen=True)
class Limits:
    """Deadlines and attempts."""

    env_s: float = 60.0
    """For building and resetting an environment, and for the actions of one turn."""
    engine_s: float = 300.0
    """For one answer, waiting for a batch included; time without any server is not counted (engine.outage_s)."""
    stall_s: float = 30.0
    """Without any progress for so long, the log says who is waited for."""
    publish_s: float = 600.0
    """For new weights, where no group may start without them (max_lag)."""
    attempts: int = 2
    """At an episode, each with a fresh environment and the same seeds; after that its group has failed."""
    plays: int = 3
    """Of a group that failed, over all sessions of a run directory: each session that continues it plays it again."""
    max_live: int = 512
    """Episodes at one time, in all workers together; at least one for each of them, or, without workers, one group."""

    def __post_init__(self) -> None:
        require_types(
            self, {int: ("attempts", "plays", "max_live"), float: ("env_s", "engine_s", "stall_s", "publish_s")}
        )
        for name in ("env_s", "engine_s", "stall_s", "publish_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"{name}: expected seconds above 0, got {getattr(self, name)}")
        for name in ("attempts", "plays", "max_live"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}: expected at least 1, got {getattr(self, name)}")
