"""The journal on disk: every rollout's actions, ends and checksums, for as far back as there is room.

    journal/000001.bin, 000002.bin ...: frames of one rollout each, an update's together; the oldest file goes first
    frame: magic · lengths · CRC-32 of head and body · CRC-32 of these 20 bytes | head (JSON) | body (arrays)

A file is only appended to by whole updates and begins with a frame that names the format and the run's seed. One
altered byte is found: no later frame is believed. A run that was killed may leave the last frame unfinished; that is
no damage, and a run that goes on cuts it off, with all that it will write again.
Does not know what an episode is (recorded), nor what to do with one.
"""

from __future__ import annotations

import json
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.episodes.entry import Entry
from headrace.episodes.frame_form import require_frame
from headrace.errors import JournalError
from headrace.files import MAX_ARRAY_BYTES, parse_object, read_regular, require_no_links

Array = npt.NDArray[Any]

FORMAT = 2  # 1 has no starts
_READABLE = (1, FORMAT)
_MAGIC = b"hrj1"
_PREFIX, _CHECK = struct.Struct("<4sIQI"), struct.Struct("<I")
_NAME = re.compile(r"\d{6}\.bin")
_SEGMENTS = 8  # files that the room is divided into
_REMEDY = "move the journal directory away to go on without it"


@dataclass(frozen=True)
class Frame:
    """One rollout as it lies on disk (rows are t * B + b), and the update that consumed it or passed it over."""

    update: int
    steps: int
    """Of the run, after that update."""
    env_start: int
    worker: int
    versions: list[list[int]]
    """[first row, version] each."""
    action_dtype: str
    """In slabs; on disk whole numbers are as narrow as they can be."""
    episode: Array  # [B], of the first row
    step: Array  # [B], of the first row
    checksum: Array  # [B], of the running episodes after the last row
    action: Array  # [T, B, ...]
    invalid: Array  # rows without a real transition
    end: Array  # rows in which episodes ended
    end_flags: Array  # 1 terminated, 2 truncated, 3 both
    end_checksum: Array
    total_reward: Array
    start: Array  # rows in which episodes began; empty in format 1
    start_digest: Array  # of the observation that each began with


class JournalWriter:
    """Appends rollouts; keeps at most `limit_bytes` on disk."""

    def __init__(self, folder: Path, limit_bytes: int, seed: int) -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self._limit = folder, limit_bytes
        self._opening = _frame({"format": FORMAT, "seed": seed}, [])
        self._sizes = {path: path.stat().st_size for path in segments(folder)}
        self._path: Path | None = max(self._sizes, default=None)
        self._goes_on = self._path is not None and _begins_with(self._path, self._opening)
        self._descriptor: int | None = None

    def write(
        self, update: int, steps: int, entries: Sequence[Entry], returns: Mapping[tuple[int, int], float]
    ) -> None:
        """An update's rollouts, all or none; OSError if there is no room. `returns` are by (env index, episode)."""
        data = b"".join(_encode(update, steps, entry, returns) for entry in entries)
        if not entries:
            return
        if len(self._opening) + len(data) > self._limit:
            raise OSError(f"an update's {len(data):,} bytes are more than keep_episodes_mb allows")
        path, descriptor = self._place_for(len(data))
        before = self._sizes[path]
        rest = memoryview(data if before else self._opening + data)
        size = before + len(rest)
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError:
            os.ftruncate(descriptor, before)
            raise
        self._sizes[path] = size

    def close(self) -> None:
        """Give the file back."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _place_for(self, num_bytes: int) -> tuple[Path, int]:
        """The file that so many bytes go to; older ones make room for them."""
        path = self._path
        is_full = path is not None and self._sizes[path] + num_bytes > max(self._limit // _SEGMENTS, num_bytes)
        if path is None or is_full or not self._goes_on:  # a file has one format
            self.close()
            self._goes_on = True
            number = 1 if path is None else int(path.stem) + 1
            path = self._path = self._folder / f"{number:06d}.bin"
            self._sizes[path] = 0
        while sum(self._sizes.values()) + num_bytes + len(self._opening) > self._limit and len(self._sizes) > 1:
            oldest = min(self._sizes)
            oldest.unlink(missing_ok=True)
            del self._sizes[oldest]
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o644)
        return path, self._descriptor


def segments(folder: Path) -> list[Path]:
    """The files of a journal, the oldest first."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def read_journal(folder: Path, most: int | None = None) -> tuple[int, list[Frame]]:
    """The run's seed and all frames, the oldest first; JournalError names the first byte that is not as written.

    With `most`, files are read only as far as they are needed for so many frames.
    """
    seeds, frames, has_starts = set(), [], False
    for path, _, head, body in _whole_frames(folder):
        try:
            if "format" in head:
                seeds.add(_opened(head))
                has_starts = head["format"] != 1
            else:
                frames.append(_decode(head, body, has_starts))
                if len(frames) == most:
                    break
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise JournalError(f"{path} can't be used: {error}; {_REMEDY}") from error
    if len(seeds) != 1:
        found = "none" if not seeds else f"those of runs with the seeds {', '.join(map(str, sorted(seeds)))}"
        raise JournalError(f"{folder}: expected recorded episodes of one run, found {found}")
    return seeds.pop(), frames


def cut_journal(folder: Path, updates: int) -> None:
    """Drop what a run that goes on after so many updates will write again, and a frame that a crash left unfinished."""
    keep: dict[Path, int] = dict.fromkeys(segments(folder), 0)
    for path, end, head, _ in _whole_frames(folder):
        if "format" not in head:
            if not isinstance(head.get("update"), int):
                raise JournalError(f"{path} can't be used: expected an update's number; {_REMEDY}")
            if head["update"] > updates:
                break
            keep[path] = end
    for path, end in keep.items():
        if not end:
            path.unlink()
        elif end < path.stat().st_size:
            os.truncate(path, end)


