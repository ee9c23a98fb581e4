"""A temporary folder that is gone when its owner is, however it ends.

    Folder(prefix) ──pipe that carries nothing──> sh: reads until the pipe ends, then removes the folder

A killed owner removes nothing, and what it started is killed with it (life): so somebody who is not has to be there.
It is in a session of its own, holds no memory of ours, and ends with the folder. If both are killed, the folder stays,
and its name says whose it was (`left_folders`). Does not know what lies in it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path

from headrace.memory.owner import Owner, owner_in, this_process
from headrace.runtime.life import keep_from_forks

_REMOVE = 'read -r word; [ -n "$word" ] || rm -rf -- "$1"'
_END_S = 5.0
AGENTS = "headrace-agents-"  # folders with the socket that workers of LLM agents call


class Folder:
    """Of this process alone, mode 0700. Its cleaner is there first: a kill leaves nothing at any moment."""

    def __init__(self, prefix: str) -> None:
        name = f"{prefix}{this_process().mark}-{secrets.token_hex(4)}"  # short: the path of a socket has 108 bytes
        self.path = Path(tempfile.gettempdir(), name)
        reader, self._owner = Pipe(duplex=False)
        keep_from_forks(self._owner)
        self._cleaner: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):  # no shell: then only a clean end removes it
            self._cleaner = subprocess.Popen(
                ["/bin/sh", "-c", _REMOVE, "sh", str(self.path)], stdin=reader.fileno(), stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, start_new_session=True, cwd="/", env={"PATH": "/usr/bin:/bin"},
            )  # fmt: skip
        reader.close()
        try:
            self.path.mkdir(0o700)
        except FileExistsError:  # somebody else's: it stays
            with contextlib.suppress(OSError):  # no cleaner: nobody would remove it
                os.write(self._owner.fileno(), b"keep\n")
            self._end()
            raise

    def remove(self) -> None:
        """Now."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._end()

    def _end(self) -> None:
        self._owner.close()
        if self._cleaner is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._cleaner.wait(_END_S)


def left_folders(
    prefix: str, directory: Path | None = None, is_alive: Callable[[Owner], bool] = Owner.is_alive
) -> list[Path]:
    """Folders of this user whose owner is dead, by name. Links and files are none, whatever their name."""
    place = Path(tempfile.gettempdir()) if directory is None else directory
    left = []
    with contextlib.suppress(OSError):  # a place that can't be listed has none to show
        for path in sorted(place.iterdir()):
            owner = owner_in(path.name, prefix)
            with contextlib.suppress(OSError):  # gone meanwhile
                if owner is not None and stat.S_ISDIR(path.lstat().st_mode) and path.lstat().st_uid == os.geteuid():
                    left += [] if is_alive(owner) else [path]
    return left
