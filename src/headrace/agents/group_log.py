"""Which groups are done, on disk: a line for each, written when it finished. A run that comes back goes on from it.

    groups.jsonl: header {"format": 2, "identity": ...}, then one encoded group a line; the last line of a number counts

A group that failed is played again by a run that comes back, until it was played `limits.plays` times; then it stays
failed. The number of its lines says how often it was. Killed in the middle of a line, the line does not count: the
group is played again, with the same seeds. A log of another run (other seed, environments, rules or tokens) is
refused, and so is a second program on the same one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from headrace.agents.codec import describe
from headrace.agents.engines.protocol import Engine
from headrace.agents.plan import GroupPlan
from headrace.agents.records import FAILED, Group, decode, encode
from headrace.errors import UsageError
from headrace.files import MAX_JSON_BYTES, parse_json, read_lines, require_no_links
from headrace.run_lock import RunLock

FILE = "groups.jsonl"
FORMAT = 2
MAX_GROUPS_BYTES = 2 << 30

logger = logging.getLogger(__name__)


class GroupLog:
    """One file, open for appending."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.path = folder / FILE
        self.groups: dict[int, Group] = {}  # done before
        self._plays: Counter[int] = Counter()  # lines of each number
        try:
            folder.mkdir(parents=True, exist_ok=True)
            require_no_links(folder, [FILE])
            self._file = self.path.open("ab")
        except OSError as error:
            raise UsageError(f"run directory {folder}: {error.strerror}; choose another") from error
        try:
            self._lock = RunLock.take(folder, FILE)
        except BaseException:
            self._file.close()
            raise
        try:
            size = self._read(identity) if self.path.stat().st_size else 0
            self._file.truncate(size)
            if not size:
                self._write({"format": FORMAT, "identity": identity})
        except BaseException:
            self.close()
            raise

    def add(self, group: Group) -> None:
        """A group is done."""
        self._write(encode(group))
        self._plays[group.number] += 1
        if group.number in self.groups:
            self.groups[group.number] = group

    def kept(self, most_plays: int) -> dict[int, Group]:
        """Groups that are not played again: those with a result, and those that failed too often."""
        kept = {}
        for number, group in self.groups.items():
            plays = self._plays[number]
            if group.status == FAILED and plays < most_plays:
                logger.info(
                    *_told("group %d failed before (%s; play %d of %d): it is played again", group, plays, most_plays)
                )
                continue
            if group.status == FAILED:
                logger.warning(*_told("group %d stays failed (%s; play %d of %d)", group, plays, most_plays))
            kept[number] = group
        return kept

    def close(self) -> None:
        """No more."""
        self._file.close()
        self._lock.release()

    def _write(self, data: dict[str, Any]) -> None:
        self._file.write(_line(data))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self, identity: dict[str, Any]) -> int:
        """Take over what is whole; returns how many bytes that is."""
        try:
            lines = list(_lines(self.path))
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.path}: can't be read: {error}; choose another directory") from error
        torn = _line({"format": FORMAT, "identity": identity})
        if not lines and not torn.startswith(_beginning(self.path)):
            raise UsageError(f"{self.path}: expected a log of groups, got something else; choose another directory")
        size = 0
        for number, line in enumerate(lines):
            try:
                data = parse_json(line)
                group = None if number == 0 else decode(data)
                hash(None if group is None else group.number)
            except (ValueError, KeyError, TypeError) as error:
                if 0 < number == len(lines) - 1:
                    break  # torn: its group was never handed over
                raise UsageError(
                    f"{self.path}, line {number + 1}: can't be read ({type(error).__name__}); take it out, and its "
                    f"group is played again, or choose another directory"
                ) from error
            if group is None:
                _require_format(self.path, data)
                _require_same(self.path, data.get("identity") if isinstance(data, dict) else None, identity)
            else:
                self.groups[group.number] = group
                self._plays[group.number] += 1
            size += len(line)
        return size


def read_groups(path: Path) -> list[Group]:
    """The groups of a log, in the order of their numbers."""
    try:
        groups = [decode(parse_json(line)) for line in islice(_lines(path.resolve()), 1, None)]
        return sorted({group.number: group for group in groups}.values(), key=lambda group: group.number)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: expected the groups.jsonl of a rollout: {type(error).__name__}: {error}") from error


_LATER: dict[str, tuple[Any, ...]] = {"answers": ("tags",), "top_p": (1,), "top_k": (0, -1)}


def identity_of(plan: GroupPlan, engine: Engine) -> dict[str, Any]:
    """What a log must agree with to be a run's: whatever its groups are a function of, but the weights."""
    codec = json.dumps(describe(engine.codec), sort_keys=True)
    return {
        "seed": plan.seed,
        "group_size": plan.group_size,
        "n_groups": list(plan.n_groups),
        "envs": [[spec.tag, _name_of(spec.factory), _plain(spec.options), _plain(spec.limits)] for spec in plan.envs],
        # Logs that were written before there were these rules are still those of runs without them.
        "rules": {name: one for name, one in vars(plan.rules).items() if one not in _LATER.get(name, ())},
        "codec": hashlib.sha256(codec.encode()).hexdigest()[:16],
        "is_text_only": engine.is_text_only,
    }


def _name_of(factory: Callable[..., Any]) -> str:
    """A class by its module and name; of what an adapter wraps, the inside."""
    while isinstance(factory, partial):
        factory = factory.args[0] if factory.args and callable(factory.args[0]) else factory.func
    return f"{getattr(factory, '__module__', '')}:{getattr(factory, '__qualname__', type(factory).__qualname__)}"


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, (int, float, str, bool, type(None))) else repr(value)
            for name, value in options.items()}  # fmt: skip


def _line(data: dict[str, Any]) -> bytes:
    return json.dumps(data).encode() + b"\n"


def _lines(path: Path) -> Iterator[bytes]:
    return (line for line in read_lines(path, MAX_JSON_BYTES, MAX_GROUPS_BYTES) if line.endswith(b"\n"))


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(12)


def _told(text: str, group: Group, plays: int, most_plays: int) -> tuple[str, int, str, int, int]:
    failure = group.failures[0]
    return text, group.number, f"{failure.boundary}: {failure.message}", plays, most_plays


def _require_format(path: Path, header: object) -> None:
    """Logs before format 2 had no number, and the same lines."""
    number = header.get("format", 1) if isinstance(header, dict) else 1
    if type(number) is not int or not 1 <= number <= FORMAT:
        raise UsageError(f"{path}: its format is {number!r}, this version reads 1 to {FORMAT}; use a newer headrace")


def _require_same(path: Path, theirs: object, ours: dict[str, Any]) -> None:
    if not isinstance(theirs, dict):
        raise UsageError(f"{path}: expected a log of groups, got something else; choose another directory")
    for name, value in ours.items():
        if theirs.get(name) != value:
            raise UsageError(
                f"{path}: its {name} is {theirs.get(name)!r}, this run's is {value!r}; resume with the same settings "
                f"or choose another directory"
            )
