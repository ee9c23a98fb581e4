"""Segments in /dev/shm whose owner is dead: found, and removed if the user asks for it.

    entries of /dev/shm --sightings--> Sighting: name, bytes, standing     --remove--> the orphans alone are gone

A segment is an orphan only if all of this holds; everything else stays, whatever it looks like:

    its name has our form, with an owner in it      other programs' are not looked at
    it is a regular file of the user who asks       no link, no directory, no other user's
    that very process does not run any more         process id and start: one that was given again does not count
    nobody holds it                                 every process that maps a segment holds a shared lock on its file

The lock is the kernel's own word and reaches across containers that share /dev/shm, where process ids do not.
Does not know why an owner died: as a rule the resource tracker removes its segments, and it was killed as well.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.memory.owner import Owner, owner_in
from headrace.memory.segment import DIRECTORY, PREFIX

Standing = Literal["orphan", "live", "held", "foreign", "unknown"]

_FORM = re.compile(rf"{PREFIX}\d+-\d+-[0-9a-f]{{16}}")
_EARLIER_FORM = re.compile(rf"{PREFIX}\d+-[0-9a-f]{{16}}")  # without the start of its owner: nobody can judge it


@dataclass(frozen=True)
class Sighting:
    """One entry whose name has our form."""

    name: str
    size_bytes: int
    standing: Standing
    """orphan · live: its owner runs · held: its owner is gone, but a process has it open · foreign: another user's, or
    no regular file · unknown: it could not be opened, or its name does not say enough."""


def sightings(directory: Path = DIRECTORY, is_alive: Callable[[Owner], bool] = Owner.is_alive) -> list[Sighting]:
    """Every segment of headrace's that is there, by name. A directory that can't be listed has none to show."""
    try:
        names = sorted(name for name in os.listdir(directory) if _FORM.fullmatch(name) or _EARLIER_FORM.fullmatch(name))
    except OSError:
        return []
    seen = [_seen(directory, name, is_alive, is_to_go=False) for name in names]
    return [one for one in seen if one is not None]


def remove_orphans(directory: Path = DIRECTORY, is_alive: Callable[[Owner], bool] = Owner.is_alive) -> list[Sighting]:
    """Remove what is an orphan at this moment; returns what was removed."""
    gone = [
        _seen(directory, one.name, is_alive, is_to_go=True)
        for one in sightings(directory, is_alive)
        if one.standing == "orphan"
    ]
    return [one for one in gone if one is not None and one.standing == "orphan"]


def _seen(directory: Path, name: str, is_alive: Callable[[Owner], bool], is_to_go: bool) -> Sighting | None:
    path = directory / name
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None  # its owner has removed it meanwhile
    except OSError:
        return Sighting(name, 0, "unknown")
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return Sighting(name, found.st_size, "foreign")
    owner = owner_in(name, PREFIX) if _FORM.fullmatch(name) else None
    if owner is None:
        return Sighting(name, found.st_size, "unknown")
    if is_alive(owner):
        return Sighting(name, found.st_size, "live")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError:
        return Sighting(name, found.st_size, "unknown")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_to_go and os.path.samestat(os.fstat(descriptor), os.lstat(path)):
            os.unlink(path)
        return Sighting(name, found.st_size, "orphan")
    except BlockingIOError:
        return Sighting(name, found.st_size, "held")
    except OSError:  # the name is gone meanwhile, or may not be removed
        return Sighting(name, found.st_size, "unknown")
    finally:
        os.close(descriptor)
