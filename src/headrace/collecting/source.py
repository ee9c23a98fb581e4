"""The source port: what lends batches to a learner. The reader of slabs is one, groups of LLM episodes are another.

    collect() -> batch, lent     ... the learner learns ...     give_back() -> Harvest     run_ahead() -> more begins

A source owns its ledger, journal, statistics, schedule and supervision. Between give_back and the next collect its
snapshot is all that a run needs to go on; what is collected meanwhile is collected again after a restore.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy.typing as npt

from headrace.collecting.schedule import SlabUse
from headrace.episodes.entry import Entry
from headrace.episodes.finished import Finished

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Harvest:
    """What became of a batch that was given back."""

    steps: int
    """Real transitions in it."""
    make_record: Callable[[], dict[str, float]]
    finished: tuple[Finished, ...] = ()
    """The episodes that ended in it, by row, then environment."""
    uses: tuple[SlabUse, ...] = ()
    """The rollouts that were looked at for it, in order: an asynchronous run's schedule."""
    steps_by_worker: tuple[int, ...] = ()
    entries: tuple[Entry, ...] = ()
    """What its rollouts add to the journal on disk, if there is one."""

    @cached_property
    def record(self) -> dict[str, float]:
        """What is logged of it, by name; made when it is first read."""
        return self.make_record()


@dataclass(frozen=True)
class Totals:
    """What a source has given so far."""

    episodes: int
    mean_return: float | None
    ledger: dict[str, Any]
    restarts: int
    env_failures: int = 0
    """Those of them after an environment had raised."""


class Source(Protocol):
    """See the module docstring."""

    is_interruptible: bool
    """Whether it waits: a signal may break it off there and nowhere else."""
    before_wait: Callable[[], None]
    """Called whenever it begins to wait; may raise, to break it off."""

    def collect(self) -> Any:
        """The next batch; the caller gives it back before it asks for another."""

    def give_back(self) -> Harvest:
        """The batch was learned from."""

    def leftovers(self) -> Harvest:
        """What happened since the last batch and no batch will report: of rejected data, if collecting ends here."""

    def run_ahead(self) -> None:
        """Begin what the pace allows; a failure of what runs ahead is raised by the next collect."""

    def totals(self) -> Totals:
        """What it has given so far."""

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """What it needs to go on, as JSON and arrays, copied."""

    def restore(self, state: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Go on from a snapshot."""

    def halt(self) -> None:
        """End worker processes now. A batch that is lent stays; totals and snapshot still work, collecting does not.

        A signal handler may call it wherever the source itself is not at work; may be called twice.
        """

    def close(self) -> None:
        """End what collects and give the memory back; may be called twice."""
