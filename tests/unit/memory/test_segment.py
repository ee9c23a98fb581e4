"""Segments: made, attached, closed and removed; private; reserved in full; refused when they do not fit."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator

import numpy as np
import pytest

from headrace.errors import HeadraceError
from headrace.memory.segment import HeapSegment, SharedSegment

SIZE = 3 * 4096 + 17


def ours_in_shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("headrace-")}


def path_of(segment: SharedSegment) -> str:
    return f"/dev/shm/{segment.name}"


@pytest.fixture
def created() -> Iterator[SharedSegment]:
    segment = SharedSegment.create(SIZE)
    yield segment
    segment.close()
    segment.unlink()


def test_what_one_side_writes_the_other_reads(created: SharedSegment) -> None:
    attached = SharedSegment.attach(str(created.name))
    created.buffer[:5] = b"hello"
    attached.buffer[SIZE - 3 : SIZE] = b"bye"
    assert bytes(attached.buffer[:5]) == b"hello"
    assert bytes(created.buffer[SIZE - 3 : SIZE]) == b"bye"
    attached.close()


def test_nobody_else_may_read_it(created: SharedSegment) -> None:
    assert stat.S_IMODE(os.stat(path_of(created)).st_mode) == 0o600


def test_it_is_reserved_in_full_when_it_is_created(created: SharedSegment) -> None:
    assert os.stat(path_of(created)).st_blocks * 512 >= SIZE, "running out of memory later would be a SIGBUS"


def test_names_can_not_be_guessed() -> None:
    segments = [SharedSegment.create(64) for _ in range(3)]
    names = {str(segment.name) for segment in segments}
    for segment in segments:
        segment.close()
        segment.unlink()
    assert len(names) == 3
    assert all(re.fullmatch(r"headrace-[0-9a-f]{16}", name) for name in names)


def test_an_attached_side_that_closes_leaves_it_and_unlink_removes_it() -> None:
    before = ours_in_shared_memory()
    created = SharedSegment.create(SIZE)
    attached = SharedSegment.attach(str(created.name))
    attached.close()
    assert os.path.exists(path_of(created))
    created.close()
    created.unlink()
    assert ours_in_shared_memory() == before
    with pytest.raises(FileNotFoundError):
        SharedSegment.attach(str(created.name))


def test_closing_under_a_live_array_is_refused_not_a_crash(created: SharedSegment) -> None:
    array = np.frombuffer(created.buffer, np.uint8)
    with pytest.raises(BufferError):
        created.close()
    del array


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
    segment.close()
    segment.unlink()
