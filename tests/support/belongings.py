"""What the tests of this process hold, and whose an entry of /dev/shm is.

    take_stock() ──> Held: processes, threads, shared memory, descriptors
    Held.more_than(earlier)   what came since, without the shared memory of other programs

Processes, threads and descriptors of ours are found by looking. /dev/shm belongs to the whole machine: other programs,
and other test runs, make and remove entries there all the time. An entry is ours if

    its name has the id of a process of ours, running or ended     headrace, loky, joblib, torch, multiprocessing's heap
    or a process of ours has it open or mapped                     whatever its name
    or it was registered with our resource tracker                 psm_..., also if its maker was killed

Every other entry is another program's, and so is a name with the id of a running process that is not ours. Ours are
this process and its descendants. /proc lists those that run; those that ended were noted when we started them, before
we killed anything, and whenever stock was taken. What escapes: an entry without an id in its name, made by a program
with a resource tracker of its own and killed together with that tracker. headrace makes no such entry.

Does not know pytest. Linux only: it reads /proc.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver, process, resource_tracker
from typing import Any

SHARED_MEMORY = "/dev/shm"
NAME_WITH_PID = re.compile(r"(?:headrace-|sem\.loky-|joblib_memmapping_folder_|torch_|pym-)(\d+)[-_]")

# Opened by a library on first use and kept for reuse: random bytes, a GPU, selectors (a leaked event loop still shows
# by its sockets), the heap behind multiprocessing.Array (Gymnasium's AsyncVectorEnv), the font files of matplotlib.
KEPT_PREFIXES = ("/dev/urandom", "/dev/nvidia", "anon_inode:[eventpoll]", "/dev/shm/pym-")
KEPT_SUFFIXES = (".ttf",)


@dataclass(frozen=True)
class Held:
    """What this process holds at one moment; the difference of two is what a test left."""

    processes: frozenset[int]
    threads: frozenset[threading.Thread]
    shared_memory: frozenset[str]
    descriptors: frozenset[tuple[int, str]]

    def more_than(self, earlier: Held) -> Held:
        return Held(
            self.processes - earlier.processes,
            self.threads - earlier.threads,
            only_ours(self.shared_memory - earlier.shared_memory),
            self.descriptors - earlier.descriptors,
        )

    def __bool__(self) -> bool:
        return bool(self.processes or self.threads or self.shared_memory or self.descriptors)


def take_stock() -> Held:
    running = frozenset(descendants(os.getpid()))
    _pids_of_ours.update(running)
    return Held(
        processes=running - helper_processes(),
        # A _DummyThread stands for a native thread (torch's autograd, for instance) that once called into Python.
        threads=frozenset(t for t in threading.enumerate() if not isinstance(t, threading._DummyThread)),
        shared_memory=frozenset(os.listdir(SHARED_MEMORY)),
        descriptors=open_descriptors(),
    )


# ------------------------------------------------------------------------------------------- whose shared memory


_pids_of_ours: set[int] = set()
_log_of_tracker: int | None = None  # a descriptor
_tee_pid: int | None = None
_probes = itertools.count(1)


def keep_book() -> None:
    """From now on, note every process that is started or killed here, and every name that the resource tracker gets."""
    _pids_of_ours.add(os.getpid())
    _wrap(subprocess.Popen, "__init__", after=lambda popen, *_: _pids_of_ours.add(popen.pid))
    _wrap(process.BaseProcess, "start", after=lambda started, *_: _pids_of_ours.add(started.pid))
    # A program that we started may have started others. Killed together, they may be gone before anybody looks again.
    for name in ("kill", "killpg"):
        _wrap(os, name, before=lambda *_: _pids_of_ours.update(descendants(os.getpid())))
    _copy_what_the_tracker_hears()


def _wrap(
    owner: Any, name: str, before: Callable[..., Any] | None = None, after: Callable[..., Any] | None = None
) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        if before is not None:
            before(*arguments)
        result = original(*arguments, **options)
        if after is not None:
            after(*arguments)
        return result

    setattr(owner, name, wrapped)


def _copy_what_the_tracker_hears() -> None:
    """Put tee(1) before the resource tracker: what multiprocessing starts for us writes to the same pipe as we do."""
    global _log_of_tracker, _tee_pid
    tracker = resource_tracker._resource_tracker
    tracker.ensure_running()
    with tempfile.TemporaryFile() as log:
        _log_of_tracker = os.dup(log.fileno())  # it has no name: nothing to remove, however we end
    read, write = os.pipe()
    wiring = [(os.POSIX_SPAWN_DUP2, old, new) for old, new in ((read, 0), (tracker._fd, 1), (_log_of_tracker, 3))]
    _tee_pid = os.posix_spawnp(
        "tee", ["tee", "/proc/self/fd/3"], os.environ, file_actions=wiring, setsigmask=[signal.SIGINT, signal.SIGTERM]
    )
    os.close(read)
    os.close(tracker._fd)
    tracker._fd = write


def only_ours(names: frozenset[str]) -> frozenset[str]:
    """Those entries of /dev/shm that one of our processes made or uses."""
    if not names:
        return names
    family = {os.getpid(), *descendants(os.getpid())}
    return frozenset(name for name in names if _is_ours(name, family))


def _is_ours(name: str, family: set[int]) -> bool:
    named = NAME_WITH_PID.match(name)
    if named is not None:
        pid = int(named[1])
        if pid in family:
            return True
        if os.path.exists(f"/proc/{pid}"):
            return False  # also if the number was one of ours before
        if pid in _pids_of_ours:
            return True
    return any(_uses(pid, f"{SHARED_MEMORY}/{name}") for pid in family) or name in _registered()


def _uses(pid: int, path: str) -> bool:
    try:
        with open(f"/proc/{pid}/maps") as maps:
            if any(line.rstrip().endswith(path) for line in maps):
                return True
        return any(os.readlink(f"/proc/{pid}/fd/{fd}") == path for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False  # ended meanwhile


def _registered() -> set[str]:
    """Entries of /dev/shm that our resource tracker was ever given."""
    found = set()
    for line in _heard_by_tracker():
        command, _, named = line.partition(":")
        name, _, kind = named.rpartition(":")
        if command == "REGISTER":
            found.add(("sem." if kind == "semaphore" else "") + name.removeprefix("/"))
    return found


def _heard_by_tracker() -> list[str]:
    """Its copy up to now: what is still in the pipe when we ask is waited for, by a line of our own at its end."""
    assert _log_of_tracker is not None, "keep_book() comes first"
    last_line = f"PROBE:{next(_probes)}:noop\n"  # the tracker takes no notice of it
    os.write(resource_tracker._resource_tracker._fd, last_line.encode())
    deadline = time.monotonic() + 30.0
    while True:
        log = os.pread(_log_of_tracker, os.fstat(_log_of_tracker).st_size, 0).decode("ascii")
        if last_line in log:
            return log.splitlines()
        assert time.monotonic() < deadline, "the resource tracker, or the tee before it, is gone"
        time.sleep(0.001)


# --------------------------------------------------------------------------------------- processes and descriptors


def descendants(pid: int) -> Iterator[int]:
    """Children of every thread of `pid`, and theirs: workers of a forkserver are our grandchildren."""
    try:
        thread_ids = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return  # gone meanwhile
    for thread_id in thread_ids:
        try:
            with open(f"/proc/{pid}/task/{thread_id}/children") as listing:
                children = [int(child) for child in listing.read().split()]
        except OSError:
            continue
        for child in children:
            yield child
            yield from descendants(child)


def helper_processes() -> set[int]:
    """multiprocessing's own helpers, and ours: started on first use, they live as long as we do."""
    multiprocessings = (resource_tracker._resource_tracker._pid, forkserver._forkserver._forkserver_pid)
    own = [server.pid for server in _fork_servers()]
    return {pid for pid in (*multiprocessings, *own, _lokys_tracker()._pid, _tee_pid) if pid is not None}


