"""Numbers in and out: every group once, across streams, break-offs, journals and endless iteration; and bad input."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.agents.codec import ByteCodec, TokenizerCodec
from headrace.agents.engines.batching import Batched
from headrace.agents.engines.scripted import Latency, scripted
from headrace.agents.environments.text_env import TextEnvSpec
from headrace.agents.group_log import read_groups
from headrace.agents.limits import Limits
from headrace.agents.records import fingerprint
from headrace.errors import UsageError
from support.agent_envs import Counting, Heavy, spec

WAYS = [("sequential", 1), ("lock-step", 1), ("threading", 2)]


@pytest.fixture
def engine() -> Iterator[Batched]:
    one = scripted()
    yield one
    one.close()


def made(engine: Any, backend: str = "threading", n_jobs: int = 2, env: Any = Counting, **options: Any) -> Any:
    return hr.AgentRollouts([spec(env)], engine, n_jobs, backend, **{"group_size": 2, **options})


# -------------------------------------------------------------------------------------------------- streams


@pytest.mark.parametrize(("backend", "n_jobs"), WAYS)
def test_iterating_goes_on_for_ever_and_skips_nothing(engine: Batched, backend: str, n_jobs: int) -> None:
    with made(engine, backend, n_jobs, n_groups=[3]) as rollouts:
        first = list(itertools.islice(rollouts, 20))
        assert len({group.number for group in first}) == 20
        rest = rollouts.run(12)  # what the broken stream had out comes first
        numbers = {group.number for group in [*first, *rest]}
        assert len(numbers) == 32
        missing = set(range(max(numbers))) - numbers
        assert missing == {group.number for group in rollouts.run(len(missing))}


def test_iterating_has_no_barrier() -> None:
    """One slow group does not hold up the next round: with a barrier a round of two would take as long as it."""
    seen: list[int] = []
    engine = scripted(latency=Latency(0.001))
    with hr.AgentRollouts(
        [spec(Counting, "quick"), spec(Counting, "slow", step_s=0.25)], engine, 2, "threading", group_size=1
    ) as rollouts:
        for group in rollouts:
            seen.append(group.number)
            if group.tag == "slow":
                break
    engine.close()
    assert len(seen) > 4, "quick groups of later rounds came before the first slow one"


def test_a_slow_reader_is_not_buried(engine: Batched) -> None:
    with made(engine, limits=Limits(max_live=8)) as rollouts:
        stream = rollouts.stream()
        next(stream)
        before = -1
        while (now := engine.statistics().requests) != before:  # until everything has come to rest
            before = now
            threading.Event().wait(0.2)
        rows = [next(stream) for _ in range(8)]
        assert len(rows) == 8
        assert before < 2 * 12 * 6, "at most eight groups are out"
        stream.close()


def test_one_stream_at_a_time(engine: Batched) -> None:
    with made(engine) as rollouts:
        stream = rollouts.stream(6)
        first = next(stream)
        for again in (lambda: rollouts.run(1), lambda: next(rollouts.stream()), lambda: rollouts.play([3])):
            with pytest.raises(UsageError, match="still open"):
                again()
        rest = list(stream)
        assert sorted([first.number, *(group.number for group in rest)]) == list(range(6)), "the first lost nothing"
        assert [group.number for group in rollouts.run(2)] == [6, 7]


def test_closed_is_closed(engine: Batched) -> None:
    rollouts = made(engine)
    rollouts.close()
    rollouts.close()
    for call in (lambda: rollouts.run(1), lambda: rollouts.play([0]), lambda: rollouts.publish(None)):
        with pytest.raises(UsageError, match="were closed"):
            call()


def test_play_plays_each_number_once(engine: Batched) -> None:
    with made(engine) as rollouts:
        assert [group.number for group in rollouts.play([5, 0, 5])] == [0, 5]
        assert [group.number for group in rollouts.run(2)] == [0, 1], "play takes no numbers away"


class Meeting(Counting):
    """Begins when four are there."""

    together = threading.Barrier(4)

    def reset(self, seed: int) -> str:
        self.together.wait(10)
        return super().reset(seed)


def test_in_lock_step_environments_move_side_by_side(engine: Batched) -> None:
    with hr.AgentRollouts([spec(Meeting)], engine, backend="lock-step", group_size=4) as rollouts:
        assert [group.failures for group in rollouts.run(1)] == [[]]


# -------------------------------------------------------------------------------------------------- journals


@pytest.mark.parametrize("broken_off", [1, 4, 7])
def test_an_endless_stream_resumes(engine: Batched, broken_off: int, tmp_path: Path) -> None:
    """Broken off, gone on with, twice: every number is in the journal once, and the same as if nothing had been."""
    for _ in range(3):
        with made(engine, env=Heavy, run_dir=tmp_path) as rollouts:
            list(itertools.islice(rollouts.stream(), broken_off))
    with made(engine, env=Heavy, run_dir=tmp_path) as rollouts:
        whole = rollouts.run(12)
    lines = (tmp_path / "groups.jsonl").read_text().splitlines()[1:]
    assert len(lines) == len(read_groups(tmp_path / "groups.jsonl")), "nothing is written twice"
    with made(engine, "sequential", 1, env=Heavy) as rollouts:
        assert fingerprint(whole) == fingerprint(rollouts.run(12))


def test_an_endless_stream_gives_what_the_journal_holds_once(engine: Batched, tmp_path: Path) -> None:
    with made(engine, run_dir=tmp_path) as rollouts:
        rollouts.run(5)
    with made(engine, run_dir=tmp_path) as rollouts:
        first = [group.number for group in itertools.islice(rollouts.stream(), 3)]
        then = [group.number for group in itertools.islice(rollouts.stream(), 6)]
    assert first == [0, 1, 2]
    assert then[:2] == [3, 4]
    assert len({*first, *then}) == 9
    assert min(then[2:]) >= 5


def test_play_is_not_a_matter_of_the_journal(engine: Batched, tmp_path: Path) -> None:
    """Whoever chooses the tasks, as TRL does, wants them played with the weights of now."""
    with made(engine, run_dir=tmp_path) as rollouts:
        rollouts.run(2)
        size = (tmp_path / "groups.jsonl").stat().st_size
        engine.publish(None)
        (again,) = rollouts.play([0])
        assert {int(one) for row in again.episodes[0].rows for one in row.versions} == {-1, 1}
        assert (tmp_path / "groups.jsonl").stat().st_size == size


def test_a_run_directory_has_one_writer(engine: Batched, tmp_path: Path) -> None:
    with made(engine, run_dir=tmp_path) as rollouts:
        with pytest.raises(UsageError, match="another program writes to it"):
            made(engine, run_dir=tmp_path)
        script = textwrap.dedent(f"""
            import headrace as hr
            try:
                hr.AgentRollouts(["Bandit"], run_dir={str(tmp_path)!r})
            except hr.errors.UsageError as error:
                print(error)
        """)
        told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert "another program writes to it" in told.stdout
        assert len(rollouts.run(2)) == 2
    with made(engine, run_dir=tmp_path) as rollouts:
        assert len(rollouts.run(3)) == 3


class Other(Counting):
    """Another class, under the same tag."""


def test_another_environment_or_codec_is_another_run(engine: Batched, tmp_path: Path) -> None:
    with made(engine, run_dir=tmp_path) as rollouts:
        rollouts.run(1)
    with pytest.raises(UsageError, match="its envs is"):
        hr.AgentRollouts([TextEnvSpec("Counting", Other)], engine, group_size=2, run_dir=tmp_path)
    other = scripted(codec=_Codec())
    with pytest.raises(UsageError, match="its codec is"):
        made(other, run_dir=tmp_path)
    other.close()
    assert len(read_groups(tmp_path / "groups.jsonl")) == 1, "nothing was lost"


class _Codec(TokenizerCodec):
    """Another codec by its description; these tests encode with bytes."""

    def __init__(self) -> None:
        super().__init__("{}", "x", "y")

    encode, decode, render = ByteCodec.encode, ByteCodec.decode, ByteCodec.render  # type: ignore[assignment]


def test_a_run_directory_that_is_a_file(engine: Batched, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"run directory .*choose another"):
        made(engine, run_dir=tmp_path / "file")


@pytest.mark.parametrize("text", ["my precious notes", "my precious notes\n", "[1]\n", "{}\n", '{"a": 1}\n{"b": 2}\n'])
def test_somebody_elses_file_is_left_alone(engine: Batched, text: str, tmp_path: Path) -> None:
    (tmp_path / "groups.jsonl").write_text(text)
    with pytest.raises(UsageError, match="choose another directory"):
        made(engine, run_dir=tmp_path)
    assert (tmp_path / "groups.jsonl").read_text() == text


def test_a_damaged_line_in_the_middle_is_named(engine: Batched, tmp_path: Path) -> None:
    """What comes after it is not thrown away; the last line may be torn, and is played again."""
    with made(engine, run_dir=tmp_path) as rollouts:
        rollouts.run(4)
    path = tmp_path / "groups.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"###\n", *lines[3:]]))
    with pytest.raises(UsageError, match=r"line 3: can't be read .*take it out"):
        made(engine, run_dir=tmp_path)
    path.write_bytes(b"".join([*lines[:2], *lines[3:], b"###\n"]))
    with made(engine, run_dir=tmp_path) as rollouts:
        assert len(rollouts.run(4)) == 4
    path.write_bytes(lines[0][:9])
    with made(engine, run_dir=tmp_path) as rollouts:
        assert len(rollouts.run(1)) == 1, "killed while it wrote its first words"


def test_doubled_lines_count_once(engine: Batched, tmp_path: Path) -> None:
    with made(engine, run_dir=tmp_path) as rollouts:
        rollouts.run(2)
    path = tmp_path / "groups.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, lines[-1]]))
    assert [group.number for group in read_groups(path)] == [0, 1]


# ------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"n_jobs": "2"}, "n_jobs: expected -1 .auto. or at least 1, got '2'"),
        ({"n_jobs": 2.5}, "n_jobs: expected"),
        ({"n_jobs": 0}, "n_jobs: expected"),
        ({"group_size": "4"}, "group_size: expected a whole number of at least 1, got '4'"),
        ({"group_size": 0}, "group_size: expected"),
        ({"group_size": True}, "group_size: expected"),
        ({"seed": -1}, "seed: expected a whole number of at least 0, got -1"),
        ({"seed": 1.5}, "seed: expected"),
        ({"n_groups": [1.5]}, "n_groups: expected"),
        ({"n_groups": 3}, "n_groups: expected a number per tag, got 3"),
        ({"limits": 5}, "limits: expected Limits, got 5"),
        ({"rules": {}}, "rules: expected Rules"),
        ({"run_dir": 3}, "run_dir: expected a path, got 3"),
        ({"pooled": "x"}, "pooled: expected True or False"),
        ({"n_groups": [1, 2]}, "n_groups: expected one number per tag"),
        ({"engine": 5}, "engine: expected an engine"),
        ({"engine": "gpt"}, "engine: expected an engine"),
        ({"backend": "ray"}, "backend: expected"),
        ({"envs": 5}, "envs: expected tags, classes or TextEnvSpecs, got 5"),
        ({"envs": [5]}, "envs: expected tags"),
        ({"envs": ["Bandid"]}, "did you mean Bandit"),
        ({"envs": []}, "envs: expected at least one"),
        ({"max_lag": 1}, "max_lag and groups_per_update: expected both"),
        ({"max_lag": -1, "groups_per_update": 1}, "max_lag: expected a whole number of at least 0"),
        ({"max_lag": 1, "groups_per_update": 0}, "groups_per_update: expected"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        hr.AgentRollouts(**{"envs": ["Bandit"], **options})


@pytest.mark.parametrize("groups", ["3", 2.0, -1, True])
def test_bad_numbers_of_groups(engine: Batched, groups: Any) -> None:
    with made(engine) as rollouts:
        for call in (rollouts.run, rollouts.stream, lambda one: rollouts.play([one])):
            with pytest.raises(UsageError, match="expected a whole number of at least 0"):
                call(groups)


def test_no_groups_is_no_work(engine: Batched) -> None:
    with made(engine) as rollouts:
        assert rollouts.run(0) == []
        assert rollouts.play([]) == []
    assert os.getpid() not in rollouts.worker_pids.values()