def _begins_with(path: Path, opening: bytes) -> bool:
    """Whether a file was begun by a run of this seed in this format, so that it may go on."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(descriptor, len(opening)) == opening
    finally:
        os.close(descriptor)


def _whole_frames(folder: Path) -> Iterator[tuple[Path, int, dict[str, Any], memoryview]]:
    """File, end of the frame in it, head and body of every frame."""
    paths = segments(folder)
    for path in paths:
        try:
            require_no_links(folder.parent, [folder.name])
            data = memoryview(read_regular(path, MAX_ARRAY_BYTES))
        except OSError as error:
            raise JournalError(f"{path} can't be read: {error.strerror or error}; {_REMEDY}") from error
        start = 0
        while start < len(data):
            end, is_torn = _end_of(data, start, path)
            if is_torn and path == paths[-1]:
                break
            if is_torn:
                raise _damaged(path, start)
            head_start = start + _PREFIX.size + _CHECK.size
            _, head_bytes, _, check = _PREFIX.unpack_from(data, start)
            if zlib.crc32(data[head_start:end]) != check:
                raise _damaged(path, start)
            try:
                head = parse_object(bytes(data[head_start : head_start + head_bytes]))
            except ValueError as error:
                raise JournalError(f"{path} can't be used: {error}; {_REMEDY}") from error
            if start == 0 and "format" not in head:
                raise JournalError(f"{path} can't be used: expected its format first; {_REMEDY}")
            yield path, end, head, data[head_start + head_bytes : end]
            start = end


def _end_of(data: memoryview, start: int, path: Path) -> tuple[int, bool]:
    """Where a frame ends, and whether the file ends before it does."""
    body = start + _PREFIX.size + _CHECK.size
    if body > len(data):
        return len(data), True
    prefix = data[start : start + _PREFIX.size]
    (check,) = _CHECK.unpack_from(data, start + _PREFIX.size)
    magic, head_bytes, body_bytes, _ = _PREFIX.unpack(prefix)
    if zlib.crc32(prefix) != check or magic != _MAGIC:
        raise _damaged(path, start)
    end = body + head_bytes + body_bytes
    return end, end > len(data)


def _damaged(path: Path, start: int) -> JournalError:
    return JournalError(
        f"{path} is damaged: the checksum of the frame at byte {start:,} does not match; episodes from there on can't "
        f"be believed; {_REMEDY}"
    )


def _frame(head: Mapping[str, Any], arrays: Sequence[Array]) -> bytes:
    text = json.dumps(head, separators=(",", ":")).encode()
    body = b"".join([text, *(np.ascontiguousarray(array).tobytes() for array in arrays)])
    prefix = _PREFIX.pack(_MAGIC, len(text), len(body) - len(text), zlib.crc32(body))
    return prefix + _CHECK.pack(zlib.crc32(prefix)) + body


def _encode(update: int, steps: int, entry: Entry, returns: Mapping[tuple[int, int], float]) -> bytes:
    n_envs = len(entry.episode)
    end = np.flatnonzero(entry.terminated | entry.truncated)  # t * B + b
    flags = entry.terminated.reshape(-1)[end] + 2 * entry.truncated.reshape(-1)[end].astype(np.uint8)
    total_reward, numbers = [], entry.episode.tolist()
    for b in (end % n_envs).tolist():
        total_reward.append(returns.get((entry.env_start + b, numbers[b]), float("nan")))
        numbers[b] += 1
    arrays = {
        "episode": entry.episode.astype(np.uint32),
        "step": entry.step.astype(np.uint32),
        "checksum": entry.checksum,
        "action": _narrow(entry.action),
        "invalid": np.flatnonzero(~entry.valid).astype(np.uint32),
        "end": end.astype(np.uint32),
        "end_flags": flags.astype(np.uint8),
        "end_checksum": entry.end_checksum,
        "total_reward": np.array(total_reward, np.float64),
        "start": entry.start.astype(np.uint32),
        "start_digest": entry.start_digest,
    }
    row, versions = 0, []
    for version, group in groupby(entry.version.tolist()):
        versions.append([row, version])
        row += len(list(group))
    head = {
        "update": update,
        "steps": steps,
        "env_start": entry.env_start,
        "worker": entry.worker,
        "action_dtype": entry.action.dtype.str,
        "versions": versions,
        "arrays": [[name, array.dtype.str, array.shape] for name, array in arrays.items()],
    }
    return _frame(head, list(arrays.values()))


def _decode(head: dict[str, Any], body: memoryview, has_starts: bool) -> Frame:
    fields: dict[str, Any] = head | require_frame(head, body, has_starts)
    del fields["arrays"]
    return Frame(**fields)


def _opened(head: dict[str, Any]) -> int:
    if head["format"] not in _READABLE:
        raise ValueError(f"expected journal format {' or '.join(map(str, _READABLE))}, got {str(head['format'])[:80]}")
    seed = head.get("seed")
    if type(seed) is not int or seed < 0:
        raise ValueError("expected a seed of at least 0")
    return seed


def _narrow(array: Array) -> Array:
    """Whole numbers in the narrowest dtype that holds them all."""
    if array.dtype.kind not in "iu" or not array.size or array.min() < 0:
        return array
    return array.astype(np.min_scalar_type(array.max()))
