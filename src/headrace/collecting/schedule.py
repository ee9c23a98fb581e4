"""The schedule of an asynchronous run: what was consumed when, and which version acted in which row.

    schedule.jsonl, a line an update, slabs in the order of consumption:
    {"version": the latest then, "shards": how many, "slabs": [[shard, sequence, [[first row, version], ...]], ...]}

Replayed, even inline, it gives the recording run's bits: everything else about a run is in its configuration. Slabs
that were rejected stand in the line of the update that passed them over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.collecting.schedule_form import require_lines
from headrace.errors import UsageError
from headrace.files import parse_object, read_named
from headrace.memory.lease import Lease
from headrace.memory.ring import Ring

MAX_SCHEDULE_BYTES = 1 << 30


@dataclass(frozen=True)
class SlabUse:
    """One slab's part in the schedule."""

    shard: int
    sequence: int
    versions: tuple[int, ...]  # per row

    def encode(self) -> list[Any]:
        """As JSON; versions as runs."""
        runs, row = [], 0
        for version, group in groupby(self.versions):
            runs.append([row, version])
            row += len(list(group))
        return [self.shard, self.sequence, runs]

    @classmethod
    def decode(cls, data: list[Any], n_steps: int) -> SlabUse:
        """The inverse."""
        shard, sequence, runs = data
        versions = np.empty(n_steps, np.int64)
        for row, version in runs:
            versions[row:] = version
        return cls(shard, sequence, tuple(versions.tolist()))


def slab_use(lease: Lease, versions: npt.NDArray[Any]) -> SlabUse:
    """What is recorded of a slab that was looked at."""
    return SlabUse(lease.shard, lease.sequence, tuple(int(version) for version in versions))


def encode_update(version: int, shards: int, uses: Sequence[SlabUse]) -> str:
    """A line of the file."""
    return json.dumps({"version": version, "shards": shards, "slabs": [use.encode() for use in uses]}) + "\n"


class Schedule:
    """A recorded schedule: per update the latest version and the slabs that were looked at."""

    def __init__(self, versions: list[int], updates: list[list[SlabUse]]) -> None:
        self.versions, self.updates = versions, updates
        self.uses = [use for uses in updates for use in uses]
        self._versions = {(use.shard, use.sequence): use.versions for use in self.uses}

    @classmethod
    def read(cls, path: Path, n_steps: int) -> Schedule:
        """From a run directory's schedule.jsonl."""
        try:
            lines = [parse_object(line) for line in read_named(path, MAX_SCHEDULE_BYTES).splitlines()]
            require_lines(lines, n_steps)
            updates = [[SlabUse.decode(one, n_steps) for one in line["slabs"]] for line in lines]
            schedule = cls([int(line["version"]) for line in lines], updates)
            shards = {int(line["shards"]) for line in lines}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UsageError(f"schedule {path}: expected the schedule.jsonl of an asynchronous run: {error}") from error
        first = {use.shard: use.sequence for use in reversed(schedule.uses)}
        if any(first.values()):
            raise UsageError(f"schedule {path}: does not begin with the run, so it can't be replayed")
        if len(shards) > 1:
            counts = " and ".join(map(str, sorted(shards)))
            raise UsageError(
                f"schedule {path}: the run had {counts} shards at times (it was resumed with another number), so it "
                f"can't be replayed; resume with --shards to keep them"
            )
        return schedule

    @property
    def num_shards(self) -> int:
        """Shards of the run that recorded it."""
        return max((use.shard for use in self.uses), default=0) + 1

    @property
    def capacity(self) -> int:
        """Versions that must be kept to replay it."""
        pairs = zip(self.versions, self.updates, strict=True)
        ages = [version - min(use.versions) for version, uses in pairs for use in uses]
        return max(ages, default=0) + 2

    def is_publishing(self, updates: int, _: float = 0.0) -> bool:
        """Whether a version was published after so many updates; what nobody consumed any more does not matter."""
        return updates < len(self.versions) and self.versions[updates] > self.versions[updates - 1]

    def versions_of(self, shard: int, sequence: int) -> tuple[int, ...]:
        """The recorded version of every row of a slab."""
        return self._versions[shard, sequence]

    def leases(self, ring: Ring) -> Iterator[Lease]:
        """Leases in the recorded order, as many as there may be now."""
        begun = sum(ring.state.sequences) + sum(map(len, ring.state.open))
        for use in self.uses[begun:]:
            lease = ring.lease(use.shard)
            if lease is None:
                return
            yield lease
