"""Where the numbers of a run are kept: one record per update, written to every sink.

    learner ──record──> Sinks ──┬──> JsonlSink        metrics.jsonl   (one object a line; read_records reads it back)
                                ├──> TensorBoardSink  events.out.tfevents.*   (x axis: environment steps)
                                └──> WandbSink (wandb_sink)

A record is a flat dict of tag -> number, under SB3's tags plus our own headrace/*. The full disk of a sink never stops
training: Sinks warns once, counts what was lost and goes on. A file is only ever appended to by whole records, so what
is on disk stays readable to its last byte even if the disk fills up or the process is killed.

This file does not know what the numbers mean, how they are drawn (views/), or when an update happens.
"""

from __future__ import annotations

import json
import logging
import math
import os
import struct
import time
from collections.abc import Callable, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, get_args

from headrace.files import read_lines, size_limit

logger = logging.getLogger(__name__)

Record: TypeAlias = dict[str, float]
TagStyle: TypeAlias = Literal["sb3", "cleanrl", "both"]

STEP_TAG = "time/total_timesteps"
MAX_METRICS_BYTES = 64 << 20
_MAX_RECORD_BYTES = 1 << 20

# SB3's tag -> (CleanRL's tag, factor). SB3 logs negative entropy and the mean squared error of values; CleanRL logs
# positive entropy and half that error.
_CLEANRL_TAGS: dict[str, tuple[str, float]] = {
    "rollout/ep_rew_mean": ("charts/episodic_return", 1.0),
    "rollout/ep_len_mean": ("charts/episodic_length", 1.0),
    "time/fps": ("charts/SPS", 1.0),
    "train/learning_rate": ("charts/learning_rate", 1.0),
    "train/value_loss": ("losses/value_loss", 0.5),
    "train/policy_gradient_loss": ("losses/policy_loss", 1.0),
    "train/entropy_loss": ("losses/entropy", -1.0),
    "train/old_approx_kl": ("losses/old_approx_kl", 1.0),
    "train/approx_kl": ("losses/approx_kl", 1.0),
    "train/clip_fraction": ("losses/clipfrac", 1.0),
    "train/explained_variance": ("losses/explained_variance", 1.0),
}


class Sink(Protocol):
    """Something that keeps records. An OSError from either method means the record could not be kept."""

    @property
    def title(self) -> str:
        """What it is called in messages."""

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


def cleanrl_tags(record: Record) -> Record:
    """The part of a record that CleanRL has names for, under those names and with its signs."""
    return {
        name: record[tag] * factor if factor != 1.0 else record[tag]
        for tag, (name, factor) in _CLEANRL_TAGS.items()
        if tag in record
    }


def json_record(record: Record) -> dict[str, float | None]:
    """A record as JSON has it: what is not finite is null."""
    return {tag: _json_number(value) for tag, value in record.items()}


def read_records(path: Path) -> list[Record]:
    """The records of a metrics.jsonl; a null (NaN or Inf when written) comes back as NaN.

    A line torn by a crash is skipped. A run resumed from a checkpoint writes some steps a second time: the later
    record wins, so steps in the answer only rise. Of a file beyond MAX_METRICS_BYTES every second, third ... record is
    read, so that a long run still has a report and a file from elsewhere can't fill the memory.
    """
    records: list[Record] = []
    try:
        every = os.lstat(path).st_size // size_limit(MAX_METRICS_BYTES) + 1
    except FileNotFoundError:
        return records
    for line in islice(read_lines(path, _MAX_RECORD_BYTES), None, None, every):
        try:
            loaded = json.loads(line)
        except (ValueError, RecursionError):  # not UTF-8, either
            continue
        if not isinstance(loaded, dict):
            continue
        record = {tag: math.nan if value is None else value for tag, value in loaded.items() if _is_value(value)}
        while records and records[-1].get(STEP_TAG, -math.inf) >= record.get(STEP_TAG, math.inf):
            records.pop()
        records.append(record)
    return records


