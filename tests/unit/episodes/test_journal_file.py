"""The journal on disk: what is read back is what was written, any damage is found, and it never outgrows its room."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.episodes import journal_file
from headrace.episodes.entry import Entry, entry_of
from headrace.episodes.journal import Journal
from headrace.episodes.journal_file import JournalWriter, cut_journal, read_journal, segments
from headrace.episodes.recorded import RecordedEpisode, episodes_of, starts_of
from headrace.errors import JournalError
from headrace.memory.schema import rollout_schema
from headrace.memory.spaces import Box, Discrete, Space
from support.chains import seed_of
from support.generators import Flags, flags, quick, seeds, thorough
from support.oracles import SlowEnv
from support.slabs import VECTOR, Array, heap_slab

SEED = 3
ROOM = 1 << 20


def entries_of(space: Space, rows: Flags, actions: Array, cuts: list[int]) -> list[list[Entry]]:
    """Rows as slabs of two shards, entered one after the other: an update each, version 10 + its number."""
    (T, B), lives = rows.shape, [SlowEnv(b) for b in range(rows.shape[1])]
    numbers = np.empty((T, B, 2), np.int64)
    for t, b in np.ndindex(T, B):
        numbers[t, b], _ = lives[b].live_through(None, 0.0, *(flag[t, b] for flag in rows))
    journal, updates = Journal(B, seed_of, VECTOR, space), []
    for number, (start, stop) in enumerate(pairwise(sorted({0, T, *(cut % T for cut in cuts)}))):
        update = []
        for worker, shard in enumerate((range(B // 2), range(B // 2, B))):
            if not len(shard):
                continue
            part = (slice(start, stop), slice(shard.start, shard.stop))
            slab = heap_slab(rollout_schema(VECTOR, space, stop - start, len(shard)))
            slab.obs["obs"][:], slab.reward[:], slab.action[:] = 0.5, 1.0, actions[part]
            slab.terminated[:], slab.truncated[:], slab.valid[:] = (flag[part] for flag in rows)
            slab.episode[:], slab.step[:] = numbers[part][..., 0], numbers[part][..., 1]
            slab.version[:], slab.noise_counter[:], slab.last_obs["obs"][:] = 10 + number, 0, 0.0
            update.append(entry_of(journal, shard, worker, slab, journal.enter(shard, slab).checksums))
            slab.poison()
        updates.append(update)
    return updates


def write(folder: Path, updates: list[list[Entry]], limit: int = ROOM, first: int = 1) -> None:
    """Each environment's return is its index and a half."""
    writer = JournalWriter(folder, limit, SEED)
    returns = {(env, episode): env + 0.5 for env in range(9) for episode in range(999)}
    try:
        for number, entries in enumerate(updates, first):
            writer.write(number, 100 * number, entries, returns)
    finally:
        writer.close()


def simple(folder: Path, updates: int = 6, length: int = 5, limit: int = ROOM) -> list[list[Entry]]:
    """Two environments, 4 rows an update, episodes of `length` steps."""
    T = 4 * updates
    terminated = (np.arange(1, T + 1) % length == 0)[:, None] & np.ones((1, 2), np.bool_)
    rows = Flags(terminated, np.zeros_like(terminated), np.ones_like(terminated))
    actions = np.random.default_rng(0).integers(0, 5, (T, 2))
    made = entries_of(Discrete(5), rows, actions, list(range(0, T, 4)))
    write(folder, made, limit)
    return made


def told(episodes: list[RecordedEpisode]) -> list[tuple[Any, ...]]:
    return [(one.name, one.length, one.checksum, one.actions.tolist(), one.marks) for one in episodes]


