"""A checkpoint on disk: the whole of it or nothing, whatever happens while it is written or to what was written."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace.checkpoints
from headrace.checkpoints.snapshot import Snapshot, find_latest, load, save
from headrace.errors import CheckpointError

FILES = ("weights.safetensors", "optimizer.safetensors", "episodes.safetensors", "state.json", "manifest.json")


def snapshot(number: int = 1) -> Snapshot:
    """Small, and different for every number."""
    return Snapshot(
        weights={"layer.weight": torch.full((2, 3), float(number)), "layer.bias": torch.zeros(0)},
        optimizer={"step": torch.tensor(float(number)), "exp_avg": torch.arange(3.0)},
        episodes={"last_obs": np.full((2, 2, 2), number, np.uint8), "actions": np.arange(3, dtype=np.int64)},
        state={"updates": number, "return": [0.1, -1e300, float("nan"), float("inf")], "name": "Ünï ∂"},
    )


def assert_equal(got: Snapshot, want: Snapshot) -> None:
    for part in ("weights", "optimizer", "episodes"):
        ours, theirs = getattr(got, part), getattr(want, part)
        assert ours.keys() == theirs.keys()
        for name in ours:
            a, b = np.asarray(ours[name]), np.asarray(theirs[name])
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), name
    assert json.dumps(got.state, sort_keys=True) == json.dumps(want.state, sort_keys=True)  # NaN equals itself here


def number_of(path: Path) -> int:
    """Which snapshot is there, all parts of it."""
    got = load(path)
    assert_equal(got, snapshot(got.state["updates"]))
    return int(got.state["updates"])


def test_round_trip(tmp_path: Path) -> None:
    save(snapshot(), tmp_path / "deep" / "down" / "here")
    assert_equal(load(tmp_path / "deep" / "down" / "here"), snapshot())
    assert sorted(path.name for path in (tmp_path / "deep" / "down" / "here").iterdir()) == sorted(FILES)
    assert [path.name for path in (tmp_path / "deep" / "down").iterdir()] == ["here"]


@settings(deadline=None, max_examples=30)
@given(
    shape=st.lists(st.integers(0, 4), max_size=3).map(tuple),
    dtype=st.sampled_from(["float32", "float64", "int8", "uint8", "int64", "bool"]),
    number=st.floats(),
    seed=st.integers(0, 2**16),
)
def test_any_array_and_number_come_back(
    tmp_path_factory: pytest.TempPathFactory, shape: tuple[int, ...], dtype: str, number: float, seed: int
) -> None:
    raw = np.random.default_rng(seed).integers(0, 2, shape).astype(dtype)
    for array in (raw, np.asfortranarray(raw), raw[::-1] if raw.ndim else raw):
        want = Snapshot({"w": torch.from_numpy(array.copy())}, {}, {"a": array}, {"number": number})
        path = tmp_path_factory.mktemp("any") / "it"
        save(want, path)
        assert_equal(load(path), want)
        shutil.rmtree(path)


def test_what_was_loaded_can_be_written_to(tmp_path: Path) -> None:
    save(snapshot(), tmp_path / "it")
    got = load(tmp_path / "it")
    got.weights["layer.weight"].add_(1)
    assert number_of(tmp_path / "it") == 1


def test_views_of_larger_memory_are_saved_alone(tmp_path: Path) -> None:
    """Parameters are views of one flat vector."""
    flat = torch.arange(10_000.0)
    save(Snapshot({"w": flat[2:6].view(2, 2), "t": flat[:4].view(2, 2).t()}, {}, {}, {}), tmp_path / "it")
    assert (tmp_path / "it" / "weights.safetensors").stat().st_size < 1000
    assert load(tmp_path / "it").weights["t"].tolist() == [[0.0, 2.0], [1.0, 3.0]]


def test_a_newer_one_takes_the_place_of_an_older(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        save(snapshot(number), tmp_path / "it")
        assert number_of(tmp_path / "it") == number
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


def test_nothing_else_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("precious")
    (tmp_path / "file").write_text("precious")
    for name in ("thesis", "file"):
        with pytest.raises(CheckpointError, match=f"{name} exists and is no checkpoint"):
            save(snapshot(), tmp_path / name)
    assert (tmp_path / "thesis" / "chapter1.tex").read_text() == (tmp_path / "file").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "thesis"]


# -------------------------------------------------------------------------------------------- interrupted while writing


class Killed(BaseException):
    """kill -9: nothing that comes after it runs, least of all a handler."""


SYSTEM_CALLS = ("mkdir", "open", "fsync", "rename", "replace", "unlink", "rmdir")


@pytest.fixture
def failing_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, Callable[[], BaseException]], list[str]]]:
    """Let the n-th call into the system raise; returns the list of calls as they are made."""
    real = {name: getattr(os, name) for name in SYSTEM_CALLS}

    def start(fail_at: int, error: Callable[[], BaseException]) -> list[str]:
        made: list[str] = []

        def counted(name: str) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                made.append(name)
                if len(made) - 1 >= fail_at and (len(made) - 1 == fail_at or error is Killed):
                    raise error()
                return real[name](*args, **kwargs)

            return call

        for name in SYSTEM_CALLS:
            monkeypatch.setattr(os, name, counted(name))
        return made

    yield start
    monkeypatch.undo()


ERRORS: dict[str, Callable[[], BaseException]] = {
    "killed": Killed,
    "disk full": lambda: OSError(errno.ENOSPC, "No space left on device"),
    "read-only": lambda: OSError(errno.EROFS, "Read-only file system"),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("is_replacing", [False, True])
def test_interrupted_at_every_system_call(
    error: str, is_replacing: bool, tmp_path: Path, failing_calls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it ends, there is the whole old one or the whole new one, and nothing half is taken for one."""
    outcomes = set()
    for fail_at in range(200):
        run_dir = tmp_path / str(fail_at)
        folder = run_dir / "checkpoints"
        save(snapshot(1), folder / "step_000")
        target = folder / "step_001"
        if is_replacing:
            save(snapshot(2), target)
        calls = failing_calls(fail_at, ERRORS[error])
        ended, message = "calm", ""
        try:
            save(snapshot(3), target)
        except Killed:
            ended = "killed"
        except CheckpointError as raised:
            ended, message = "refused", str(raised)
        finally:
            monkeypatch.undo()
        _, latest, damaged = find_latest(run_dir)
        assert damaged == []
        assert_equal(latest, snapshot(latest.state["updates"]))
        allowed = {3} if ended == "calm" else {2, 3} if is_replacing else {1, 3}
        assert latest.state["updates"] in allowed, f"{ended} at call {fail_at}: {calls[-1]}"
        if ended == "refused":
            assert re.search(r"could not write a checkpoint to .*step_001: .*(No space left|Read-only)", message)
            assert not list(folder.glob(".*.partial")), "what could not be finished is cleared away"
        save(snapshot(4), target)  # and the next one succeeds, whatever was left
        assert find_latest(run_dir)[1].state["updates"] == 4
        outcomes.add((ended, latest.state["updates"]))
        if fail_at >= len(calls):
            break
    else:
        pytest.fail("save never came to its end")
    ended_early = {updates for ended, updates in outcomes if ended != "calm"}
    assert ended_early >= {2 if is_replacing else 1}
    assert ("calm", 3) in outcomes


