"""Files that may come from elsewhere, read as data: regular files, no links, so many bytes at most, plain JSON.

    path --read_regular--> bytes --parse_json--> values of bounded depth and size, every key once
    path --read_lines--> line after line, each of bounded length

Raises OSError and ValueError with a reason in plain words; the caller knows the file's role and says what to do.
Does not know what a file means.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

MAX_JSON_BYTES = 64 << 20
MAX_ARRAY_BYTES = 8 << 30
MAX_DEPTH = 64
MAX_VALUES = 20_000_000
LIMIT_VARIABLE = "HEADRACE_MAX_FILE_BYTES"


def size_limit(default: int) -> int:
    """How many bytes of one file are read: the default, or what HEADRACE_MAX_FILE_BYTES says."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else default


def kind_of(mode: int) -> str:
    """What a directory entry is, in words."""
    kinds = {
        stat.S_IFREG: "a regular file",
        stat.S_IFDIR: "a directory",
        stat.S_IFLNK: "a link",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")


def read_regular(path: Path, default_limit: int) -> bytes:
    """The bytes of a regular file; a link, a pipe, a device or a file above the limit is refused unread."""
    with _open_regular(path) as file:
        size = _size_within(file, default_limit)
        data = file.read(size + 1)
    if len(data) != size:
        raise OSError(errno.EIO, "its size changed while it was read")
    return data


def read_lines(path: Path, max_line_bytes: int, default_limit: int | None = None) -> Iterator[bytes]:
    """The lines of a regular file, each with its newline; the last one may be torn and have none.

    A line above the limit is a ValueError. One line is held at a time, so the file needs no limit unless all is kept.
    """
    with _open_regular(path) as file:
        if default_limit is not None:
            _size_within(file, default_limit)
        number = 0
        while line := file.readline(max_line_bytes + 1):
            number += 1
            if len(line) > max_line_bytes:
                raise ValueError(f"line {number:,} has more than {max_line_bytes:,} bytes")
            yield line


def read_named(path: Path, default_limit: int = MAX_JSON_BYTES) -> bytes:
    """The bytes of a file that the user named: it may be a link or a pipe, but not longer than the limit."""
    limit = size_limit(default_limit)
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes ({LIMIT_VARIABLE} sets this)")
    return data


def require_no_links(folder: Path, names: Iterable[str]) -> None:
    """Raise unless each of these entries is absent, a regular file or a real directory."""
    for name in names:
        try:
            mode = os.lstat(folder / name).st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise OSError(errno.ELOOP, f"{name} is {kind_of(mode)}, expected a regular file or a directory")


def is_real_directory(path: Path) -> bool:
    """Whether there is a directory, and not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def parse_json(data: bytes) -> Any:
    """JSON of bounded depth, every key of an object once."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_each_key_once)
    except RecursionError as error:
        raise ValueError(f"nested more than {MAX_DEPTH} deep") from error
    require_bounded(value)
    return value


def parse_object(data: bytes) -> dict[str, Any]:
    """The same, of an object."""
    value = parse_json(data)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    return value


def require_bounded(value: Any, max_values: int = MAX_VALUES) -> None:
    """Raise if a value is nested too deeply or has too many parts; parts that are shared count each time."""
    stack, seen = [(value, 1)], 0
    while stack:
        one, depth = stack.pop()
        parts = one.values() if isinstance(one, dict) else one
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        if isinstance(one, dict | list):
            seen += len(one)
            if seen > max_values:
                raise ValueError(f"more than {max_values:,} values")
            stack.extend((part, depth + 1) for part in parts if isinstance(part, dict | list))


def _open_regular(path: Path) -> BinaryIO:
    _require_regular(os.lstat(path).st_mode)  # opening a device may already do something
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    try:
        _require_regular(os.fstat(descriptor).st_mode)
    except OSError:
        file.close()
        raise
    return file


def _size_within(file: BinaryIO, default_limit: int) -> int:
    size, limit = os.fstat(file.fileno()).st_size, size_limit(default_limit)
    if size > limit:
        raise OSError(errno.EFBIG, f"it has {size:,} bytes, expected at most {limit:,} ({LIMIT_VARIABLE} sets this)")
    return size


def _require_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.ELOOP, f"expected a regular file, got {kind_of(mode)}")


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        repeated = next(key for key in found if sum(key == other for other, _ in pairs) > 1)
        raise ValueError(f"the key {repeated!r} is there more than once")
    return found
