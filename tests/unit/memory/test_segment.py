"""Segments: made, attached and removed; private; reserved in full; refused when they do not fit; never left behind."""

from __future__ import annotations

import errno
import gc
import os
import re
import signal
import stat
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import HeadraceError
from headrace.memory import segment as segments_room
from headrace.memory.segment import HeapSegment, SharedSegment
from support.waiting import wait_until

SIZE = 3 * 4096 + 17
PATIENCE_S = 60.0


def ours_in_shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(f"headrace-{os.getpid()}-")}


def path_of(segment: SharedSegment) -> str:
    return f"/dev/shm/{segment.name}"


@contextmanager
def shared() -> Iterator[SharedSegment]:
    """Its name is gone afterwards. No fixture: pytest would keep it, and with it the mapping's descriptor."""
    segment = SharedSegment.create(SIZE)
    try:
        yield segment
    finally:
        segment.unlink()


def test_what_one_side_writes_the_other_reads() -> None:
    with shared() as created:
        attached = SharedSegment.attach(str(created.name))
        created.buffer[:5] = b"hello"
        attached.buffer[SIZE - 3 : SIZE] = b"bye"
        assert bytes(attached.buffer[:5]) == b"hello"
        assert bytes(created.buffer[SIZE - 3 : SIZE]) == b"bye"


def test_nobody_else_may_read_it() -> None:
    with shared() as created:
        assert stat.S_IMODE(os.stat(path_of(created)).st_mode) == 0o600


def test_it_is_reserved_in_full_when_it_is_created() -> None:
    with shared() as created:
        assert os.stat(path_of(created)).st_blocks * 512 >= SIZE, "running out of memory later would be a SIGBUS"


def test_names_have_their_creator_and_can_not_be_guessed() -> None:
    segments = [SharedSegment.create(64) for _ in range(3)]
    names = {str(segment.name) for segment in segments}
    for segment in segments:
        segment.unlink()
    assert len(names) == 3
    assert all(re.fullmatch(rf"headrace-{os.getpid()}-\d+-[0-9a-f]{{16}}", name) for name in names)


def test_an_attached_side_that_lets_go_leaves_it_and_unlink_removes_it() -> None:
    before = ours_in_shared_memory()
    created = SharedSegment.create(SIZE)
    name = str(created.name)
    attached = SharedSegment.attach(name)
    del attached
    assert os.path.exists(path_of(created))
    created.unlink()
    assert ours_in_shared_memory() == before
    with pytest.raises(FileNotFoundError):
        SharedSegment.attach(name)


def test_removed_twice_is_removed_once_and_has_no_name() -> None:
    with shared() as created:
        other = SharedSegment.create(64)
        for _ in range(3):
            created.unlink()
            assert created.name is None
        assert os.path.exists(path_of(other)), "another segment stays"
        other.unlink()


def test_views_outlive_the_name_the_segment_and_the_other_side() -> None:
    """Nothing refuses to go while somebody reads, and nobody who reads falls into a hole."""
    with shared() as created:
        ours = np.frombuffer(created.buffer, np.uint8)
        theirs = np.frombuffer(SharedSegment.attach(str(created.name)).buffer, np.uint8)
        created.unlink()
        gc.collect()
        ours[:] = 7
        assert len(ours) == len(theirs) == SIZE
        assert (theirs == 7).all(), "still the same memory"


def test_the_mapping_goes_with_the_last_view() -> None:
    segment = SharedSegment.create(SIZE)
    path = path_of(segment)
    view = segment.buffer[10:20]
    segment.unlink()
    del segment
    gc.collect()
    assert path in Path("/proc/self/maps").read_text()
    view.release()
    del view
    gc.collect()
    assert path not in Path("/proc/self/maps").read_text()


