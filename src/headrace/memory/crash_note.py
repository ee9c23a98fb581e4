"""The crash note of a shard: what its environments are doing, for the time when their process can't be asked any more.

    writer, the environments: words[DOING] · words[POSITION] · episode [B] · step [B]       reader: read() -> Noted
    writer, their actor: words[WAITS], counted on while it waits for an inference server: it lives, and is not to blame

It lies in memory that outlives the process. Its numbers are the environments' own counters, so to keep it costs one
store per step. Nothing is ordered: while the writer runs, a reader may see two moments mixed; once it has stopped, for
whatever reason, the note is exact. `CrashNotes` are the notes of all shards in one segment and, behind them, room for
the last words of every worker process: the stack that it writes when it is asked to or crashes.
Does not know processes, nor what is done about a note.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from headrace.memory.segment import Segment

DOING, POSITION, WAITS = 0, 1, 2  # words of a note
_WORDS = 3
_ALIGNMENT = 64
_LAST_WORDS_BYTES = 1 << 16


class Doing(IntEnum):
    """What the environments of a shard are in."""

    NOTHING = 0
    """Outside of them: the policy acts, a slab is committed, an order is waited for."""
    MAKE = 1
    RESET = 2
    STEP = 3
    REPLAY = 4
    CLOSE = 5


# As plain numbers, for the loop that writes them.
NOTHING, MAKE, RESET, STEP, REPLAY, CLOSE = (int(one) for one in Doing)


class Noted(NamedTuple):
    """A note, read."""

    doing: Doing
    position: int  # of the environment within the shard
    episode: int
    step: int  # that is being taken


class CrashNote:
    """One shard's note. Without a buffer it is this process's own, and nobody else reads it."""

    def __init__(self, n_envs: int, buffer: memoryview | None = None) -> None:
        own = memoryview(bytearray(note_bytes(n_envs))) if buffer is None else buffer
        self.words = own.cast("q")
        numbers = np.frombuffer(own, np.int64)
        self.episode = numbers[_WORDS : _WORDS + n_envs]
        self.step = numbers[_WORDS + n_envs : _WORDS + 2 * n_envs]

    def read(self) -> Noted:
        """What it says now."""
        doing = Doing(min(max(self.words[DOING], 0), max(Doing)))
        position = min(max(self.words[POSITION], 0), len(self.step) - 1)
        step = int(self.step[position]) - (doing is Doing.STEP)  # counters move at the beginning of a row
        return Noted(doing, position, int(self.episode[position]), max(0, step))


class CrashNotes:
    """The notes of all shards of a run, and the last words of its workers."""

    def __init__(self, shard_sizes: Sequence[int], segment: Segment) -> None:
        offsets = [0, *accumulate(note_bytes(size) for size in shard_sizes)]
        self.segment = segment
        self._shards = [
            segment.buffer[start : start + note_bytes(size)] for start, size in zip(offsets, shard_sizes, strict=False)
        ]
        self.notes = [CrashNote(size, part) for size, part in zip(shard_sizes, self._shards, strict=True)]
        self._end = offsets[-1]

    def wipe(self, shards: Sequence[int], worker: int) -> None:
        """Before a worker is started: nothing is known of it. Nobody writes here now."""
        for shard in shards:
            self._shards[shard][:] = bytes(len(self._shards[shard]))
        start = self.last_words_at(worker)
        self.segment.buffer[start : start + _LAST_WORDS_BYTES] = bytes(_LAST_WORDS_BYTES)

    def raw(self, shards: Sequence[int]) -> bytes:
        """All that these shards' notes hold: it changes with every step of every environment."""
        return b"".join(self._shards[shard] for shard in shards)

    def last_words_at(self, worker: int) -> int:
        """Where in the segment a worker writes its stack."""
        return self._end + worker * _LAST_WORDS_BYTES

    def last_words(self, worker: int) -> str:
        """What it has written there."""
        start = self.last_words_at(worker)
        text = bytes(self.segment.buffer[start : start + _LAST_WORDS_BYTES])
        return text.partition(b"\0")[0].decode(errors="replace").strip()


def note_bytes(n_envs: int) -> int:
    """Of one shard's note, in whole cache lines."""
    return -(-8 * (_WORDS + 2 * n_envs) // _ALIGNMENT) * _ALIGNMENT


def notes_bytes(shard_sizes: Sequence[int], num_workers: int) -> int:
    """Of all notes and last words."""
    return sum(map(note_bytes, shard_sizes)) + num_workers * _LAST_WORDS_BYTES
