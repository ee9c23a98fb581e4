"""What is wrong with a machine: numbers in, findings out. Pure.

    Machine, segments in sight, folders left ──judge──> one Finding for each matter, with a level and what to do

    problem   a run fails, or nearly so       warning   a run is slower or smaller than the machine looks       ok

The numbers behind the borders are of runs that were measured: beside the learner's process, which maps 1.1 GB, there
are a fork server, a resource tracker and a spare; a worker takes 4 open files of the learner's, and 270 MB with torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.memory.orphans import Sighting
from headrace.planning.finding import Finding
from headrace.planning.quantities import with_unit
from headrace.runtime.machine import Clock, Machine, SharedMemory

_MB, _GB = 10**6, 10**9
_SHM_LEAST, _SHM_IMAGES = 8 * _MB, 128 * _MB  # a small run · 8 environments x 128 steps of 84x84x4, three rollouts
_MEMORY_LEAST, _MEMORY_WORKER = 500 * _MB, 270 * _MB
_FILES_OWN, _FILES_WORKER = 64, 4
_PROCESSES_OWN = 8
_SPACE_LEAST, _SPACE_ROOM = 2 * _GB, 8 * _GB
_STEP_NS, _READING_NS, _RATE = 1_000_000, 2_000.0, 0.01  # a clock's step, the cost of a reading, its error
_GRANTED = 0.9  # of the cores in sight: a quota below this is worth a word


def judge(
    machine: Machine, segments: Sequence[Sighting] = (), folders: Sequence[str] = (), needed_bytes: float = 0.0
) -> list[Finding]:
    """Every matter in turn. `needed_bytes` is the shared memory that a run will ask for, 0 if that is not known."""
    cores = granted_cores(machine)
    return [
        _shared_memory(machine.shared_memory, needed_bytes),
        _cores(machine, cores),
        _load(machine, cores),
        _threads(machine, cores),
        _memory(machine, cores),
        _open_files(machine.limits["open_files"], cores),
        _processes(machine, cores),
        _address_space(machine.limits["address_space_bytes"]),
        _file_size(machine.limits["file_size_bytes"]),
        _clock(machine.clock),
        _segments(segments),
        _folders(folders),
    ]


def granted_cores(machine: Machine) -> float:
    """Cores' worth of time that this process gets: by affinity and by quota."""
    return min(machine.cores_allowed, machine.granted.cores or machine.cores_allowed)


def _shared_memory(shm: SharedMemory, needed_bytes: float) -> Finding:
    name = "shared memory"
    found = f"{shm.directory}: {with_unit(shm.free_bytes, 'B')} of {with_unit(shm.size_bytes, 'B')} free"
    numbers = {"size_bytes": shm.size_bytes, "free_bytes": shm.free_bytes, "needed_bytes": needed_bytes}
    larger = "enlarge it (docker run --shm-size=2g, or mount -o remount,size=2g /dev/shm)"
    if shm.refusal:
        advice = "worker processes can't be used: mount a tmpfs there that you may write to, or use --topology inline"
        return Finding(name, "problem", f"{shm.directory} can't be used: {shm.refusal}", advice, numbers)
    if shm.free_bytes < needed_bytes:
        advice = f"{larger}, or use fewer environments or steps"
        return Finding(name, "problem", f"{found}, {with_unit(needed_bytes, 'B')} needed", advice, numbers)
    if shm.free_bytes < _SHM_LEAST:
        return Finding(name, "problem", found, f"too little for most runs: {larger}", numbers)
    if not needed_bytes and shm.free_bytes < _SHM_IMAGES:
        advice = f"enough for small observations; for images {larger}. headrace plan prints the memory of rollouts"
        return Finding(name, "warning", found, advice, numbers)
    return Finding(name, "ok", found, "", numbers)


def _cores(machine: Machine, cores: float) -> Finding:
    seen, allowed = machine.cores_seen, machine.cores_allowed
    numbers = {"seen": seen, "allowed": allowed, "granted": cores}
    parts = [f"{seen:,} core{'s'[: seen > 1]}"]
    if allowed < seen:
        parts.append(f"this process may use {allowed:,} of them")
    if machine.granted.cores is not None and machine.granted.cores < allowed:
        parts.append(f"its container grants the time of {machine.granted.cores:.3g}")
    found = "; ".join(parts)
    if cores < _GRANTED * allowed:
        workers = max(1, int(cores))
        advice = (
            f"programs count {allowed:,} cores and get {cores:.3g}: use --workers {workers} at most and "
            f"OMP_NUM_THREADS={workers}, or raise the quota (docker run --cpus)"
        )
        return Finding("cores", "warning", found, advice, numbers)
    return Finding("cores", "ok", found, "", numbers)