def run_python(code: str) -> subprocess.Popen[str]:
    """A process of its own, with a resource tracker of its own."""
    script = "import os, signal, sys\nfrom headrace.memory.segment import SharedSegment\n" + code
    # The tracker complains of what it has to remove: that is its job here.
    return subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def test_a_killed_creator_leaves_no_entry() -> None:
    """kill -9 runs no finally: the resource tracker, which outlives the creator, removes the name."""
    code = f"""
segment = SharedSegment.create({SIZE})
segment.buffer[:5] = b"hello"
assert os.path.exists(f"/dev/shm/{{segment.name}}")
print(segment.name, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with run_python(code) as creator:
        assert creator.stdout is not None
        name = creator.stdout.readline().strip()
        assert creator.wait(PATIENCE_S) == -signal.SIGKILL
        assert re.fullmatch(rf"headrace-{creator.pid}-\d+-[0-9a-f]{{16}}", name)
        wait_until(lambda: not os.path.exists(f"/dev/shm/{name}"), PATIENCE_S)


@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), signal.SIGKILL)"], ids=["returns", "is killed"])
def test_an_attached_process_that_ends_does_not_take_the_segment_with_it(end: str) -> None:
    """Unlike multiprocessing's SharedMemory before 3.13, attaching registers nothing."""
    with shared() as created:
        code = f"""
segment = SharedSegment.attach({created.name!r})
segment.buffer[:5] = b"hello"
{end}
"""
        with run_python(code) as attached:
            attached.communicate(timeout=PATIENCE_S)  # until stdout is closed: a tracker, if it had one, is gone too
        assert os.path.exists(path_of(created))
        assert bytes(created.buffer[:5]) == b"hello"


def test_a_full_dev_shm_is_told_with_needed_and_available_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = ours_in_shared_memory()
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    assert_refused_with_numbers(12_345)
    assert ours_in_shared_memory() == before


@pytest.mark.parametrize("size_bytes", [2**50, 2**63], ids=["more than there are addresses", "more than 64 bits"])
def test_a_size_beyond_all_memory_is_refused_and_leaves_nothing(size_bytes: int) -> None:
    before = ours_in_shared_memory()
    assert_refused_with_numbers(size_bytes)
    assert ours_in_shared_memory() == before


def assert_refused_with_numbers(size_bytes: int) -> None:
    with pytest.raises(HeadraceError) as caught:
        SharedSegment.create(size_bytes)
    needed, available = re.findall(r"([\d,]+)(?= bytes| available)", str(caught.value))
    assert int(needed.replace(",", "")) == size_bytes
    assert int(available.replace(",", "")) > 0
    assert "/dev/shm" in str(caught.value)


def test_a_heap_segment_has_no_name_and_is_writable_and_aligned() -> None:
    segment = HeapSegment(SIZE)
    array = np.frombuffer(segment.buffer, np.uint8)
    array[:] = 1
    assert segment.name is None
    assert len(array) == SIZE
    assert array.ctypes.data % 64 == 0
    segment.unlink()


def test_a_tracker_that_died_is_logged_and_nothing_else_is_swallowed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Python's own warning would be a riddle to users; every other one is theirs."""

    def restarts() -> None:
        warnings.warn("resource_tracker: process died unexpectedly, relaunching.", stacklevel=1)

    monkeypatch.setattr(resource_tracker, "ensure_running", restarts)
    with caplog.at_level("INFO", "headrace"), warnings.catch_warnings():
        warnings.simplefilter("error")
        segments_room.keep_names_registered()
    assert caplog.messages == ["multiprocessing's resource tracker had died and was started again"]
    monkeypatch.setattr(resource_tracker, "ensure_running", lambda: warnings.warn("something else", stacklevel=1))
    with pytest.warns(UserWarning, match="something else"):
        segments_room.keep_names_registered()


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "needed 4,096 bytes, .* available in /dev/shm; use fewer environments"),
        (errno.EFBIG, r"refused: File too large; raise the limit \(ulimit -f\), or run with topology=inline"),
        (errno.EMFILE, r"refused: Too many open files; raise the limit \(ulimit -n\)"),
        (errno.EROFS, "refused: Read-only file system; run with topology=inline"),
    ],
)
def test_why_it_was_refused(number: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room enough is not called too little."""

    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", fails)
    if number == errno.EROFS:
        monkeypatch.setattr(Path, "unlink", fails)
        monkeypatch.setattr(os, "open", fails)
    with pytest.raises(HeadraceError, match=said):
        SharedSegment.create(4096)
    assert not segments_room._names


def test_no_shared_memory_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(segments_room, "DIRECTORY", tmp_path / "gone")
    with pytest.raises(HeadraceError, match="gone can't be used: No such file or directory; run with topology=inline"):
        SharedSegment.create(4096)
