"""Python processes that are started without the working directory on their import path.

Fork servers, resource trackers and spawned children are started with -c, which searches the working directory first: an
unpacked archive could bring its own `socket.py`. Those that need our import path take it over a moment later.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "PYTHONSAFEPATH"


@contextmanager
def safe_path() -> Iterator[None]:
    """For what Python starts now."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = before or "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
