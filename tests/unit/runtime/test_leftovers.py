"""Descendants are found whatever threads do meanwhile."""

from __future__ import annotations

import os
import subprocess
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