@thorough
@given(
    st.sampled_from([Discrete(5), Discrete(70_000), Box((2,), "float32", (-1.0,), (1.0,))]),
    flags(max_steps=14),
    seeds,
    st.lists(st.integers(0, 20), max_size=4),
)
def test_episodes_come_back_as_if_counted_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, space: Space, rows: Flags, seed: int, cuts: list[int]
) -> None:
    rng, (T, B) = np.random.default_rng(seed), rows.shape
    actions = rng.integers(0, space.n, (T, B)) if isinstance(space, Discrete) else rng.normal(size=(T, B, 2))
    actions = actions.astype(space.dtype)
    folder = tmp_path_factory.mktemp("journal")
    write(folder, entries_of(space, rows, actions, cuts))
    lives, wanted = [SlowEnv(b) for b in range(B)], {}
    for t, b in np.ndindex(T, B):
        life = lives[b]
        number, before = life.episode, list(life.actions)
        _, finished = life.live_through(actions[t, b].tolist(), 0.0, *(flag[t, b] for flag in rows))
        if finished:
            wanted[b, number] = [*before, actions[t, b].tolist()], rows.terminated[t, b], rows.truncated[t, b]
    found_seed, frames = read_journal(folder)
    assert found_seed == SEED
    got = episodes_of(frames)
    finished = {
        (one.env_index, one.episode): (one.actions.tolist(), one.terminated, one.truncated)
        for one in got
        if one.is_finished
    }
    assert finished == wanted
    assert all(one.actions.dtype == space.dtype for one in got)
    assert all(one.total_reward == one.env_index + 0.5 for one in got if one.is_finished)
    running = {one.env_index: one.actions.tolist() for one in got if not one.is_finished}
    assert running == {b: life.actions for b, life in enumerate(lives) if life.actions}
    for env in range(B):
        alone = episodes_of(frames, env)
        assert sorted(told(alone)) == sorted(told([one for one in got if one.env_index == env]))


def test_what_is_known_of_an_episode(tmp_path: Path) -> None:
    simple(tmp_path)
    first, second = episodes_of(read_journal(tmp_path)[1])[:2]
    assert (first.name, second.name) == ("0:0", "1:0")
    assert (first.worker, second.worker) == (0, 1)
    assert (first.first_version, first.last_version, first.update) == (10, 11, 2)
    assert [steps for steps, _ in first.marks] == [4, 5]
    assert first.marks[-1][1] == first.checksum
    assert first.place_of(3) == (1, 3)
    assert first.place_of(4) == (2, 0)


