"""Workers and inference servers come up: all at the same time, and people are told who is ready if it takes long.

    servers, workers: started -> listen until all are ready -> "4 of 4 workers are ready after 1.2 s"

Does not know what is heard meanwhile (processes), nor how one is started (workers, servers).
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.clock import now_s
from headrace.collecting.workers import Workers
from headrace.inference.servers import Servers

_PATIENCE_S = 0.05  # for something to happen
_SAY_S = 1.0  # between two lines about workers that are not ready yet


def launch(workers: Workers, servers: Servers | None, listen: Callable[[float], None]) -> None:
    """Start every one, and return when the last is ready."""
    begun = said = now_s()
    if servers is not None:
        servers.say = workers.say
        servers.launch()
    workers.start_all()
    while (missing := workers.num_starting) or (servers is not None and servers.num_starting):
        listen(_PATIENCE_S)
        workers.replace()
        if missing and now_s() - said >= _SAY_S:
            said = now_s()
            workers.say(f"{workers.count - missing} of {workers.count} workers are ready after {said - begun:.1f} s")
    workers.say(f"{workers.count} of {workers.count} workers are ready after {now_s() - begun:.1f} s")
