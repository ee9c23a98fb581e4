"""Where relative paths begin: the caller's working directory, although environments of this process may change it.

    with whereabouts.kept(): environments are built, or step
    absolute(path), reachable(path) -> as if they had not moved

A caller who changes the directory afterwards means the new one. Messages name a path as the caller typed it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.checkpoints.proof import settle_key_path
from headrace.errors import UsageError


class Whereabouts:
    """Of this process."""

    def __init__(self) -> None:
        self._kept: str | None = None  # the caller's directory, while environments run
        self._moved: tuple[str, str] | None = None  # the same, and where they went

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Environments may go elsewhere meanwhile."""
        settle_key_path()
        outer, home = self._kept, self._home()
        self._kept = home
        try:
            yield
        finally:
            self._kept, self._moved = outer, (home, _here())

    def absolute(self, path: Path) -> Path:
        """The path that the caller means."""
        return Path(self._home()) / path

    def reachable(self, path: Path) -> Path:
        """The same as it was typed, unless environments have moved: for what is read."""
        return path if self._home() == _here() else self.absolute(path)

    @contextmanager
    def as_typed(self, path: Path) -> Iterator[None]:
        """Messages about its absolute form have it as it was typed."""
        meant = self.absolute(path)
        try:
            yield
        except UsageError as error:
            error.args = (str(error).replace(str(meant), str(path)),)
            raise

    def _home(self) -> str:
        if self._kept is not None:
            return self._kept
        here = _here()
        return self._moved[0] if self._moved is not None and here == self._moved[1] else here


whereabouts = Whereabouts()


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed: relative paths stay as they are
        return ""
