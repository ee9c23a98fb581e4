"""One writer per run directory: a lock on it and on its log.txt, from before the first file is read to the end.

    RunLock.take(run_dir) -> refused at once if another session holds it -> ... -> release, or the process ends

The kernel holds the lock for as long as the process lives, so a killed run leaves none behind. A process that is forked
meanwhile (an environment may do so) does not keep it: it closes its copy first. Removing log.txt does not lift the lock
on the directory; on file systems that lock no directories (NFS), log.txt is what counts. There is no other file to
clean up. Two sessions of one process exclude each other too. Does not know what the directory holds.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.errors import UsageError
from headrace.files import require_no_links

FILE = "log.txt"
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

logger = logging.getLogger(__name__)

_held: set[int] = set()  # descriptors


class RunLock:
    """Held from `take` to `release`; a context manager."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self._descriptors = tuple(descriptors)
        _held.update(descriptors)

    @classmethod
    def take_early(cls, run_dir: Path) -> Self | None:
        """If the directory holds a run already; a new one is locked when it is made."""
        return cls.take(run_dir) if (run_dir / FILE).exists() or is_live(run_dir) else None

    @classmethod
    def take(cls, run_dir: Path, name: str = FILE) -> Self:
        """The directory exists. UsageError if another session writes to it."""
        held: list[int] = []
        try:
            if name == FILE:
                held += _locked_folder(run_dir)
            require_no_links(run_dir, [name])
            held.append(os.open(run_dir / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
            try:
                fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise _taken(run_dir, os.fstat(held[-1])) from error
                logger.warning("%s: this file system has no locks; see that no other session writes there", run_dir)
        except BaseException as error:
            for descriptor in held:
                os.close(descriptor)
            if not isinstance(error, OSError):
                raise
            why = error.strerror if error.errno == errno.ELOOP else f"can't be written: {error}"
            raise UsageError(f"run directory {run_dir}: {why}; choose another with --run-dir") from error
        return cls(held)

    def is_of(self, run_dir: Path) -> bool:
        """Whether this is the lock of that directory, however it is named."""
        try:
            named = (os.stat(run_dir), os.stat(run_dir / FILE))
        except OSError:
            return False
        return any(os.path.samestat(os.fstat(one), other) for one in self._descriptors for other in named)

    def release(self) -> None:
        """May be called twice."""
        descriptors, self._descriptors = self._descriptors, ()
        for descriptor in descriptors:
            _held.discard(descriptor)
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def is_live(run_dir: Path) -> bool:
    """Whether a session writes to it now, as far as the system says; takes no lock."""
    for path in (run_dir, run_dir / FILE):
        with suppress(OSError):
            if _holder(path.stat() if path is run_dir else path.lstat()):
                return True
    return False


def _locked_folder(run_dir: Path) -> list[int]:
    """Its descriptor; nothing where directories can't be locked."""
    descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        where = os.fstat(descriptor)
        os.close(descriptor)
        if error.errno == errno.EWOULDBLOCK:
            raise _taken(run_dir, where) from error
        return []
    return [descriptor]


def _taken(run_dir: Path, locked: os.stat_result) -> UsageError:
    return UsageError(
        f"run directory {run_dir}: another program writes to it{_holder(locked)}; wait until it has ended, end it, or "
        f"choose another directory with --run-dir"
    )


def _holder(locked: os.stat_result) -> str:
    """The process that holds the lock, if the system says so."""
    inode = f":{locked.st_ino}"
    try:
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return ""
    pids = [one[4] for one in locks if len(one) > 5 and one[1] == "FLOCK" and one[5].endswith(inode)]
    return f" (process {pids[0]})" if pids and pids[0].isdigit() and pids[0] != "0" else ""


def _forget() -> None:
    """In a forked child: the lock is the parent's."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget)
