"""What a session writes into its run directory while it goes on.

    Update ──> metrics.jsonl and TensorBoard (sinks) · episodes.jsonl · schedule.jsonl (asynchronous runs)
    what headrace logs ──> log.txt

A resumed run writes some steps again: what lies beyond the step it goes on from is cut off first. A full disk costs
lines, never the run. Does not know checkpoints, signals or when to stop.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from headrace.checkpoints.run_directory import cut_episodes
from headrace.collecting.schedule import encode_update
from headrace.run_config import SessionConfig
from headrace.telemetry.sinks import JsonlSink, Record, Sinks, TensorBoardSink
from headrace.train import Update

logger = logging.getLogger(__name__)

Write = Callable[[Update], None]


class SessionFiles:
    """The files of one session; without a directory nothing is written."""

    def __init__(self, run_dir: Path | None, config: SessionConfig, num_shards: int, is_async: bool) -> None:
        self._dir, self._config = run_dir, config
        self._num_shards, self._is_async = num_shards, is_async
        self._sinks = Sinks([])
        self._writers: list[Write] = []

    @contextmanager
    def open(self, steps: int, updates: int) -> Iterator[None]:
        """For a session that goes on from that step."""
        if self._dir is None:
            yield
            return
        with ExitStack() as stack:
            sinks = Sinks([JsonlSink(self._dir / "metrics.jsonl"), TensorBoardSink(self._dir, self._config.tags)])
            stack.callback(sinks.close)
            self._sinks = sinks
            cut_episodes(self._dir / "episodes.jsonl", steps)
            episodes = stack.enter_context((self._dir / "episodes.jsonl").open("a"))
            self._writers = [lambda update: self._write(episodes, _episode_lines(update), "episodes")]
            if self._is_async:
                schedule = stack.enter_context(self._open_schedule(self._dir / "schedule.jsonl", updates))
                self._writers.append(lambda update: self._write(schedule, self._schedule_line(update), "the schedule"))
            yield

    def write_lists(self, update: Update) -> None:
        """Episodes that ended, and what was consumed."""
        for write in self._writers:
            write(update)

    def write_record(self, record: Record) -> None:
        """One record, to every sink."""
        self._sinks.write(record)

    @contextmanager
    def log(self) -> Iterator[None]:
        """log.txt gets what headrace says while the session lasts."""
        if self._dir is None:
            yield
            return
        handler = logging.FileHandler(self._dir / "log.txt")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        package = logging.getLogger("headrace")
        level = package.level
        package.addHandler(handler)
        package.setLevel(logging.INFO)
        try:
            yield
        finally:
            package.setLevel(level)
            package.removeHandler(handler)
            handler.close()

    def _open_schedule(self, path: Path, updates: int) -> TextIO:
        """An asynchronous run's schedule, a line an update: what it takes to get its bits again."""
        kept = path.read_text(errors="replace").splitlines(keepends=True)[:updates] if path.exists() else []
        path.write_text("".join(kept))
        return path.open("a")

    def _schedule_line(self, update: Update) -> str:
        return encode_update(update.version, self._num_shards, update.schedule)

    def _write(self, file: TextIO, text: str, what: str) -> None:
        try:
            file.write(text)
            file.flush()
        except OSError as error:
            logger.warning("%s could not be kept, training goes on: %s", what, error)


def _episode_lines(update: Update) -> str:
    """One line each, in the order of rows, then environments."""
    return "".join(json.dumps(asdict(one) | {"steps": update.steps}) + "\n" for one in update.finished)
