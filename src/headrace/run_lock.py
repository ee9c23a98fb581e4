"""One writer per run directory: a lock on its log.txt, from before the first file is read until the last is written.

    RunLock.take(run_dir) -> refused at once if another session holds it -> ... -> release, or the process ends

The kernel holds the lock for as long as the process lives, so a killed run leaves none behind. A process that is forked
meanwhile (an environment may do so) does not keep it: it closes its copy first. log.txt is never replaced, and there is
no other file to clean up. Two sessions of one process exclude each other too. Does not know what the directory holds.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
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

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        _held.add(descriptor)

    @classmethod
    def take_early(cls, run_dir: Path) -> Self | None:
        """If the directory holds a run already; a new one is locked when it is made."""
        return cls.take(run_dir) if (run_dir / FILE).exists() else None

    @classmethod
    def take(cls, run_dir: Path, name: str = FILE) -> Self:
        """The directory exists. UsageError if another session writes to it."""
        try:
            require_no_links(run_dir, [name])
            descriptor = os.open(run_dir / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except OSError as error:
            why = error.strerror if error.errno == errno.ELOOP else f"can't be written: {error}"
            raise UsageError(f"run directory {run_dir}: {why}; choose another with --run-dir") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                who = _holder(os.fstat(descriptor))
                os.close(descriptor)
                raise UsageError(
                    f"run directory {run_dir}: another program writes to it{who}; wait until it has ended, end it, or "
                    f"choose another directory with --run-dir"
                ) from error
            logger.warning("%s: this file system has no locks; see that no other session writes there", run_dir)
        return cls(descriptor)

    def is_of(self, run_dir: Path) -> bool:
        """Whether this is the lock of that directory, however it is named."""
        try:
            ours = None if self._descriptor is None else os.fstat(self._descriptor)
            return ours is not None and os.path.samestat(ours, os.stat(run_dir / FILE))
        except OSError:
            return False

    def release(self) -> None:
        """May be called twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
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
    try:
        return bool(_holder((run_dir / FILE).lstat()))
    except OSError:
        return False


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
