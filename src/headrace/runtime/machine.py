"""What this machine offers a run, read and not judged: Machine, a frozen set of plain numbers.

    /dev/shm · cores and control groups · thread variables · ulimits · clock · memory ──read_machine──> Machine

Reading takes about 30 ms, most of it for the clock. What can't be read is None. `planning/machine.py` judges.
"""

from __future__ import annotations

import os
import resource
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from headrace.clock import now_ns
from headrace.memory.segment import DIRECTORY
from headrace.runtime.cgroup import Grant, grant

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_LIMITS = {
    "open_files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "address_space_bytes": resource.RLIMIT_AS,
    "file_size_bytes": resource.RLIMIT_FSIZE,
}
_READINGS, _ROUNDS, _LOOKS, _PAUSE_S = 400, 10, 50, 0.02


@dataclass(frozen=True)
class SharedMemory:
    """The directory of segments."""

    directory: str
    size_bytes: int
    free_bytes: int
    refusal: str
    """Why a segment can't be made there; empty if it can."""


@dataclass(frozen=True)
class Clock:
    """How the clock of all measurements behaves."""

    backward_steps: int
    """Readings that were smaller than the one before."""
    step_ns: int
    """The smallest difference of two readings that was seen; 0: it stood still."""
    reading_ns: float
    """What one reading costs, in the quickest of several rounds: other programs make single ones slow."""
    rate: float
    """Against the kernel's raw clock: 1 if both agree."""
    source: str
    """tsc, hpet ...; empty if unknown."""


@dataclass(frozen=True)
class Machine:
    """Everything that `planning/machine.py` judges."""

    shared_memory: SharedMemory
    cores_seen: int
    cores_allowed: int
    """By affinity (taskset, cpusets)."""
    load: float
    """Processes that want a core, mean of a minute."""
    granted: Grant
    thread_variables: Mapping[str, str]
    limits: Mapping[str, int | None]
    """Soft limits; None: unlimited. `processes` is None for root, whom the kernel does not limit."""
    user_processes: int
    """Processes and threads that this user has now."""
    clock: Clock
    memory_available_bytes: int | None


def read_machine(
    directory: Path = DIRECTORY, root: Path = Path("/"), environment: Mapping[str, str] = os.environ
) -> Machine:
    """Look at this machine. `directory` is where segments go; `root` is where /proc and /sys are."""
    limits: dict[str, int | None] = {name: _limit(number) for name, number in _LIMITS.items()}
    if os.geteuid() == 0:
        limits["processes"] = None
    return Machine(
        shared_memory(directory),
        os.cpu_count() or 1,
        len(os.sched_getaffinity(0)),
        os.getloadavg()[0],
        grant(root),
        {name: environment[name] for name in THREAD_VARIABLES if name in environment},
        limits,
        _user_processes(root),
        look_at_clock(root=root),
        available_bytes(root),
    )


def shared_memory(directory: Path) -> SharedMemory:
    """Size, room, and whether a file can be made and reserved there, by making one."""
    try:
        whole = os.statvfs(directory)
    except OSError as error:
        return SharedMemory(str(directory), 0, 0, error.strerror or str(error))
    size, free = whole.f_blocks * whole.f_frsize, whole.f_bavail * whole.f_frsize
    path, refusal = directory / f"headrace-doctor-{secrets.token_hex(8)}", ""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return SharedMemory(str(directory), size, free, error.strerror or str(error))
    try:
        os.unlink(path)  # first: a kill leaves nothing
        os.posix_fallocate(descriptor, 0, resource.getpagesize())
    except OSError as error:
        refusal = error.strerror or str(error)
    finally:
        os.close(descriptor)
    return SharedMemory(str(directory), size, free, refusal)


def look_at_clock(
    read_ns: Callable[[], int] = now_ns,
    raw_ns: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW),
    pause: Callable[[float], None] = time.sleep,
    root: Path = Path("/"),
) -> Clock:
    """Read the clock many times, and once more after a pause, beside another one."""
    first = _both(read_ns, raw_ns)
    readings: list[int] = []
    spent_ns: list[int] = []
    for _ in range(_ROUNDS):
        started_ns = raw_ns()
        readings += [read_ns() for _ in range(_READINGS)]
        spent_ns.append(raw_ns() - started_ns)
    pause(_PAUSE_S)
    last = _both(read_ns, raw_ns)
    steps = [after - before for before, after in pairwise(readings)]
    try:
        source = (root / "sys/devices/system/clocksource/clocksource0/current_clocksource").read_text().strip()
    except OSError:
        source = ""
    elapsed_ns = last[1] - first[1]
    return Clock(
        sum(step < 0 for step in steps),
        min((step for step in steps if step > 0), default=0),
        min(spent_ns) / _READINGS,
        (last[0] - first[0]) / elapsed_ns if elapsed_ns > 0 else 0.0,
        source,
    )


def _both(read_ns: Callable[[], int], raw_ns: Callable[[], int]) -> tuple[float, float]:
    """Both clocks at one moment: of many tries the one between whose readings the least time passed."""
    tries = []
    for _ in range(_LOOKS):
        before, own, after = raw_ns(), read_ns(), raw_ns()
        tries.append((after - before, own, (before + after) / 2))
    _, own, other = min(tries)
    return own, other


def available_bytes(root: Path) -> int | None:
    """What could be had without swapping, the page cache included, whatever a container grants."""
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _limit(number: int) -> int | None:
    soft, _ = resource.getrlimit(number)
    return None if soft == resource.RLIM_INFINITY else soft


def _user_processes(root: Path) -> int:
    """Threads count as well: the limit does not tell them apart."""
    count = 0
    for folder in (root / "proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid == os.getuid():
                count += sum(1 for _ in (folder / "task").iterdir())
        except OSError:  # it has ended meanwhile
            continue
    return count
