"""One update of a run, as everything outside of it sees it: sessions, views, sinks and callbacks.

    Run.update --> Update --record--> what is logged, by name

Numbers are taken within the update; they are named when the record is first read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from headrace.collecting.source import Harvest


@dataclass(frozen=True)
class Update:
    """A batch was collected and learned from, and its weights were published if that was due."""

    number: int
    """Updates so far, this one included."""
    version: int
    """The latest version when its batch was complete."""
    steps: int
    """Real environment steps so far."""
    learned: dict[str, float]
    """What the algorithm reports."""
    harvest: Harvest
    """What the source reports: steps, finished episodes, what was looked at."""

    @cached_property
    def record(self) -> dict[str, float]:
        """Everything that is logged of it, by name."""
        return self.learned | self.harvest.record