def _fork_servers() -> list[Any]:
    """headrace's own: they outlive a run, as multiprocessing's does."""
    module: Any = sys.modules.get("headrace.runtime.fork_server")
    servers = () if module is None else module._servers.values()
    return [one._server for one in servers if one._server is not None]


def _lokys_tracker() -> resource_tracker.ResourceTracker:
    """joblib's loky has a tracker of its own, once it was used."""
    module = sys.modules.get("joblib.externals.loky.backend.resource_tracker")
    tracker: resource_tracker.ResourceTracker = (module or resource_tracker)._resource_tracker
    return tracker


def open_descriptors() -> frozenset[tuple[int, str]]:
    # 0, 1 and 2 belong to pytest's capture.
    ignored = {0, 1, 2, resource_tracker._resource_tracker._fd, forkserver._forkserver._forkserver_alive_fd}
    ignored.add(_lokys_tracker()._fd)
    for server in _fork_servers():
        ends = (server.line.connection, server._life.read_end, server._life._write_end)
        ignored |= {server.sentinel, *(end.fileno() for end in ends if not end.closed)}
        ignored |= {fd for one in process._children if one.pid == server.pid for fd in one._popen.finalizer._args}
    found = set()
    for name in os.listdir("/proc/self/fd"):
        if int(name) in ignored:
            continue
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the descriptor that listed the directory
        if not target.startswith(KEPT_PREFIXES) and not target.endswith(KEPT_SUFFIXES):
            found.add((int(name), target))
    return frozenset(found)


def reap_adopted_orphans(before: Held) -> None:
    """An exited orphan that came to us has nobody else to reap it; an unreaped child of our own is a leak."""
    zombies = {pid for pid in descendants(os.getpid()) if _is_zombie_child(pid)} - before.processes
    if not zombies:
        return
    started_by_us = {popen.pid for popen in gc.get_objects() if issubclass(type(popen), subprocess.Popen)}
    started_by_us |= {child.pid for child in process._children}
    for pid in zombies - started_by_us:
        os.waitpid(pid, os.WNOHANG)


def _is_zombie_child(pid: int) -> bool:
    fields = _status(pid)
    return fields.get("State", "").startswith("Z") and fields.get("PPid") == str(os.getpid())


def _status(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/status") as lines:
            return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    except OSError:
        return {}


# -------------------------------------------------------------------------------------------------------- in words


def describe(left: Held) -> list[str]:
    lines = []
    for pid in sorted(left.processes):
        state = _status(pid).get("State", "gone")
        note = ", exited but never reaped" if state.startswith("Z") else ", killed now"
        lines.append(f"process {pid} ({_command_of(pid)}), state {state}{note}")
    lines += [
        f"thread {thread.name!r}, {'daemon, ' if thread.daemon else ''}{type(thread).__qualname__}"
        for thread in sorted(left.threads, key=lambda thread: thread.name)
    ]
    lines += [f"shared memory {SHARED_MEMORY}/{name}" for name in sorted(left.shared_memory)]
    lines += [f"file descriptor {fd} -> {target}" for fd, target in sorted(left.descriptors)]
    return lines


def _command_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as cmdline:
            words = cmdline.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        words = ""
    return words[:200] or _status(pid).get("Name", "unknown")
