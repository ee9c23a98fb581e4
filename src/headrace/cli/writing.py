"""A file that the user asked for on the command line."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import UsageError
from headrace.extras import require

PICTURES = (".png", ".svg", ".pdf")


def write_answer(option: str, path: Path, data: bytes, home: Path) -> None:
    """Write it, or say which option it was for. Environments may have left `home`, the directory of the command."""
    try:
        (home / path).write_bytes(data)
    except OSError as error:
        raise UsageError(f"{option} {path}: can't be written: {error.strerror}; choose another place") from error


def picture_form(path: Path) -> str:
    """What to draw for --plot, from its name: png, svg or pdf. Ask before anything takes time."""
    require("plots", "--plot")
    if path.suffix.lower() not in PICTURES:
        raise UsageError(f"--plot {path}: expected a name that ends in .png, .svg or .pdf")
    return path.suffix.lower()[1:]
