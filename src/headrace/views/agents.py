"""The terminal while agents play: a bar with episodes, turns/s, tokens/s, the engine's batch and failures.

For a person one live line; for a pipe or CI a line every ten seconds and at the end.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self

from headrace.plain_text import printable

_PLAIN_S = 10.0
_LIVE_S = 0.1


class _Engine(Protocol):
    @property
    def batch_mean(self) -> float: ...


class _Statistics(Protocol):
    @property
    def groups(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def episodes(self) -> int: ...
    @property
    def turns(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def engine(self) -> _Engine: ...


class RolloutView:
    """Shows a rollout as it goes on. Use as a context manager."""

    def __init__(self, groups: int, group_size: int) -> None:
        self._episodes = groups * group_size
        self._done = 0
        self._is_live = sys.stdout.isatty() and "CI" not in os.environ
        self._next_s = 0.0
        self._line = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._line:
            print(f"\r\x1b[2K{self._line}" if self._is_live else self._line, flush=True)

    def teaching(self, done: int, total: int) -> None:
        """The tiny model is being taught."""
        self._show(f"teaching the tiny model: {done} of {total} steps")

    def update(self, group: object, statistics: _Statistics, choice: object) -> None:
        """A group came back."""
        self._done += len(getattr(group, "episodes", ()))
        share = self._done / self._episodes if self._episodes else 1.0
        seconds = max(statistics.seconds, 1e-9)
        bar = "━" * round(20 * share) + "─" * (20 - round(20 * share))
        self._show(
            f"{bar} {self._done:,} / {self._episodes:,} episodes  {statistics.turns / seconds:,.0f} turns/s  "
            f"{statistics.tokens / seconds:,.0f} tokens/s  batch {statistics.engine.batch_mean:.1f}  "
            f"{statistics.failed} groups failed"
        )

    def waiting(self, text: str) -> None:
        """Nothing goes on: who is waited for, at once."""
        self._next_s = 0.0
        before, self._line = self._line, ""
        self._show(text)
        self._line = before

    def summary(self, metrics: Mapping[str, float]) -> None:
        """The numbers at the end, per tag."""
        tags = sorted({name.partition("/")[0] for name in metrics})
        found = {name.partition("/")[2] for name in metrics if "pass@" in name or name.endswith("/success")}
        names = sorted(found, key=lambda name: (not name.startswith("pass@"), len(name), name))  # pass@2 before pass@16
        names = ["reward", *names, "answer_is_valid", "groups_failed"]
        width = max([12, *(len(tag) + 2 for tag in tags)])
        print("".join([f"{'':<{width}}", *(f"{name:>16}" for name in names)]))
        for tag in tags:
            cells = (metrics.get(f"{tag}/{name}") for name in names)
            shown = printable(tag, is_one_line=True)
            print(
                "".join(
                    [f"{shown:<{width}}", *(f"{'-' if cell is None else format(cell, '.3f'):>16}" for cell in cells)]
                )
            )

    def _show(self, line: str) -> None:
        self._line = line
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + (_LIVE_S if self._is_live else _PLAIN_S)
        if self._is_live:
            print(f"\r\x1b[2K{line}", end="", flush=True)
        else:
            print(line, flush=True)
