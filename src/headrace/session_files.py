"""What a session writes into its run directory while it goes on.

    Update ──> metrics.jsonl and TensorBoard (sinks) · episodes.jsonl · schedule.jsonl (asynchronous runs)
           ──> journal/ (what headrace replay needs)
    what headrace logs ──> log.txt

A resumed run writes some steps again: what lies beyond the step it goes on from is cut off first. A full disk costs
lines, never the run, nor the error that it ended with. log.txt is UTF-8 that a terminal can show: an environment's
message may hold anything. Does not know checkpoints, signals or when to stop.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TextIO

from headrace.checkpoints.run_directory import cut_episodes, cut_recorded, cut_schedule
from headrace.collecting.schedule import encode_update
from headrace.episodes.journal_file import JournalWriter
from headrace.extras import has, left_out
from headrace.plain_text import MAX_TRACEBACK, printable, shortened
from headrace.run_config import SessionConfig
from headrace.telemetry.sinks import JsonlSink, Record, Sink, Sinks, TensorBoardSink
from headrace.update import Update

logger = logging.getLogger(__name__)

Write = Callable[[Update], None]


class SessionFiles:
    """The files of one session; without a directory nothing is written."""

    def __init__(
        self,
        run_dir: Path | None,
        config: SessionConfig,
        num_shards: int,
        is_async: bool,
        seed: int = 0,
        sinks: Callable[[], Sequence[Sink]] = tuple,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._dir, self._config = run_dir, config
        self._num_shards, self._is_async, self._seed = num_shards, is_async, seed
        self.is_recording = run_dir is not None and config.keep_episodes_mb > 0
        self._make_more, self._sinks, self._say = sinks, Sinks([]), say
        self._writers: list[Write] = []

    @contextmanager
    def open(self, steps: int, updates: int) -> Iterator[None]:
        """For a session that goes on from that step."""
        with ExitStack() as stack:
            self._sinks = Sinks([*self._own_sinks(), *self._more_sinks()], self._say)
            stack.callback(self._sinks.close)
            if self._dir is None:
                yield
                return
            if missing := left_out("tensorboard", "plots"):
                logger.info("%s", missing)
            cut_episodes(self._dir / "episodes.jsonl", steps)
            episodes = stack.enter_context(_appending(self._dir / "episodes.jsonl"))
            self._writers = [lambda update: self._write(episodes, _episode_lines(update), "episodes")]
            cut_recorded(self._dir, updates)
            if self.is_recording:
                journal = self._journal(self._dir)
                stack.callback(journal.close)
                self._writers.append(lambda update: self._record(journal, update))
            if self._is_async:
                cut_schedule(self._dir / "schedule.jsonl", updates)
                schedule = stack.enter_context(_appending(self._dir / "schedule.jsonl"))
                self._writers.append(lambda update: self._write(schedule, self._schedule_line(update), "the schedule"))
            yield

    def _own_sinks(self) -> list[Sink]:
        if self._dir is None:
            return []
        own: list[Sink] = [JsonlSink(self._dir / "metrics.jsonl")]
        return [*own, TensorBoardSink(self._dir, self._config.tags)] if has("tensorboard") else own

    def _more_sinks(self) -> Sequence[Sink]:
        try:
            return self._make_more()
        except OSError as error:
            logger.warning("W&B could not be started, training goes on: %s", error)
            return []

    def write_lists(self, update: Update) -> None:
        """Episodes that ended, and what was consumed."""
        for write in self._writers:
            write(update)

    def write_late(self, update: Update) -> None:
        """The same, of what no update reports, once the session's updates are over."""
        if self._dir is None or not (update.harvest.finished or update.harvest.entries):
            return
        with _appending(self._dir / "episodes.jsonl") as episodes:
            self._write(episodes, _episode_lines(update), "episodes")
        if self.is_recording:
            with closing(self._journal(self._dir)) as journal:
                self._record(journal, update)

    def write_record(self, record: Record) -> None:
        """One record, to every sink."""
        self._sinks.write(record)

    @contextmanager
    def log(self) -> Iterator[TextIO | None]:
        """log.txt gets what headrace says while the session lasts; the open file is for stacks, too."""
        if self._dir is None:
            yield None
            return
        handler = logging.FileHandler(self._dir / "log.txt", encoding="utf-8", errors="backslashreplace")
        handler.setFormatter(_Plain("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        package = logging.getLogger("headrace")
        level = package.level
        package.addHandler(handler)
        package.setLevel(logging.INFO)
        try:
            yield handler.stream
        finally:
            package.setLevel(level)
            package.removeHandler(handler)
            with suppress(OSError):  # a full disk
                handler.close()

    def _journal(self, run_dir: Path) -> JournalWriter:
        return JournalWriter(run_dir / "journal", self._config.keep_episodes_mb << 20, self._seed)

    def _schedule_line(self, update: Update) -> str:
        return encode_update(update.version, self._num_shards, update.harvest.uses)

    def _record(self, journal: JournalWriter, update: Update) -> None:
        returns = {(one.env_index, one.episode): one.total_reward for one in update.harvest.finished}
        try:
            journal.write(update.number, update.steps, update.harvest.entries, returns)
        except OSError as error:
            logger.warning("recorded episodes could not be kept, training goes on: %s", error)

    def _write(self, file: TextIO, text: str, what: str) -> None:
        try:
            file.write(text)
            file.flush()
        except OSError as error:
            logger.warning("%s could not be kept, training goes on: %s", what, error)


class _Plain(logging.Formatter):
    """Of bounded length, without control characters; newlines stay, for tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(shortened(super().format(record), 2 * MAX_TRACEBACK))


@contextmanager
def _appending(path: Path) -> Iterator[TextIO]:
    file = path.open("a")
    try:
        yield file
    finally:
        with suppress(OSError):  # what a full disk had no room for was said when it was written
            file.close()


def _episode_lines(update: Update) -> str:
    """One line each, in the order of rows, then environments."""
    return "".join(json.dumps(one._asdict() | {"steps": update.steps}) + "\n" for one in update.harvest.finished)
