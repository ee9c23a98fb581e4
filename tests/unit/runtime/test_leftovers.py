"""Descendants are found whatever threads do meanwhile; resource trackers are left alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from headrace.runtime.leftovers import descendants


def test_children_of_a_thread_that_ends_are_found() -> None:
    """It hands them to another thread, which may have been looked at before."""
    missed = 0
    for _ in range(30):
        started: list[subprocess.Popen[bytes]] = []
        begun, may_end = threading.Event(), threading.Event()

        def starts(started: list[subprocess.Popen[bytes]], begun: threading.Event, may_end: threading.Event) -> None:
            started.append(subprocess.Popen(["sleep", "60"]))
            begun.set()
            may_end.wait()

        thread = threading.Thread(target=starts, args=(started, begun, may_end))
        thread.start()
        begun.wait()
        may_end.set()
        while thread.is_alive():
            missed += started[0].pid not in set(descendants(os.getpid()))
        thread.join()
        started[0].kill()
        started[0].wait()
    assert missed == 0


BOTH_TRACKERS = """
import subprocess
from multiprocessing import resource_tracker as pythons

from joblib.externals.loky.backend import resource_tracker as joblibs

from headrace.runtime.leftovers import descendants, end_spawned

pythons.ensure_running()
joblibs.ensure_running()
other = subprocess.Popen(["sleep", "60"])
assert len([*descendants(os.getpid())]) == 3
(ended,) = end_spawned()
assert ended == f"sleep (process {other.pid})", ended
other.wait()
assert len([*descendants(os.getpid())]) == 2
"""


def test_resource_trackers_of_multiprocessing_and_joblib_are_left_alone() -> None:
    """They remove what this process has shared, after its end. Red if one of them is started in another way."""
    subprocess.run([sys.executable, "-c", "import os" + BOTH_TRACKERS], check=True)
