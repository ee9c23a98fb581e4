"""What a session spends beside its run: evaluating, logging, checkpoints, by name and per update.

    with spent("checkpoint"): ...      per_update() at each record -> seconds      written(): those were kept

A record may be written every tenth update only, and what is written costs time after its record was made. So seconds
are kept until a record with them was written, and a record holds the mean of all updates since the last one.
Does not know what the names mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from headrace.clock import now_s


class Spent:
    """Seconds by name."""

    def __init__(self, clock: Callable[[], float] = now_s) -> None:
        self._clock = clock
        self._kept: dict[str, float] = {}  # since the last record that was written
        self._reported: dict[str, float] = {}  # those of them that the present record holds
        self._updates = 0  # that `_kept` is of
        self._latest_s = 0.0  # since the last record

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Count what happens within."""
        began = self._clock()
        try:
            yield
        finally:
            took = self._clock() - began
            self._kept[name] = self._kept.get(name, 0.0) + took
            self._latest_s += took

    def per_update(self) -> tuple[Mapping[str, float], float]:
        """For the record of one more update: mean seconds by name, and what was counted since the last record."""
        self._updates += 1
        latest_s, self._latest_s = self._latest_s, 0.0
        self._reported = dict(self._kept)
        return {name: seconds / self._updates for name, seconds in self._kept.items()}, latest_s

    def written(self) -> None:
        """The record is about to be written: what it holds is not reported again."""
        self._kept = {name: seconds - self._reported.get(name, 0.0) for name, seconds in self._kept.items()}
        self._reported, self._updates = {}, 0
