"""Where the policy runs, and whether workers take turns with two shards: as it was said, or as a measurement says.

    TopologyConfig, number of workers --settle--> Placement

Measures nothing itself (launch/placement, trial).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from headrace.errors import UsageError


class Said(Protocol):
    """What was said about it: a TopologyConfig."""

    @property
    def inference(self) -> str: ...
    @property
    def double_buffering(self) -> str: ...
    @property
    def n_envs(self) -> int: ...
    @property
    def shards(self) -> int: ...


@dataclass(frozen=True)
class Placement:
    """Where the policy runs and how many shards a worker steps in turns, and why; the steps/s that were predicted."""

    inference: str
    turns: int
    reason: str
    promised: Mapping[str, float] = field(default_factory=dict)


Place = Callable[[int], Placement | str]
"""Number of workers -> where the policy runs, or why that was not measured; empty: there was nothing to measure."""


def not_measured(workers: int) -> str:
    """The simplest placement will do."""
    return ""


def settle(said: Said, topology: str, workers: int, place: Place) -> Placement:
    """As it was said, or else as it was measured, or else the simplest one."""
    is_open = said.inference == "auto" or (said.inference == "central" and said.double_buffering == "auto")
    if said.double_buffering == "on" and said.inference == "central" and not can_take_turns(said, workers):
        count = f"shards = {said.shards}" if said.shards else f"n_envs = {said.n_envs}"
        raise UsageError(f"double_buffering=on: expected two for each of {workers} workers, got {count}")
    measured = place(workers) if is_open and topology == "processes" else ""
    if isinstance(measured, Placement):
        return measured
    but = f"; {measured}" if measured else ""
    if said.inference == "central":
        reason = f"double_buffering=off: workers step all of their environments at once{but}" if but else ""
        return Placement("central", 2 if said.double_buffering == "on" else 1, reason)
    return Placement("local", 1, f"inference=local: each worker runs the policy itself{but}" if is_open else "")


def can_take_turns(said: Said, workers: int) -> bool:
    """Whether every worker could have two shards."""
    return (said.shards or said.n_envs) >= 2 * workers