class JsonlSink:
    """One JSON object a line, on disk when write returns. An existing file is continued (resume)."""

    title = "metrics.jsonl"

    def __init__(self, path: Path) -> None:
        self._file = _WholeAppends(path)
        if self._file.ends_inside_a_line():
            self._file.append(b"\n")  # the torn line of a killed run stays alone on its line

    def write(self, record: Record) -> None:
        self._file.append(json.dumps(json_record(record), allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


class TensorBoardSink:
    """A TensorBoard event file, one event per record, at the record's environment step.

    tensorboardX gives the protocol buffers and the checksum; the file is written here, without its SummaryWriter,
    whose writer thread dies of a full disk and then blocks the caller for ever on a full queue.
    """

    title = "TensorBoard"
    _file_ids = count()

    def __init__(self, directory: Path, tags: TagStyle = "sb3", wall_clock: Callable[[], float] = time.time) -> None:
        if tags not in get_args(TagStyle):
            raise ValueError(f"tags must be one of {', '.join(get_args(TagStyle))}, got {tags!r}")
        from tensorboardX.proto import event_pb2, summary_pb2
        from tensorboardX.record_writer import masked_crc32c

        self._event_type = event_pb2.Event
        self._summary_type = summary_pb2.Summary
        self._checksum: Callable[[bytes], int] = masked_crc32c
        self._tags = tags
        self._wall_clock = wall_clock
        # Seconds alone are not unique: a run resumed within one second must not share the first one's file.
        name = f"events.out.tfevents.{wall_clock():.0f}.headrace.{os.getpid()}.{next(self._file_ids)}"
        directory.mkdir(parents=True, exist_ok=True)
        self._file = _WholeAppends(directory / name)
        self._append_event(self._event_type(wall_time=wall_clock(), file_version="brain.Event:2"))

    def write(self, record: Record) -> None:
        summary = self._summary_type()
        for tag, value in self._tagged(record).items():
            summary.value.add(tag=tag, simple_value=value)
        step = int(record[STEP_TAG])
        self._append_event(self._event_type(wall_time=self._wall_clock(), step=step, summary=summary))

    def close(self) -> None:
        self._file.close()

    def _tagged(self, record: Record) -> Record:
        if self._tags == "sb3":
            return record
        if self._tags == "both":
            return record | cleanrl_tags(record)
        # CleanRL has no names for ours, nor for evaluation: those keep their own.
        kept = {tag: value for tag, value in record.items() if tag.startswith(("headrace/", "eval/"))}
        return cleanrl_tags(record) | kept

    def _append_event(self, event: Any) -> None:
        data: bytes = event.SerializeToString()
        length = struct.pack("<Q", len(data))  # TFRecord framing: length, its checksum, data, its checksum
        framed = length + struct.pack("<I", self._checksum(length)) + data + struct.pack("<I", self._checksum(data))
        self._file.append(framed)


class Sinks:
    """Every sink of a run as one. A sink that fails with OSError costs its own records, never the run.

    `say` shows people what the log gets, too.
    """

    def __init__(self, sinks: Sequence[Sink], say: Callable[[str], None] = lambda text: None) -> None:
        self._sinks, self._say = tuple(sinks), say
        self._num_lost = [0] * len(self._sinks)

    def write(self, record: Record) -> None:
        for index, sink in enumerate(self._sinks):
            try:
                sink.write(record)
            except OSError as error:
                if not self._num_lost[index]:
                    self._warn(f"{sink.title} could not keep a record, training goes on: {error}")
                self._num_lost[index] += 1

    def close(self) -> None:
        for sink, num_lost in zip(self._sinks, self._num_lost, strict=True):
            try:
                sink.close()
            except OSError as error:
                self._warn(f"{sink.title} did not close cleanly: {error}")
            if num_lost:
                self._warn(f"{sink.title} lost {num_lost} records in all")

    def _warn(self, text: str) -> None:
        logger.warning("%s", text)
        self._say(f"warning: {text}")


class _WholeAppends:
    """An append-only file in which every append is there whole or not at all (a full disk would leave half of one)."""

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        self._size_bytes = os.fstat(self._descriptor).st_size

    def append(self, data: bytes) -> None:
        descriptor = self._open_descriptor()
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError:
            os.ftruncate(descriptor, self._size_bytes)
            raise
        self._size_bytes += len(data)

    def ends_inside_a_line(self) -> bool:
        return self._size_bytes > 0 and os.pread(self._open_descriptor(), 1, self._size_bytes - 1) != b"\n"

    def close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise ValueError("this sink is closed")
        return self._descriptor


def _is_value(value: object) -> bool:
    """A number that a float can hold, or null: a metrics.jsonl may come from elsewhere."""
    return value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 63)


def _json_number(value: float) -> float | None:
    if isinstance(value, int):
        return value
    value = float(value)  # numpy's scalars too
    return value if math.isfinite(value) else None
