"""Python processes that are started without the working directory on their import path.

Fork servers, resource trackers and spawned children are started with -c, which searches the working directory first: an
unpacked archive could bring its own `socket.py`. Those that need our import path take it over a moment later.
To start one changes, for a moment, what belongs to the whole process: one thread at a time does (`starting`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "PYTHONSAFEPATH"
starting = threading.RLock()
os.register_at_fork(before=starting.acquire, after_in_parent=starting.release, after_in_child=starting.release)


@contextmanager
def safe_path() -> Iterator[None]:
    """For what Python starts now."""
    with starting:
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = before or "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[VARIABLE]
