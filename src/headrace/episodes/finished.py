"""A finished episode, as it is counted, reported and written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finished:
    """One finished episode."""

    env_index: int
    episode: int
    total_reward: float
    length: int
    terminated: bool
