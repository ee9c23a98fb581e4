"""What a container grants: CPU time, memory and processes, from the control groups that this process is in.

    /proc/self/cgroup ──> its groups and all above them, v2 or v1 ──> Grant: the tightest of each, None: no limit

A container shows all cores of the machine, and its quota says how many it grants. Limits are read wherever they can be
seen: inside a container the group's own path is often not there, but its files are at the top. Does not judge.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_NO_LIMIT = 1 << 60  # v1 writes a number near 2^63 where v2 writes "max"


@dataclass(frozen=True)
class Grant:
    """What is left to take, as far as it is limited."""

    cores: float | None = None
    memory_left_bytes: int | None = None
    processes_left: int | None = None


def grant(root: Path = Path("/")) -> Grant:
    """The tightest limits of all groups above this process."""
    cores, memory, processes = [], [], []
    for folder in _folders(root):
        cores += [_quota(folder)]
        memory += [
            _left(folder, "memory.max", "memory.current", "inactive_file"),
            _left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ]
        processes += [_left(folder, "pids.max", "pids.current", "")]
    return Grant(
        min((one for one in cores if one is not None), default=None),
        min((one for one in memory if one is not None), default=None),
        min((one for one in processes if one is not None), default=None),
    )


def _folders(root: Path) -> list[Path]:
    """Folders of the groups that count, from the process's own up to the top, of every hierarchy."""
    top = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: dict[Path, None] = {}
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        below = PurePosixPath(path.lstrip("/"))
        for hierarchy in (top / controllers,) if controllers else (top, top / "unified"):
            for part in (below, *below.parents):
                if ".." not in part.parts:  # a group outside of what this process can see
                    found[hierarchy / part] = None
    return [folder for folder in found if folder.is_dir()]


def _quota(folder: Path) -> float | None:
    """Cores' worth of CPU time."""
    words = _words(folder / "cpu.max")  # v2: quota period
    if not words:
        words = _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
    if len(words) != 2:
        return None
    quota, period = _whole(words[0]), _whole(words[1])
    return quota / period if quota is not None and period and quota > 0 else None


def _left(folder: Path, limit_file: str, usage_file: str, reclaimable: str) -> int | None:
    """Limit less usage; of memory, the page cache that the kernel would give back is not counted as used."""
    limit, used = (_whole("".join(_words(folder / name))) for name in (limit_file, usage_file))
    if limit is None or used is None or limit >= _NO_LIMIT:
        return None
    if reclaimable:
        words = _words(folder / "memory.stat")
        counts = dict(zip(words[::2], words[1::2], strict=False))
        used -= min(used, _whole(counts.get(reclaimable, "")) or 0)
    return max(0, limit - used)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