def test_every_altered_byte_is_found(tmp_path: Path) -> None:
    simple(tmp_path, updates=2)
    (path,) = segments(tmp_path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        altered = bytearray(whole)
        altered[place] ^= 1 << (place % 8)
        path.write_bytes(altered)
        with pytest.raises(JournalError, match=r"000001.bin (is damaged|can't be used)"):
            read_journal(tmp_path)


def test_every_unfinished_write_is_cut_off(tmp_path: Path) -> None:
    """As kill -9 leaves it: whole frames before the tear count, and a run that goes on writes the same again."""
    made = simple(tmp_path / "calm", updates=4)
    (path,) = segments(tmp_path / "calm")
    whole = path.read_bytes()
    frames_of: dict[int, int] = {}
    for size in range(0, len(whole), 13):
        folder = tmp_path / "torn"
        folder.mkdir(exist_ok=True)
        (folder / path.name).write_bytes(whole[:size])
        if size > 200:
            frames_of[size] = len(read_journal(folder)[1])
        done = min(2, (frames_of.get(size, 0)) // 2)  # updates of two frames each; a checkpoint after the second
        cut_journal(folder, done)
        write(folder, made[done:], first=done + 1)
        assert (folder / path.name).read_bytes() == whole, size
    assert sorted(frames_of.values()) == list(frames_of.values())
    assert {0, 1, 7} <= set(frames_of.values())


def test_a_tear_in_an_older_file_is_damage(tmp_path: Path) -> None:
    simple(tmp_path, updates=60, limit=16_000)
    first = segments(tmp_path)[0]
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(JournalError, match=rf"{first.name} is damaged"):
        read_journal(tmp_path)


def test_it_stays_in_its_room_and_keeps_the_newest(tmp_path: Path) -> None:
    limit, sizes = 20_000, []
    made = simple(tmp_path / "all", updates=150)
    writer = JournalWriter(tmp_path / "some", limit, SEED)
    for number, entries in enumerate(made, 1):
        writer.write(number, number, entries, {})
        sizes.append(sum(path.stat().st_size for path in segments(tmp_path / "some")))
    writer.close()
    assert max(sizes) <= limit
    assert min(sizes[40:]) > 0.7 * limit, "what it is given is used"
    everything = told(episodes_of(read_journal(tmp_path / "all")[1]))
    kept = told(episodes_of(read_journal(tmp_path / "some")[1]))
    assert kept[-4:] == everything[-4:]
    assert [one for one in everything if one[0] in {name for name, *_ in kept}] == kept, "each of them as a whole"
    assert 0 < len(kept) < len(everything)


def test_less_room_after_a_resume(tmp_path: Path) -> None:
    made = simple(tmp_path, updates=20)
    write(tmp_path, made[:3], limit=8_000, first=21)
    assert sum(path.stat().st_size for path in segments(tmp_path)) <= 8_000


def test_an_update_that_can_not_fit_is_said(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="more than keep_episodes_mb allows"):
        simple(tmp_path, updates=1, limit=500)
    assert segments(tmp_path) == []


def test_a_full_disk_leaves_whole_frames(tmp_path: Path) -> None:
    """A real limit: the write stops in the middle of a frame. What comes later is kept again."""
    made = simple(tmp_path, updates=4)
    (path,) = segments(tmp_path)
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 300, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write(tmp_path, made[:1], first=5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    write(tmp_path, made[:1], first=6)
    assert [frame.update for frame in read_journal(tmp_path)[1]] == [1, 1, 2, 2, 3, 3, 4, 4, 6, 6]


@quick
@given(st.integers(0, 9))
def test_a_run_that_goes_on_writes_one_history(tmp_path_factory: pytest.TempPathFactory, updates: int) -> None:
    folder = tmp_path_factory.mktemp("journal")
    made = simple(folder, updates=9, limit=9_000)
    calm = {path.name: path.read_bytes() for path in segments(folder)}
    assert len(calm) > 2
    gone = read_journal(folder)[1][0].update - 1  # made room for newer ones
    cut_journal(folder, updates)
    assert not segments(folder) or max(frame.update for frame in read_journal(folder)[1]) <= updates
    write(folder, made[updates:], limit=9_000, first=updates + 1)
    if updates > gone:
        assert {path.name: path.read_bytes() for path in segments(folder)} == calm
    read_journal(folder)


def test_a_missing_file_in_the_middle_costs_only_its_episodes(tmp_path: Path) -> None:
    simple(tmp_path, updates=40, limit=16_000)
    everything = told(episodes_of(read_journal(tmp_path)[1]))
    files = segments(tmp_path)
    files[len(files) // 2].unlink()
    kept = told(episodes_of(read_journal(tmp_path)[1]))
    assert len(kept) < len(everything)
    assert all(one in everything for one in kept)
    assert {everything[0][0], everything[-1][0]} <= {one[0] for one in kept}


def test_journals_of_two_runs_are_not_mixed(tmp_path: Path) -> None:
    made = simple(tmp_path, updates=1)
    writer = JournalWriter(tmp_path / "other", ROOM, SEED + 1)
    writer.write(2, 2, made[0], {})
    writer.close()
    (tmp_path / "other" / "000001.bin").rename(tmp_path / "000002.bin")
    with pytest.raises(JournalError, match=r"expected recorded episodes of one run, found those of .* seeds 3, 4"):
        read_journal(tmp_path)


def test_nothing_recorded_is_said(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="found none"):
        read_journal(tmp_path / "journal")


# ------------------------------------------------------------------------------- numbers that no run could have written

Change = Callable[[dict[str, Any]], None]


def set_to(name: str, value: Any) -> Change:
    return lambda head: head.__setitem__(name, value)


def array_to(number: int, *entry: Any) -> Change:
    return lambda head: head["arrays"].__setitem__(number, list(entry))


CASES: dict[str, Change] = {
    "negative update": set_to("update", -1),
    "update as text": set_to("update", "1"),
    "true as a number": set_to("worker", True),
    "no worker": lambda head: head.pop("worker"),
    "more": set_to("more", 1),
    "huge environment": set_to("env_start", 1 << 70),
    "object actions": set_to("action_dtype", "object"),
    "no versions": set_to("versions", []),
    "versions not from the first row": set_to("versions", [[1, 5]]),
    "versions beyond the rows": set_to("versions", [[0, 5], [9, 6]]),
    "versions of three": set_to("versions", [[0, 5, 6]]),
    "no arrays": set_to("arrays", []),
    "arrays by another name": array_to(0, "episodes", "<u4", [1]),
    "object array": array_to(3, "action", "object", [4, 1]),
    "an enormous array": array_to(3, "action", "|u1", [1 << 40, 1 << 20]),
    "a negative shape": array_to(3, "action", "|u1", [-4, -1]),
    "shape of nothing": array_to(3, "action", "|u1", []),
    "fewer environments": array_to(0, "episode", "<u4", [0]),
    "one dimension": array_to(3, "action", "|u1", [4]),
    "a start without its digest": array_to(10, "start_digest", "<u8", [0]),
    "no starts": lambda head: head["arrays"].__delitem__(slice(9, 11)),
    "list of lists": set_to("arrays", [[]] * 11),
    "format of another time": lambda head: (head.clear(), head.update(format=99, seed=3)),
    "format without a seed": lambda head: (head.clear(), head.update(format=1)),
    "format with a text": lambda head: (head.clear(), head.update(format=1, seed="3")),
}


def head_and_body(frame: bytes) -> tuple[dict[str, Any], Array]:
    start = journal_file._PREFIX.size + journal_file._CHECK.size
    _, length, _, _ = journal_file._PREFIX.unpack_from(frame)
    return json.loads(frame[start : start + length]), np.frombuffer(frame[start + length :], np.uint8)


@pytest.mark.parametrize("case", CASES)
def test_a_frame_that_makes_no_sense_is_refused(case: str, tmp_path: Path) -> None:
    """Its CRCs are right: who writes a file writes them as well."""
    made = simple(tmp_path, updates=1)
    (path,) = segments(tmp_path)
    opening = journal_file._frame({"format": journal_file.FORMAT, "seed": SEED}, [])
    head, body = head_and_body(journal_file._encode(1, 100, made[0][0], {}))
    CASES[case](head)
    path.write_bytes(opening + journal_file._frame(head, [body]))
    with pytest.raises(JournalError, match=r"000001.bin can't be used: \w"):
        episodes_of(read_journal(tmp_path)[1])


@pytest.mark.parametrize("rows", [[4], [0, 0], [1, 0]], ids=["beyond", "twice", "not in order"])
@pytest.mark.parametrize("number", [4, 5, 9], ids=["invalid", "end", "start"])
def test_rows_that_a_rollout_does_not_have_are_refused(number: int, rows: list[int], tmp_path: Path) -> None:
    """Four rows of one environment, an end in the first: its bytes say other rows."""
    made = simple(tmp_path, updates=2)
    head, body = head_and_body(journal_file._encode(2, 100, made[1][0], {}))
    sizes = [np.dtype(dtype).itemsize * int(np.prod(shape)) for _, dtype, shape in head["arrays"]]
    parts = np.split(body, np.cumsum(sizes)[:-1])
    for place in {4: [4], 5: range(5, 9), 9: range(9, 11)}[number]:
        name, dtype, _ = head["arrays"][place]
        head["arrays"][place] = [name, dtype, [len(rows)]]
        parts[place] = np.array(rows if place == number else [1] * len(rows), dtype).view(np.uint8)
    (path,) = segments(tmp_path)
    path.write_bytes(
        journal_file._frame({"format": journal_file.FORMAT, "seed": SEED}, []) + journal_file._frame(head, parts)
    )
    with pytest.raises(JournalError, match=r"expected rows (of the rollout|in order)"):
        read_journal(tmp_path)


# ---------------------------------------------------------------------------------------------- where episodes begin


def test_episodes_are_recorded_with_the_observation_that_they_begin_with(tmp_path: Path) -> None:
    """Three environments, slabs of 4 rows: episode 1 of env 1 begins as episode 0 of env 0 does."""
    T, B = 8, 3
    ends = np.zeros((T, B), np.bool_)
    ends[2, 1] = ends[3, 0] = ends[5, 1] = True  # the next one begins inside of a slab, in the next slab, inside
    valid = np.ones((T, B), np.bool_)
    valid[3, 1] = False  # a row in which the environment was reset
    shown = np.random.default_rng(0).normal(size=(T, B, *VECTOR.shape)).astype(np.float32)
    shown[4, 1] = shown[0, 0]
    episode, step = np.zeros((T, B), np.int64), np.zeros((T, B), np.int64)
    episode[3:6, 1], episode[6:, 1], episode[4:, 0] = 1, 2, 1
    step[:, 0], step[:, 1], step[:, 2] = [0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 2, 0, 0, 1, 0, 1], range(T)
    journal, updates = Journal(B, seed_of, VECTOR, Discrete(5)), []
    for rows in (slice(0, 4), slice(4, 8)):
        slab = heap_slab(rollout_schema(VECTOR, Discrete(5), 4, B))
        slab.obs["obs"][:], slab.reward[:], slab.action[:] = shown[rows], 1.0, 0
        slab.terminated[:], slab.truncated[:], slab.valid[:] = ends[rows], False, valid[rows]
        slab.episode[:], slab.step[:], slab.version[:] = episode[rows], step[rows], 0
        slab.noise_counter[:], slab.last_obs["obs"][:] = 0, 0.0
        updates.append([entry_of(journal, range(B), 0, slab, journal.enter(range(B), slab).checksums)])
    write(tmp_path, updates)
    starts = starts_of(read_journal(tmp_path)[1])
    ids = list(zip(starts.env.tolist(), starts.episode.tolist(), strict=True))
    assert ids == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (1, 2)]
    same = {ids[k] for k in range(6) if starts.digest[k] == starts.digest[0]}
    assert same == {(0, 0), (1, 1)}
    assert len(set(starts.digest.tolist())) == 5


def as_format_1(path: Path) -> None:
    """The file as headrace wrote it before starts were recorded."""
    frames = [journal_file._frame({"format": 1, "seed": SEED}, [])]
    for _, _, head, body in journal_file._whole_frames(path.parent):
        if "format" not in head:
            kept = head["arrays"][:9]
            size = sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for _, dtype, shape in kept)
            frames.append(journal_file._frame(head | {"arrays": kept}, [np.frombuffer(body[:size], np.uint8)]))
    path.write_bytes(b"".join(frames))


def test_a_journal_of_format_1_is_read_and_goes_on_in_a_file_of_its_own(tmp_path: Path) -> None:
    made = simple(tmp_path, updates=4)
    everything = told(episodes_of(read_journal(tmp_path)[1]))
    (first,) = segments(tmp_path)
    as_format_1(first)
    frames = read_journal(tmp_path)[1]
    assert told(episodes_of(frames)) == everything
    assert len(starts_of(frames).digest) == 0
    before = first.read_bytes()
    write(tmp_path, made[:1], first=5)
    assert [path.name for path in segments(tmp_path)] == ["000001.bin", "000002.bin"]
    assert first.read_bytes() == before
    assert [frame.update for frame in read_journal(tmp_path)[1]] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert len(starts_of(read_journal(tmp_path)[1]).digest) == 2
    write(tmp_path, made[1:2], first=6)
    assert len(segments(tmp_path)) == 2, "a file of today's format goes on"


def test_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    simple(tmp_path / "real")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "000001.bin").symlink_to(tmp_path / "real" / "000001.bin")
    with pytest.raises(JournalError, match="a link"):
        read_journal(tmp_path / "linked")
    (tmp_path / "whole").symlink_to(tmp_path / "real")
    with pytest.raises(JournalError, match="a link"):
        read_journal(tmp_path / "whole")


def test_the_beginning_can_be_read_alone(tmp_path: Path) -> None:
    simple(tmp_path)
    seed, frames = read_journal(tmp_path)
    found, first = read_journal(tmp_path, 3)
    assert (found, [(one.update, one.env_start) for one in first]) == (
        seed,
        [(one.update, one.env_start) for one in frames[:3]],
    )
    assert len(read_journal(tmp_path, len(frames) + 1)[1]) == len(frames)
