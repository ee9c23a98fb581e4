"""Which groups are done, on disk: a line for each, written when it finished. A run that comes back goes on from it.

    groups.jsonl: header {"identity": ...}, then one encoded group a line

Killed in the middle of a line, the line does not count: the group is played again, with the same seeds. A journal of
another run (other seed, environments or rules) is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.agents.records import Group, decode, encode
from headrace.errors import UsageError


class Journal:
    """One file, open for appending."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path = path
        self.groups: dict[int, Group] = {}  # done before
        path.parent.mkdir(parents=True, exist_ok=True)
        size = self._read(identity) if path.exists() and path.stat().st_size else 0
        self._file = path.open("ab")
        self._file.truncate(size)
        if not size:
            self._write({"identity": identity})

    def add(self, group: Group) -> None:
        """A group is done."""
        self._write(encode(group))

    def close(self) -> None:
        """No more."""
        self._file.close()

    def _write(self, told: dict[str, Any]) -> None:
        self._file.write(json.dumps(told).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self, identity: dict[str, Any]) -> int:
        """Take over what is whole; returns how many bytes that is."""
        size = 0
        for number, line in enumerate(_lines(self.path)):
            try:
                told = json.loads(line)
                group = None if number == 0 else decode(told)
            except (ValueError, KeyError, TypeError):
                break  # torn in the middle: what comes after it was never told to anybody
            if group is None:
                _require_same(self.path, told.get("identity"), identity)
            else:
                self.groups[group.number] = group
            size += len(line)
        return size


def read_groups(path: Path) -> list[Group]:
    """The groups of a journal, in the order of their numbers."""
    try:
        lines = list(_lines(path))
        return sorted((decode(json.loads(line)) for line in lines[1:]), key=lambda group: group.number)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: expected the groups.jsonl of a rollout: {type(error).__name__}: {error}") from error


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


def _require_same(path: Path, theirs: object, ours: dict[str, Any]) -> None:
    if not isinstance(theirs, dict):
        raise UsageError(f"{path}: expected a journal of groups, got something else; choose another directory")
    for name, value in ours.items():
        if theirs.get(name) != value:
            raise UsageError(
                f"{path}: its {name} is {theirs.get(name)!r}, this run's is {value!r}; resume with the same settings "
                f"or choose another directory"
            )
