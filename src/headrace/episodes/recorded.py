"""Recorded episodes: put together again from the rollouts of a journal on disk.

    frames, the oldest first --> per environment, row after row --> RecordedEpisode: id, length, return, actions, marks

An episode is there only if all of it is: its first rollouts may have made room for newer ones, or were recorded in
another directory. Marks are the checksums at the borders of rollouts: they show where a replay begins to differ.
Does not know files, environments or seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.episodes.journal_file import Frame

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Part:
    """Consecutive rows of one environment in one rollout."""

    frame: Frame
    column: int
    rows: Array  # t of the real transitions

    @property
    def actions(self) -> Array:
        """As slabs hold them."""
        taken: Array = self.frame.action[self.rows, self.column]
        return taken.astype(self.frame.action_dtype)

    @property
    def versions(self) -> Array:
        """That acted in each row."""
        firsts, versions = np.asarray(self.frame.versions, np.int64).T
        acted: Array = versions[np.searchsorted(firsts, self.rows, "right") - 1]
        return acted

    def version(self, row: int) -> int:
        """The version that acted in a row."""
        return next(version for first, version in reversed(self.frame.versions) if first <= row)


@dataclass(frozen=True)
class RecordedEpisode:
    """One episode of a run, from its first step on."""

    env_index: int
    episode: int
    length: int
    total_reward: float
    terminated: bool
    truncated: bool
    """Neither: it has not ended, these are its steps so far."""
    worker: int
    """That stepped its last rollout."""
    first_version: int
    last_version: int
    """Of the policy, that acted in its first and its last step."""
    update: int
    """That its last step belongs to."""
    checksum: int
    parts: tuple[Part, ...] = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """As the command line takes it."""
        return f"{self.env_index}:{self.episode}"

    @property
    def is_finished(self) -> bool:
        """Whether it has ended."""
        return self.terminated or self.truncated

    @property
    def actions(self) -> Array:
        """All of its actions, [steps, ...], as slabs hold them."""
        return np.concatenate([part.actions for part in self.parts])

    @property
    def versions(self) -> Array:
        """Of the policy that acted in each step."""
        return np.concatenate([part.versions for part in self.parts])

    @property
    def marks(self) -> list[tuple[int, int]]:
        """(steps, checksum after them), rising; the last one is its whole length."""
        lengths = np.cumsum([len(part.rows) for part in self.parts]).tolist()
        borders = [int(part.frame.checksum[part.column]) for part in self.parts[:-1]]
        return [(steps, check) for steps, check in zip(lengths, [*borders, self.checksum], strict=True) if steps]

    def place_of(self, step: int) -> tuple[int, int]:
        """The update that a step belongs to, and its row in the rollout."""
        for part in self.parts:
            if step < len(part.rows):
                return part.frame.update, int(part.rows[step])
            step -= len(part.rows)
        raise IndexError(step)


def episodes_of(frames: Iterable[Frame], env_index: int | None = None) -> list[RecordedEpisode]:
    """Every episode that is there as a whole, in the order they ended; then those that still run."""
    streams: dict[int, _Stream] = {}
    found: list[RecordedEpisode] = []
    for frame in frames:
        n_envs = len(frame.episode)
        ends: dict[int, list[tuple[int, int]]] = {}
        for number, row in enumerate(frame.end.tolist()):
            ends.setdefault(row % n_envs, []).append((row // n_envs, number))
        columns = range(n_envs) if env_index is None else range(n_envs)[_at(env_index - frame.env_start, n_envs)]
        ended = []
        for column in columns:
            stream = streams.setdefault(frame.env_start + column, _Stream(frame.env_start + column))
            ended += stream.take(frame, column, ends.get(column, []))
        found += [episode for _, episode in sorted(ended, key=lambda one: one[0])]
    running = [streams[env].running() for env in sorted(streams)]
    return found + [one for one in running if one is not None]


@dataclass(frozen=True)
class Starts:
    """Where episodes began, in the order of rollouts, rows and environments: arrays of one length."""

    env: Array
    episode: Array
    digest: Array  # of the first observation


def starts_of(frames: Iterable[Frame]) -> Starts:
    """The first observations of all episodes that began in some rollouts."""
    envs, episodes, digests = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
    for frame in frames:
        n_envs = len(frame.episode)
        rows, columns = np.divmod(frame.start.astype(np.int64), n_envs)
        ended = np.zeros((len(frame.action) + 1, n_envs), np.int64)
        ended[1:].reshape(-1)[frame.end] = 1
        envs.append(frame.env_start + columns)
        episodes.append(frame.episode.astype(np.int64)[columns] + ended.cumsum(0)[rows, columns])
        digests.append(frame.start_digest)
    return Starts(np.concatenate(envs), np.concatenate(episodes), np.concatenate(digests))


class _Stream:
    """One environment, rollout after rollout."""

    def __init__(self, env_index: int) -> None:
        self._env_index = env_index
        self._at: tuple[int, int] | None = None  # episode and step that must come next
        self._parts: list[Part] | None = None  # None: the beginning is missing

    def take(
        self, frame: Frame, column: int, ends: Sequence[tuple[int, int]]
    ) -> list[tuple[tuple[int, int], RecordedEpisode]]:
        """The episodes that ended in a rollout, each with the place where it did (row, environment)."""
        episode, step = int(frame.episode[column]), int(frame.step[column])
        if self._at != (episode, step):
            self._parts = None if step else []
        done, start = [], 0
        for row, number in ends:
            self._add(frame, column, start, row + 1)
            if self._parts is not None:
                done.append(((row, self._env_index), self._ended(episode, number)))
            self._parts, start, step, episode = [], row + 1, 0, episode + 1
        step += self._add(frame, column, start, len(frame.action))
        self._at = episode, step
        return done

    def running(self) -> RecordedEpisode | None:
        """The episode that has not ended yet, if any of it is there."""
        if not self._parts or self._at is None or not self._at[1]:
            return None
        last = self._parts[-1]
        return self._made(self._at[0], float("nan"), 0, int(last.frame.checksum[last.column]))

    def _add(self, frame: Frame, column: int, start: int, stop: int) -> int:
        rows = np.arange(start, stop)
        if len(frame.invalid):
            invalid = frame.invalid[frame.invalid % len(frame.episode) == column] // len(frame.episode)
            rows = rows[~np.isin(rows, invalid)]
        if self._parts is not None and len(rows):
            self._parts.append(Part(frame, column, rows))
        return len(rows)

    def _ended(self, episode: int, number: int) -> RecordedEpisode:
        assert self._parts
        frame = self._parts[-1].frame
        flags, check = int(frame.end_flags[number]), int(frame.end_checksum[number])
        return self._made(episode, float(frame.total_reward[number]), flags, check)

    def _made(self, episode: int, total_reward: float, flags: int, checksum: int) -> RecordedEpisode:
        assert self._parts
        first, last = self._parts[0], self._parts[-1]
        return RecordedEpisode(
            self._env_index, episode, sum(len(part.rows) for part in self._parts), total_reward, bool(flags & 1),
            bool(flags & 2), last.frame.worker, first.version(int(first.rows[0])), last.version(int(last.rows[-1])),
            last.frame.update, checksum, tuple(self._parts),
        )  # fmt: skip


def _at(column: int, n_envs: int) -> slice:
    """That column alone, if there is one."""
    return slice(column, column + 1) if 0 <= column < n_envs else slice(0)