def test_disk_full_in_the_middle_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short write: half the bytes are there when the error comes."""
    save(snapshot(1), tmp_path / "it")

    def half(path: Path, data: bytes) -> None:
        path.write_bytes(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("headrace.checkpoints.snapshot._write_synced", half)
    with pytest.raises(CheckpointError, match=r"No space left on device; the previous one is untouched"):
        save(snapshot(2), tmp_path / "it")
    assert number_of(tmp_path / "it") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_directory(tmp_path: Path) -> None:
    save(snapshot(1), tmp_path / "it")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(CheckpointError, match="could not write a checkpoint"):
            save(snapshot(2), tmp_path / "it")
        assert number_of(tmp_path / "it") == 1
    finally:
        tmp_path.chmod(0o700)


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("not a directory")
    with pytest.raises(CheckpointError, match="could not write a checkpoint"):
        save(snapshot(), tmp_path / "runs" / "it")


# ------------------------------------------------------------------------------------------------------ damaged on disk


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(snapshot(), tmp_path / "it")
    return tmp_path / "it"


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("mask", [0x01, 0x20, 0xFF])
def test_every_flipped_byte_is_noticed(saved: Path, name: str, mask: int) -> None:
    data = (saved / name).read_bytes()
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= mask
        (saved / name).write_bytes(broken)
        with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
            load(saved)
    (saved / name).write_bytes(data)
    assert number_of(saved) == 1


@pytest.mark.parametrize("name", FILES)
def test_every_truncation_is_noticed(saved: Path, name: str) -> None:
    data = (saved / name).read_bytes()
    for length in range(len(data)):
        (saved / name).write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
            load(saved)
    for longer in (data + b"\0", data + b"\n", data + data):
        (saved / name).write_bytes(longer)
        with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
            load(saved)


@pytest.mark.parametrize("name", FILES)
def test_missing_and_swapped_files_are_noticed(saved: Path, name: str) -> None:
    data = (saved / name).read_bytes()
    (saved / name).unlink()
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        load(saved)
    (saved / name).mkdir()
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        load(saved)
    (saved / name).rmdir()
    other = FILES[FILES.index(name) - 1]
    (saved / name).write_bytes((saved / other).read_bytes())
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        load(saved)
    (saved / name).write_bytes(data)
    assert number_of(saved) == 1


def test_another_format_is_refused_by_its_number(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.checkpoints.snapshot.FORMAT", 99)
    with pytest.raises(CheckpointError, match="expected checkpoint format 99, got 5"):
        load(saved)


def test_the_previous_whole_one_is_used(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(snapshot(step), tmp_path / "checkpoints" / f"step_{step:012d}")
    newest, second = (tmp_path / "checkpoints" / f"step_{step:012d}" for step in (4, 3))
    assert find_latest(tmp_path)[0] == newest
    (newest / "weights.safetensors").write_bytes(b"junk")
    (second / "manifest.json").unlink()
    path, latest, damaged = find_latest(tmp_path)
    assert path.name == f"step_{2:012d}"
    assert latest.state["updates"] == 2
    assert len(damaged) == 2
    assert "step_000000000004/weights.safetensors is damaged" in damaged[0]
    assert "step_000000000003" in damaged[1]
    for step in (1, 2):
        (tmp_path / "checkpoints" / f"step_{step:012d}" / "state.json").write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=r"no checkpoint is whole: .*4/weights.*3.*2/state.*1/state"):
        find_latest(tmp_path)


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("hello")
    for name in ("empty", "file", "missing"):
        with pytest.raises(CheckpointError, match=f"{name}.*found none"):
            load(tmp_path / name)
        with pytest.raises(CheckpointError, match=f"{name}.*found none"):
            find_latest(tmp_path / name)


def test_leftovers_of_killed_saves_are_no_checkpoints(tmp_path: Path) -> None:
    """Even a whole one under its temporary name: it was never put in place."""
    save(snapshot(2), tmp_path / "checkpoints" / "step_000000000002")
    save(snapshot(9), tmp_path / "checkpoints" / ".step_000000000009.abcd.partial")
    assert find_latest(tmp_path)[1].state["updates"] == 2


def test_one_that_was_set_aside_when_the_process_died_is_found(tmp_path: Path) -> None:
    for folder in (tmp_path / "checkpoints", tmp_path):
        save(snapshot(5), folder / ".step_000000000005.abcd.old")
    assert find_latest(tmp_path)[1].state["updates"] == 5
    assert find_latest(tmp_path / "step_000000000005")[1].state["updates"] == 5
    save(snapshot(6), tmp_path / "checkpoints" / "step_000000000005")
    assert find_latest(tmp_path)[1].state["updates"] == 6
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1, "and removed when it is not needed any more"


def test_no_pickle_anywhere_near() -> None:
    """Neither the word nor torch's own saving, which pickles."""
    folder = Path(headrace.checkpoints.__file__).parent
    sources = [path.read_text() for path in folder.rglob("*.py")]
    assert len(sources) >= 2
    for text in sources:
        assert not re.search(r"^\s*(import|from)\s+(pickle|cloudpickle|dill|shelve|joblib|marshal)\b", text, re.M)
        assert not re.search(r"torch\.(save|load)\b|allow_pickle\s*=\s*True|\beval\(|\bexec\(", text)