def _load(machine: Machine, cores: float) -> Finding:
    found = f"{machine.load:.1f} processes wanted a core, in the mean of the last minute"
    numbers = {"load": machine.load, "granted": cores}
    if machine.load > machine.cores_seen:
        advice = "other programs share these cores: what is measured now (auto, plan, sweep) is too slow"
        return Finding("load", "warning", found, advice, numbers)
    return Finding("load", "ok", found, "", numbers)


def _threads(machine: Machine, cores: float) -> Finding:
    """BLAS and OpenMP in environments; headrace sets the threads of torch itself."""
    given = machine.thread_variables
    counts = {name: int(text) if text.isascii() and text.isdigit() else 0 for name, text in given.items()}
    numbers: dict[str, int] = counts | {"by_default": machine.cores_allowed}
    listed = ", ".join(f"{name}={given[name]}" for name in given)
    strange = [name for name, count in counts.items() if not 1 <= count <= 1 << 20]
    if strange:
        advice = f"set {strange[0]} to a whole number of at least 1, as in OMP_NUM_THREADS=1"
        return Finding("BLAS threads", "warning", listed, advice, numbers)
    most = max(counts.values(), default=machine.cores_allowed)
    found = (
        listed
        or f"OMP_NUM_THREADS is not set: BLAS in an environment takes {most} thread{'s'[: most > 1]} in each worker"
    )
    if most > max(1.0, cores / _GRANTED):
        advice = f"more threads than granted cores ({cores:.3g}) slow one another down: OMP_NUM_THREADS=1"
        return Finding("BLAS threads", "warning", found, advice, numbers)
    return Finding("BLAS threads", "ok", found, "", numbers)


def _memory(machine: Machine, cores: float) -> Finding:
    left = [one for one in (machine.memory_available_bytes, machine.granted.memory_left_bytes) if one is not None]
    if not left:
        return Finding("memory", "warning", "how much is available can't be read", "watch it while a run goes on")
    free = min(left)
    is_container = machine.granted.memory_left_bytes == free
    numbers = {"available_bytes": free, "machine_bytes": machine.memory_available_bytes}
    found = f"{with_unit(free, 'B')} available{' in this container' if is_container else ''}"
    if free < _MEMORY_LEAST:
        return Finding("memory", "problem", found, "a run takes about 500 MB: end other programs", numbers)
    room = (free - _MEMORY_LEAST) // _MEMORY_WORKER
    if room < cores:
        advice = f"a worker takes about 270 MB beside its environments: use --workers {max(1, room)} at most"
        return Finding("memory", "warning", found, advice, numbers)
    return Finding("memory", "ok", found, "", numbers)


def _open_files(limit: int | None, cores: float) -> Finding:
    name, numbers = "open files", {"limit": limit}
    if limit is None:
        return Finding(name, "ok", "no limit", "", numbers)
    needed, found = _FILES_OWN + _FILES_WORKER * int(cores), f"{limit:,} allowed (ulimit -n)"
    if limit < _FILES_OWN:
        return Finding(name, "problem", found, f"a run needs about {needed}: ulimit -n {max(1024, needed)}", numbers)
    if limit < needed:
        advice = f"a worker on every core needs about {needed:,}: ulimit -n {max(1024, needed)}"
        return Finding(name, "warning", found, advice, numbers)
    return Finding(name, "ok", found, "", numbers)


def _processes(machine: Machine, cores: float) -> Finding:
    limit, in_group = machine.limits["processes"], machine.granted.processes_left
    left = [] if limit is None else [max(0, limit - machine.user_processes)]
    left += [] if in_group is None else [in_group]
    numbers = {"limit": limit, "in_use": machine.user_processes, "left_in_container": in_group}
    if not left:
        return Finding("processes", "ok", "no limit", "", numbers)
    room, needed = min(left), _PROCESSES_OWN + int(cores)
    found = f"{room:,} more may be started (ulimit -u, and the container's limit)"
    raised = "ulimit -u, or docker run --pids-limit, raises the limit; threads count as well"
    if room < _PROCESSES_OWN:
        return Finding("processes", "problem", found, f"a run with workers starts {needed} or more: {raised}", numbers)
    if room < 2 * needed:
        return Finding("processes", "warning", found, f"environments may start some of their own: {raised}", numbers)
    return Finding("processes", "ok", found, "", numbers)


