"""A file that the user asked for on the command line."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from headrace.errors import UsageError
from headrace.extras import require

PICTURES = (".png", ".svg", ".pdf")


def expect_to_write(option: str, path: Path | None) -> None:
    """Refuse what could not be written, before anything takes time; None: nothing was asked for."""
    if path is None:
        return
    known = path if path.exists() else path.parent
    wrong = 0 if os.access(known, os.W_OK) else errno.EACCES if known.exists() else errno.ENOENT
    if path.is_dir() or (known != path and known.exists() and not known.is_dir()):
        wrong = errno.EISDIR if path.is_dir() else errno.ENOTDIR
    if wrong:
        raise _refused(option, path, os.strerror(wrong))


def write_answer(option: str, path: Path, data: bytes, home: Path) -> None:
    """Write it, or say which option it was for. Environments may have left `home`, the directory of the command."""
    try:
        (home / path).write_bytes(data)
    except OSError as error:
        raise _refused(option, path, error.strerror) from error


def _refused(option: str, path: Path, why: str | None) -> UsageError:
    return UsageError(f"{option} {path}: can't be written: {why}; choose another place")


def picture_form(path: Path) -> str:
    """What to draw for --plot, from its name: png, svg or pdf. Ask before anything takes time."""
    require("plots", "--plot")
    if path.suffix.lower() not in PICTURES:
        raise UsageError(f"--plot {path}: expected a name that ends in .png, .svg or .pdf")
    return path.suffix.lower()[1:]
