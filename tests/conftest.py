"""After every test: no process, no shared-memory entry, no thread and no file descriptor is left behind.

    snapshot ──> test ──> snapshot ──(equal: done)──> gc, wait up to GRACE_S ──(still more than before)──> error

Typical cost: some tenths of a millisecond. The slow path (garbage collection, waiting, finding out who holds what) runs
only when the two snapshots differ. What a module- or session-scoped fixture holds was there before and is not a leak.
Linux only: it reads /proc.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import forkserver, process, resource_tracker

import pytest

# The key that proves who wrote a checkpoint: the tests' own, so that none of them writes to a user's home.
os.environ["HEADRACE_KEY_FILE"] = os.path.join(tempfile.mkdtemp(prefix="headrace-tests-"), "key")

GRACE_S = 1.0  # what is already on its way out may take this long
POLL_S = 0.01

# Opened by a library on first use and kept for reuse: random bytes, a GPU, selectors (a leaked event loop still shows
# by its sockets), the heap behind multiprocessing.Array (Gymnasium's AsyncVectorEnv), the font files of matplotlib.
LOKYS_NAME = re.compile(r"(?:joblib_memmapping_folder_|sem\.loky-)(\d+)[_-]")
KEPT_PREFIXES = ("/dev/urandom", "/dev/nvidia", "anon_inode:[eventpoll]", "/dev/shm/pym-")
KEPT_SUFFIXES = (".ttf",)

PR_SET_CHILD_SUBREAPER = 36
# Orphans come to us instead of going to init: a worker that outlives its killed parent is then seen as ours.
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


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
            self.shared_memory - earlier.shared_memory,
            self.descriptors - earlier.descriptors,
        )

    def __bool__(self) -> bool:
        return bool(self.processes or self.threads or self.shared_memory or self.descriptors)


def snapshot() -> Held:
    return Held(
        processes=frozenset(descendants(os.getpid())) - helper_processes(),
        # A _DummyThread stands for a native thread (torch's autograd, for instance) that once called into Python.
        threads=frozenset(t for t in threading.enumerate() if not isinstance(t, threading._DummyThread)),
        shared_memory=frozenset(os.listdir("/dev/shm")),
        descriptors=open_descriptors(),
    )


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
    """multiprocessing's own helpers: started on first use, they live as long as we do."""
    pids = (resource_tracker._resource_tracker._pid, forkserver._forkserver._forkserver_pid, lokys_tracker()._pid)
    return {pid for pid in pids if pid is not None}


def lokys_tracker() -> resource_tracker.ResourceTracker:
    """joblib's loky has a tracker of its own, once it was used."""
    module = sys.modules.get("joblib.externals.loky.backend.resource_tracker")
    tracker: resource_tracker.ResourceTracker = (module or resource_tracker)._resource_tracker
    return tracker


def open_descriptors() -> frozenset[tuple[int, str]]:
    # 0, 1 and 2 belong to pytest's capture.
    ignored = {0, 1, 2, resource_tracker._resource_tracker._fd, forkserver._forkserver._forkserver_alive_fd}
    ignored.add(lokys_tracker()._fd)
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


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    before = snapshot()
    yield
    left = snapshot().more_than(before)
    if left:
        left = settle(before, failed=request.node.stash.get(CALL_FAILED, False))
    if left:
        lines = describe(left)
        kill(left.processes)
        pytest.fail("the test left behind:\n" + "\n".join(f"  - {line}" for line in lines), pytrace=False)


def settle(before: Held, *, failed: bool) -> Held:
    """What is still left once garbage is collected and the grace period is over."""
    gc.collect()
    deadline = time.monotonic() + GRACE_S
    while True:
        reap_adopted_orphans(before)
        left = snapshot().more_than(before)
        left = Held(
            left.processes,
            left.threads,
            shared_memory=frozenset(name for name in left.shared_memory if not held_by_stranger(name)),
            # The traceback of a failed test keeps its objects, and so their descriptors, alive: no news.
            descriptors=frozenset() if failed else left.descriptors,
        )
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(POLL_S)


CALL_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.when == "call":
        item.stash[CALL_FAILED] = report.failed
    return report


def reap_adopted_orphans(before: Held) -> None:
    """An exited orphan that came to us has nobody else to reap it; an unreaped child of our own is a leak."""
    zombies = {pid for pid in descendants(os.getpid()) if is_zombie_child(pid)} - before.processes
    if not zombies:
        return
    started_by_us = {popen.pid for popen in gc.get_objects() if issubclass(type(popen), subprocess.Popen)}
    started_by_us |= {child.pid for child in process._children}
    for pid in zombies - started_by_us:
        os.waitpid(pid, os.WNOHANG)


def is_zombie_child(pid: int) -> bool:
    fields = status(pid)
    return fields.get("State", "").startswith("Z") and fields.get("PPid") == str(os.getpid())


def held_by_stranger(name: str) -> bool:
    """/dev/shm belongs to the whole machine: an entry that only processes outside our tree use is another program's."""
    path = f"/dev/shm/{name}"
    family = {os.getpid(), *descendants(os.getpid())}
    users = {int(pid) for pid in os.listdir("/proc") if pid.isdigit() and uses(int(pid), path)}
    maker = LOKYS_NAME.match(name)  # loky writes its process id into the name, and need not keep the file open
    if maker is not None and os.path.exists(f"/proc/{maker[1]}"):
        users.add(int(maker[1]))
    return bool(users) and not users & family


def uses(pid: int, path: str) -> bool:
    try:
        with open(f"/proc/{pid}/maps") as maps:
            if any(line.rstrip().endswith(path) for line in maps):
                return True
        return any(os.readlink(f"/proc/{pid}/fd/{fd}") == path for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False  # gone, or not ours to look into


def status(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/status") as lines:
            return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    except OSError:
        return {}


def describe(left: Held) -> list[str]:
    lines = []
    for pid in sorted(left.processes):
        state = status(pid).get("State", "gone")
        note = ", exited but never reaped" if state.startswith("Z") else ", killed now"
        lines.append(f"process {pid} ({command_of(pid)}), state {state}{note}")
    lines += [
        f"thread {thread.name!r}, {'daemon, ' if thread.daemon else ''}{type(thread).__qualname__}"
        for thread in sorted(left.threads, key=lambda thread: thread.name)
    ]
    lines += [f"shared memory /dev/shm/{name}" for name in sorted(left.shared_memory)]
    lines += [f"file descriptor {fd} -> {target}" for fd, target in sorted(left.descriptors)]
    return lines


def command_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as cmdline:
            words = cmdline.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        words = ""
    return words[:200] or status(pid).get("Name", "unknown")


def kill(pids: frozenset[int]) -> None:
    """A leaked process must not disturb the tests after this one."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