def _address_space(limit: int | None) -> Finding:
    name, numbers = "address space", {"limit_bytes": limit}
    if limit is None:
        return Finding(name, "ok", "no limit", "", numbers)
    found = f"{with_unit(limit, 'B')} a process (ulimit -v)"
    if limit < _SPACE_LEAST:
        return Finding(name, "problem", found, "torch and shared memory map more: ulimit -v unlimited", numbers)
    if limit < _SPACE_ROOM:
        return Finding(name, "warning", found, "large rollouts may not fit: ulimit -v unlimited", numbers)
    return Finding(name, "ok", found, "", numbers)


def _file_size(limit: int | None) -> Finding:
    """A segment is a file: this limit holds for shared memory as well."""
    if limit is None:
        return Finding("file size", "ok", "no limit", "", {"limit_bytes": None})
    found, numbers = f"{with_unit(limit, 'B')} a file (ulimit -f)", {"limit_bytes": limit}
    if limit < _SHM_IMAGES:
        advice = "rollouts in shared memory, checkpoints and logs are cut off there: ulimit -f unlimited"
        return Finding("file size", "problem" if limit < _SHM_LEAST else "warning", found, advice, numbers)
    return Finding("file size", "ok", found, "", numbers)


def _clock(clock: Clock) -> Finding:
    source = f" ({clock.source})" if clock.source else ""
    found = f"steps of {clock.step_ns:,} ns, {clock.reading_ns:.0f} ns a reading, rate {clock.rate:.4f}{source}"
    numbers: dict[str, float | str] = {
        "backward_steps": clock.backward_steps,
        "step_ns": clock.step_ns,
        "reading_ns": clock.reading_ns,
        "rate": clock.rate,
        "source": clock.source,
    }
    if clock.backward_steps or not clock.step_ns:
        what = f"went back {clock.backward_steps} times" if clock.backward_steps else "stands still"
        advice = "no time that is measured here means anything, and waits may last for ever: restart the machine"
        return Finding("clock", "problem", f"the monotonic clock {what}; {found}", advice, numbers)
    if abs(clock.rate - 1) > _RATE or clock.step_ns > _STEP_NS:
        return Finding("clock", "warning", found, "measured times and rates are wrong by that much", numbers)
    if clock.reading_ns > _READING_NS:
        advice = "use the clock source tsc if the machine offers it"
        if clock.source == "tsc":  # there is no faster one
            advice = "look again while nothing else runs, or outside of a sandbox; tsc is the fastest source there is"
        advice = f"reading it costs time in every step: {advice}"
        return Finding("clock", "warning", found, advice, numbers)
    return Finding("clock", "ok", found, "", numbers)


def _segments(segments: Sequence[Sighting]) -> Finding:
    by = {kind: [one for one in segments if one.standing == kind] for kind in ("orphan", "live", "held", "unknown")}
    total = sum(one.size_bytes for one in by["orphan"])
    numbers = {kind: len(found) for kind, found in by.items()} | {"orphan_bytes": total}
    parts = []
    if by["orphan"]:
        parts.append(f"{len(by['orphan'])} of dead runs, {with_unit(total, 'B')}")
    if in_use := len(by["live"]) + len(by["held"]):
        parts.append(f"{in_use} in use")
    if by["unknown"]:
        parts.append(f"{len(by['unknown'])} that can't be judged (left alone)")
    found = f"shared memory of headrace's: {'; '.join(parts) or 'none'}"
    if by["orphan"]:
        return Finding("leftovers", "warning", found, "headrace doctor --clean removes those of dead runs", numbers)
    return Finding("leftovers", "ok", found, "", numbers)


def _folders(folders: Sequence[str]) -> Finding:
    if not folders:
        return Finding("folders", "ok", "no temporary folders of dead runs", "", {"left": 0})
    found = f"{len(folders)} temporary folder{'s'[: len(folders) > 1]} of dead runs, such as {folders[0]}"
    return Finding("folders", "warning", found, "they hold a socket: remove them (rm -r)", {"left": len(folders)})
