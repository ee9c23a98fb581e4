"""Segments: the memory that slabs lie in. create -> (attach in other processes) -> close -> unlink by the creator.

Heap and shared memory give the same thing, a writable buffer. Shared segments are 0600 with unguessable names, and are
reserved in full when created: tmpfs hands out pages on first touch, and running out later would be a SIGBUS.
Does not know what lies in the bytes.
"""

from __future__ import annotations

import mmap
import os
import secrets
from multiprocessing import shared_memory
from typing import Protocol

from headrace.errors import HeadraceError


class Segment(Protocol):
    """A block of bytes; `name` is None when no other process can attach to it."""

    @property
    def name(self) -> str | None: ...

    @property
    def buffer(self) -> memoryview: ...

    def close(self) -> None: ...

    def unlink(self) -> None: ...


class HeapSegment:
    """Memory of this process alone."""

    name = None

    def __init__(self, size_bytes: int) -> None:
        self.buffer = memoryview(mmap.mmap(-1, size_bytes))  # page-aligned, and pages come on first touch

    def close(self) -> None:
        """Nothing to give back: the garbage collector owns it."""

    def unlink(self) -> None:
        """Nothing to remove: it has no name."""


class SharedSegment:
    """Memory that other processes attach to by name."""

    def __init__(self, memory: shared_memory.SharedMemory) -> None:
        self._memory = memory

    @classmethod
    def create(cls, size_bytes: int) -> SharedSegment:
        """Make and reserve a new segment; refused with needed and available bytes if it does not fit."""
        whole = os.statvfs("/dev/shm")
        if 0 < whole.f_blocks * whole.f_frsize < size_bytes:  # never try: mapping it could fail half-way, and leave it
            raise _no_room(size_bytes)
        name = f"headrace-{secrets.token_hex(8)}"
        memory = shared_memory.SharedMemory(name, create=True, size=size_bytes)
        try:
            os.posix_fallocate(memory._fd, 0, size_bytes)  # type: ignore[attr-defined]
        except OSError as error:
            memory.close()
            memory.unlink()
            raise _no_room(size_bytes) from error
        return cls(memory)

    @classmethod
    def attach(cls, name: str) -> SharedSegment:
        """Open the segment that another process created."""
        return cls(shared_memory.SharedMemory(name))

    @property
    def name(self) -> str | None:
        return self._memory.name

    @property
    def buffer(self) -> memoryview:
        assert self._memory.buf is not None, "the segment is closed"
        return self._memory.buf

    def close(self) -> None:
        """Unmap. Every array over the buffer must be gone by now."""
        self._memory.close()

    def unlink(self) -> None:
        """Remove the name; only the creator does."""
        self._memory.unlink()


def _no_room(size_bytes: int) -> HeadraceError:
    free = os.statvfs("/dev/shm")
    return HeadraceError(
        f"shared memory: needed {size_bytes:,} bytes, {free.f_bavail * free.f_frsize:,} available in /dev/shm; "
        f"use fewer environments or steps, or enlarge /dev/shm"
    )
