"""Where the time goes: named phases that add up to the whole, with the rest under `other`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.clock import now_s


class Phases:
    """A stopwatch per phase; `split` hands out the times since the last call and starts over."""

    def __init__(self, names: tuple[str, ...], clock: Callable[[], float] = now_s) -> None:
        self._clock = clock
        self._spent = dict.fromkeys(names, 0.0)
        self._since = clock()

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Time a block."""
        start = self._clock()
        try:
            yield
        finally:
            self._spent[name] += self._clock() - start

    def add(self, name: str, seconds: float) -> None:
        """Book time that was measured elsewhere."""
        self._spent[name] += seconds

    def split(self) -> dict[str, float]:
        """Seconds per phase since the last call, what is left under `other`, and their sum under `total`."""
        now = self._clock()
        total = now - self._since
        spent = dict(self._spent)
        spent["other"] = max(0.0, total - sum(spent.values()))
        spent["total"] = total
        self._since = now
        self._spent = dict.fromkeys(self._spent, 0.0)
        return spent
