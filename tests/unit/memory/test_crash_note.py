"""A note is read as it was written, by whoever maps it; notes of shards and last words do not touch one another."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from headrace.envs.serial import SerialEnvs
from headrace.envs.vector_env import LiveEpisode
from headrace.memory.crash_note import CrashNote, CrashNotes, Doing, Noted, notes_bytes
from headrace.memory.layout import slab_bytes
from headrace.memory.schema import rollout_schema
from headrace.memory.segment import HeapSegment, SharedSegment
from headrace.memory.slab import Slab
from headrace.memory.spaces import empty_leaves

SIZES = (3, 1, 8)


class Tells(gym.Env[Any, Any]):
    """Reads its shard's note whenever it is called."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, note: CrashNote, told: list[Noted]) -> None:
        self._tell = lambda: told.append(note.read())
        self._tell()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._tell()
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self._tell()
        self._steps += 1
        return np.zeros(2, np.float32), 0.0, self._steps == 3, False, {}

    def close(self) -> None:
        self._tell()


def test_environments_write_down_what_they_are_in() -> None:
    """Seen from inside of every call: made, reset, stepped through an end, closed."""
    note, told = CrashNote(2), []
    envs = SerialEnvs(lambda: Tells(note, told), range(4, 6), lambda env, episode: 100 * env + episode)
    assert [one.position for one in told] == [0, 0], "this one has a note of its own"
    told.clear()
    envs = SerialEnvs(lambda: Tells(note, told), range(4, 6), lambda env, episode: 100 * env + episode, note)
    schema = rollout_schema(envs.observation_space, envs.action_space, 4, 2)
    slab = Slab(schema, HeapSegment(slab_bytes(schema)).buffer)
    envs.begin({"obs": slab.obs["obs"][0]})
    for row in slab.rows:
        assert note.read().doing is Doing.NOTHING
        row.action[:] = 0
        envs.step(row, lambda env, obs: None)
    envs.close()
    steps = [Noted(Doing.STEP, position, 0, step) for step in range(3) for position in range(2)]
    ends = [Noted(Doing.RESET, position, 1, 0) for position in range(2)]
    assert told == [
        *(Noted(Doing.MAKE, position, 0, 0) for position in range(2)),
        *(Noted(Doing.RESET, position, 0, 0) for position in range(2)),
        *steps[:4], steps[4], ends[0], steps[5], ends[1],
        *(Noted(Doing.STEP, position, 1, 0) for position in range(2)),
        *(Noted(Doing.CLOSE, position, 1, 1) for position in range(2)),
    ]  # fmt: skip
    assert note.read().doing is Doing.NOTHING


def test_a_replay_is_written_down_step_by_step() -> None:
    note, told = CrashNote(1), []
    envs = SerialEnvs(lambda: Tells(note, told), range(7, 8), lambda env, episode: 5, note)
    told.clear()
    live = LiveEpisode(7, 3, 5, np.zeros(2, np.int64), checksum=0)
    envs.restore([live], empty_leaves(envs.observation_space, 1))
    assert told == [Noted(Doing.RESET, 0, 3, 0), Noted(Doing.REPLAY, 0, 3, 0), Noted(Doing.REPLAY, 0, 3, 1)]
    assert note.step.tolist() == [2], "where it goes on"
    envs.close()


@pytest.mark.parametrize("words", [(-1, 5), (99, 99), (2**62, -(2**62))])
def test_nonsense_in_a_note_does_not_hurt_its_reader(words: tuple[int, int]) -> None:
    """The writer may have died of a wild pointer."""
    note = CrashNote(3)
    note.words[0], note.words[1] = words
    assert 0 <= note.read().position < 3


def test_every_step_changes_the_note() -> None:
    """Also of a single environment whose episodes are one step long: a note that stands still means that it does."""

    class Short(Tells):
        def step(self, action: Any) -> Any:
            return np.zeros(2, np.float32), 0.0, True, False, {}

    notes = CrashNotes([1], HeapSegment(notes_bytes([1], 1)))
    envs = SerialEnvs(lambda: Short(CrashNote(1), []), range(1), lambda env, episode: 0, notes.notes[0])
    schema = rollout_schema(envs.observation_space, envs.action_space, 5, 1)
    slab = Slab(schema, HeapSegment(slab_bytes(schema)).buffer)
    envs.begin({"obs": slab.obs["obs"][0]})
    seen = {notes.raw([0])}
    for row in slab.rows:
        row.action[:] = 0
        envs.step(row, lambda env, obs: None)
        seen.add(notes.raw([0]))
    envs.close()
    assert len(seen) == 6


def test_two_sides_see_the_same_notes() -> None:
    ours = CrashNotes(SIZES, SharedSegment.create(notes_bytes(SIZES, 2)))
    try:
        theirs = CrashNotes(SIZES, SharedSegment.attach(str(ours.segment.name)))
        for shard, note in enumerate(theirs.notes):
            note.words[0], note.words[1] = Doing.STEP, shard
            note.episode[:], note.step[:] = 10 + shard, 20 + shard
        position = [0, 0, 2]
        assert [note.read() for note in ours.notes] == [
            Noted(Doing.STEP, position[shard], 10 + shard, 19 + shard) for shard in range(3)
        ]
        for worker, text in enumerate((b"first\n", b"second\n")):
            descriptor = SharedSegment.open_at(str(ours.segment.name), theirs.last_words_at(worker))
            os.write(descriptor, text)
            os.close(descriptor)
        assert [ours.last_words(worker) for worker in range(2)] == ["first", "second"]
        before = ours.raw([1])
        ours.wipe([0, 2], 0)
        assert [ours.last_words(worker) for worker in range(2)] == ["", "second"]
        assert (ours.raw([1]), any(ours.raw([0, 2]))) == (before, False)
    finally:
        ours.segment.unlink()
