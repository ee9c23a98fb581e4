"""Where two runs part ways: found, at the first place, and nowhere if what both have is the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.episodes.finished import Finished
from headrace.episodes.journal_file import JournalWriter, read_journal
from headrace.episodes.parting import Parting, first_parting
from headrace.episodes.recorded import RecordedEpisode, episodes_of
from headrace.update import Update
from support.topology_runs import CASES, INLINE, processes


def recorded(
    folder: Path, name: str = "noisy", updates: int = 6, change: str = "", **place: object
) -> list[RecordedEpisode]:
    """A run of a few updates, recorded; `change` disturbs environment 5 from its second rollout on."""
    case = CASES[name]
    with case.build(**(place or INLINE)) as (run, parts):
        parts.reader.is_recording = True
        writer = JournalWriter(folder, 1 << 20, 1)
        for _ in range(updates):
            update: Update = run.update(case.total_timesteps)
            returns = {(one.env_index, one.episode): one.total_reward for one in update.harvest.finished}
            writer.write(update.number, update.steps, update.harvest.entries, returns)
        writer.close()
    return episodes_of(read_journal(folder)[1])


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> list[RecordedEpisode]:
    return recorded(tmp_path_factory.mktemp("a") / "journal")


def test_the_same_run_elsewhere_is_the_same(episodes: list[RecordedEpisode], tmp_path: Path) -> None:
    """In worker processes, and of another length: what one of them has not recorded is no difference."""
    assert len(episodes) > 20
    elsewhere = recorded(tmp_path / "journal", updates=4, **processes(2))
    assert first_parting(episodes, elsewhere) is None
    assert first_parting(elsewhere, episodes) is None
    assert {one.worker for one in elsewhere} == {0, 1}
    assert first_parting(episodes, episodes[::2]) is None
    assert first_parting(episodes, []) is None


def long_one(episodes: list[RecordedEpisode]) -> tuple[int, RecordedEpisode]:
    """One that goes over several rollouts, with its place."""
    return next((i, one) for i, one in enumerate(episodes) if len(one.parts) > 2 and one.is_finished)


def with_parts(one: RecordedEpisode, number: int, **fields: object) -> RecordedEpisode:
    """An episode with something else in the frame of one of its parts."""
    parts = list(one.parts)
    parts[number] = replace(parts[number], frame=replace(parts[number].frame, **fields))
    return replace(one, parts=tuple(parts))


def other(episodes: list[RecordedEpisode], place: int, one: RecordedEpisode) -> list[RecordedEpisode]:
    return [*episodes[:place], one, *episodes[place + 1 :]]


def test_another_action_is_found_at_its_step(episodes: list[RecordedEpisode]) -> None:
    place, one = long_one(episodes)
    part = one.parts[1]
    action = part.frame.action.copy()
    action[part.rows[1], part.column] = (action[part.rows[1], part.column] + 1) % 3
    changed = replace(with_parts(one, 1, action=action), checksum=one.checksum + 1)
    step = len(one.parts[0].rows) + 1
    parting = first_parting(episodes, other(episodes, place, changed))
    was, now = one.actions[step], changed.actions[step]
    assert parting == Parting(
        part.frame.update, one.env_index, one.episode, step, f"the action is {was} in a and {now} in b"
    )
    assert (
        f"update {part.frame.update}, env {one.env_index}, episode {one.env_index}:{one.episode}, step {step}"
        in parting.text()
    )


def test_another_reward_is_found_between_two_marks(episodes: list[RecordedEpisode]) -> None:
    """The same actions; the checksum at the end of its second rollout is another one."""
    place, one = long_one(episodes)
    check = one.parts[1].frame.checksum.copy()
    check[one.parts[1].column] ^= np.uint64(1)
    changed = replace(with_parts(one, 1, checksum=check), checksum=one.checksum ^ 1)
    parting = first_parting(episodes, other(episodes, place, changed))
    first, last = (steps for steps, _ in one.marks[:2])
    assert parting is not None
    assert (parting.env_index, parting.episode, parting.step) == (one.env_index, one.episode, first)
    assert f"other observations, rewards or flags in one of the steps {first} to {last - 1}" in parting.what


def test_another_end_is_found(episodes: list[RecordedEpisode]) -> None:
    place, one = long_one(episodes)
    shorter = replace(one, length=one.length - len(one.parts[-1].rows), parts=one.parts[:-1], checksum=one.marks[-2][1])
    ended = other(episodes, place, shorter)
    parting = first_parting(ended, episodes)
    assert parting is not None
    assert parting.what == "the episode ends here in a and goes on in b"
    assert parting.step == shorter.length - 1
    back = first_parting(episodes, ended)
    assert back is not None
    assert back.what == "the episode ends here in b and goes on in a"
    running = replace(shorter, terminated=False, truncated=False)
    assert first_parting(other(episodes, place, running), episodes) is None, "it was not recorded further"


def test_the_earliest_of_several_is_named(episodes: list[RecordedEpisode]) -> None:
    """By update, then row, then environment."""
    changed = [replace(one, checksum=one.checksum ^ 1) for one in episodes]
    parting = first_parting(episodes, changed)
    assert parting is not None
    assert parting.update == 1
    first = min((one for one in episodes), key=lambda one: (one.update, one.marks[-1][0]))
    assert parting.update == first.update


def test_finished_episodes_are_those_of_the_statistics(tmp_path: Path) -> None:
    """Every one of them, with the same numbers."""
    case = CASES["cartpole"]
    wanted: list[Finished] = []
    with case.build(**processes(3)) as (run, parts):
        parts.reader.is_recording = True
        writer = JournalWriter(tmp_path / "journal", 1 << 20, 1)
        for _ in range(case.updates):
            update = run.update(case.total_timesteps)
            wanted += update.harvest.finished
            returns = {(one.env_index, one.episode): one.total_reward for one in update.harvest.finished}
            writer.write(update.number, update.steps, update.harvest.entries, returns)
        writer.close()
    got = [one for one in episodes_of(read_journal(tmp_path / "journal")[1]) if one.is_finished]
    numbers = [Finished(one.env_index, one.episode, one.total_reward, one.length, one.terminated) for one in got]
    key = lambda one: (one.env_index, one.episode)  # noqa: E731
    assert sorted(numbers, key=key) == sorted(wanted, key=key)
    assert wanted
