"""A file that the user asked for on the command line."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import UsageError


def write_answer(option: str, path: Path, data: bytes) -> None:
    """Write it, or say which option it was for."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"{option} {path}: can't be written: {error.strerror}; choose another place") from error
