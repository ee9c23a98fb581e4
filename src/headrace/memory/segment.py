"""Segments: the memory that slabs and weights lie in. create -> (attach in other processes) -> unlink by the creator.

Heap and shared memory give the same thing, a writable buffer. A shared segment is a file in /dev/shm, 0600, with its
creator (process id and start) and an unguessable number in its name. It is reserved in full when created: tmpfs hands
out pages on first touch, and running out later would be a SIGBUS. The name is registered with multiprocessing's
resource tracker, which removes it should the creator be killed. Should the tracker be killed, Python starts another one
that knows no name: `keep_names_registered`. If both are killed together, the name stays in /dev/shm until `orphans`
removes it. Every mapping holds a shared lock on its file, by its descriptor: `orphans` removes none that is held.
The mapping, and one descriptor, live as long as there is a view of it (SharedMemory refuses to close then).
A process may be forked by code that is not ours, and the copy may go on where the original does. It can't write here:
what was attached is not in its memory, so it ends at the first touch (SIGSEGV); heap memory is its own from then on.
Does not know what lies in the bytes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import secrets
import warnings
import weakref
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Protocol

from headrace.errors import HeadraceError
from headrace.memory.owner import this_process
from headrace.safe_path import safe_path

logger = logging.getLogger(__name__)

DIRECTORY = Path("/dev/shm")
PREFIX = "headrace-"
_ELSE = "run with topology=inline or threads, which need none"
_names: set[str] = set()  # of the segments that this process has created and not unlinked


class Segment(Protocol):
    """A block of bytes; `name` is None when no other process can attach to it."""

    @property
    def name(self) -> str | None: ...

    @property
    def buffer(self) -> memoryview: ...

    def unlink(self) -> None: ...


class HeapSegment:
    """Memory of this process alone, or with a child that it forks itself."""

    name = None

    def __init__(self, size_bytes: int, *, is_private: bool = True) -> None:
        kind = mmap.MAP_PRIVATE if is_private else mmap.MAP_SHARED
        self.buffer = memoryview(mmap.mmap(-1, size_bytes, kind | mmap.MAP_ANONYMOUS))  # pages come on first touch

    def unlink(self) -> None:
        """Nothing to remove: it has no name."""


class SharedSegment:
    """Memory that other processes attach to by name."""

    def __init__(self, name: str, mapping: mmap.mmap, is_creator: bool = False) -> None:
        self.name: str | None = name
        self.buffer = memoryview(mapping)
        # A creator that forgets it, or ends in an exception, leaves no name behind either.
        self._finalizer = weakref.finalize(self, _remove_own, name, os.getpid()) if is_creator else None

    @classmethod
    def create(cls, size_bytes: int) -> SharedSegment:
        """Make and reserve a new segment; refused with needed and available bytes if it does not fit."""
        if 0 < _size_and_room()[0] < size_bytes:
            raise _no_room(size_bytes)
        name = f"{PREFIX}{this_process().mark}-{secrets.token_hex(8)}"  # a list of /dev/shm shows whose it is
        _names.add(name)
        keep_names_registered()  # first: a kill in between leaves nothing
        try:
            descriptor = os.open(DIRECTORY / name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                _hold(descriptor)
                if not os.fstat(descriptor).st_nlink:  # `doctor --clean` of another container was quicker than the lock
                    return cls.create(size_bytes)
                os.posix_fallocate(descriptor, 0, size_bytes)
                return cls(name, mmap.mmap(descriptor, size_bytes), is_creator=True)
            finally:
                os.close(descriptor)
        except OSError as error:
            _remove(name)
            raise (_no_room(size_bytes) if error.errno == errno.ENOSPC else _refused(size_bytes, error)) from error

    @classmethod
    def attach(cls, name: str) -> SharedSegment:
        """Open the segment that another process created."""
        descriptor = os.open(DIRECTORY / name, os.O_RDWR | os.O_CLOEXEC)
        try:
            _hold(descriptor)
            mapping = mmap.mmap(descriptor, 0)
            mapping.madvise(mmap.MADV_DONTFORK)
            return cls(name, mapping)
        finally:
            os.close(descriptor)

    @staticmethod
    def open_at(name: str, offset: int) -> int:
        """A descriptor that writes there: for what writes to files only, such as faulthandler."""
        descriptor = os.open(DIRECTORY / name, os.O_WRONLY | os.O_CLOEXEC)
        os.lseek(descriptor, offset, os.SEEK_SET)
        return descriptor

    def unlink(self) -> None:
        """Remove the name; only the creator does, once or more often. Views stay readable."""
        if self._finalizer is not None:
            self._finalizer()
            self.name = None


def _hold(descriptor: int) -> None:
    """A shared lock, for as long as the mapping that is made of this descriptor: it keeps a copy of it."""
    with contextlib.suppress(OSError):  # a file system without locks: then the owner's process alone is asked
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # `orphans` holds the other kind for microseconds


def _remove_own(name: str, creator: int) -> None:
    if os.getpid() == creator:  # not in a fork of it
        _remove(name)


def _remove(name: str) -> None:
    try:
        (DIRECTORY / name).unlink(missing_ok=True)
    except OSError as error:  # read-only: it was never made, or stays
        logger.info("%s can't be removed from %s: %s", name, DIRECTORY, error.strerror)
    keep_names_registered()  # a tracker that does not know the name would complain
    _names.discard(name)
    resource_tracker.unregister(f"/{name}", "shared_memory")


def keep_names_registered() -> None:
    """Give the resource tracker the names of this process's segments; one that was killed is started again."""
    with safe_path(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resource_tracker.ensure_running()
    for one in caught:
        if "process died unexpectedly" in str(one.message):
            logger.info("multiprocessing's resource tracker had died and was started again")
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    for name in tuple(_names):
        resource_tracker.register(f"/{name}", "shared_memory")


def _size_and_room() -> tuple[int, int]:
    """Of the directory, in bytes."""
    try:
        whole = os.statvfs(DIRECTORY)
    except OSError as error:
        raise HeadraceError(f"shared memory: {DIRECTORY} can't be used: {error.strerror}; {_ELSE}") from error
    return whole.f_blocks * whole.f_frsize, whole.f_bavail * whole.f_frsize


def _no_room(size_bytes: int) -> HeadraceError:
    return HeadraceError(
        f"shared memory: needed {size_bytes:,} bytes, {_size_and_room()[1]:,} available in {DIRECTORY}; "
        f"use fewer environments or steps, or enlarge {DIRECTORY}"
    )


def _refused(size_bytes: int, error: OSError) -> HeadraceError:
    """There may be room enough: it is read-only, or a limit (ulimit) on open files, file sizes or memory."""
    limits = {errno.EMFILE: "-n", errno.EFBIG: "-f", errno.ENOMEM: "-v"}
    what = f"raise the limit (ulimit {limits[error.errno]}), or {_ELSE}" if error.errno in limits else _ELSE
    return HeadraceError(f"shared memory: {size_bytes:,} bytes in {DIRECTORY} were refused: {error.strerror}; {what}")
