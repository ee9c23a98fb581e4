"""After every test: no process, no shared-memory entry, no thread and no file descriptor is left behind.

    take stock ──> test ──> take stock ──(equal: done)──> gc, wait up to GRACE_S ──(still more than before)──> error

Typical cost: some tenths of a millisecond. The slow path (garbage collection, waiting) runs only when the two differ in
something of ours: support/belongings.py knows what is ours and what is another program's. What a module- or
session-scoped fixture holds was there before and is not a leak. Each worker of pytest-xdist looks after its own tests.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator

import pytest

from support.belongings import Held, describe, keep_book, reap_adopted_orphans, take_stock

# The key that proves who wrote a checkpoint: the tests' own, so that none of them writes to a user's home.
_KEYS = tempfile.mkdtemp(prefix="headrace-tests-")
os.environ["HEADRACE_KEY_FILE"] = os.path.join(_KEYS, "key")
atexit.register(shutil.rmtree, _KEYS, ignore_errors=True)

# torch's threads wait for each other by spinning. On busy cores, as when tests run side by side, that keeps the thread
# that is waited for off its core: it took ten times as long. Read when torch is loaded, here and by all that we start.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else onnxruntime keeps files of its own open

# Started in the background by a shell (`make test &`), everything ignores Ctrl-C, and all that we start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

GRACE_S = 5.0  # what is already on its way out may take this long, also on a busy machine
POLL_S = 0.01

PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(scope="session", autouse=True)
def whose_is_what() -> None:
    """Before the first test, and in a worker of pytest-xdist rather than in its controller.

    Orphans come to us instead of going to init: a worker that outlives its killed parent is then seen as ours.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    keep_book()


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    before = take_stock()
    yield
    left = take_stock().more_than(before)
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
        left = take_stock().more_than(before)
        if failed:  # the traceback of a failed test keeps its objects, and so their descriptors, alive: no news
            left = Held(left.processes, left.threads, left.shared_memory, descriptors=frozenset())
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(POLL_S)


CALL_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.when == "call":
        item.stash[CALL_FAILED] = report.failed
    # What was logged may hold lone surrogates, on purpose; pytest-xdist could not send them and would end the session.
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


def kill(pids: frozenset[int]) -> None:
    """A leaked process must not disturb the tests after this one."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
