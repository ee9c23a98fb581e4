"""What stands by while workers work: warm spares, the fork server, Python's resource tracker. Killed, each is replaced.

    take(name) -> a spare that is alive, or a new process          mend(): what died is replaced, as far as nobody waits
    watched: descriptors that become ready when one of them has died

A spare is a process that has imported everything, has rehearsed what it will have to do, and waits for its assignment:
so whoever takes the place of a dead worker begins at once. Starting a process is tried a few times before it is given
up. Does not know what spares are for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from multiprocessing import resource_tracker
from typing import Any

from headrace.errors import HeadraceError
from headrace.memory.segment import keep_names_registered
from headrace.runtime.child import Child, Target
from headrace.runtime.fork_server import ForkServer

_TRIES = 5  # to start one process
_PAUSE_S = 0.1  # after the first that failed; then twice as long each time
_FRUITLESS = 5  # spares in a row that died before they were needed: then none is started until one is

logger = logging.getLogger(__name__)


class Standby:
    """Processes that wait for work, by one start method: forkserver or spawn."""

    def __init__(
        self, method: str, preload: Sequence[str], spares: int, rehearsal: tuple[Target, Any] | None = None
    ) -> None:
        self._server = ForkServer.shared(preload) if method == "forkserver" else None
        self._preload, self._count, self._rehearsal = preload, spares, rehearsal
        self._spares: list[Child] = []
        self._fruitless = 0
        self._tracker: list[int] = []

    @property
    def watched(self) -> list[int]:
        """Descriptors that are ready when there is something to mend."""
        server = self._server.watched if self._server is not None else []
        return [*(spare.sentinel for spare in self._spares), *server, *self._tracker]

    @property
    def spare_pids(self) -> list[int]:
        """The processes that wait."""
        return [spare.pid for spare in self._spares if not spare.has_ended]

    @property
    def server_pids(self) -> list[int]:
        """The fork server's process, if there is one."""
        return self._server.pids if self._server is not None else []

    def take(self, name: str) -> Child:
        """A process that waits for its assignment: a spare, or a new one."""
        self._fruitless = 0
        while self._spares:
            spare = self._spares.pop(0)
            if not spare.has_ended and not spare.is_stopped:
                spare.name = name
                return spare
            spare.end(0.0)
        for attempt in range(_TRIES):
            try:
                return self._start(name)
            except OSError as error:
                reason = str(error)  # a log may keep what it is given, and an error keeps all of its callers' memory
                logger.info("%s could not be started: %s", name, reason)
            time.sleep(_PAUSE_S * 2**attempt)
        raise HeadraceError(
            f"{name} could not be started, {_TRIES} times in a row; last: {reason}. Look for limits on processes and "
            f"memory (ulimit -u, cgroups), or run with topology=inline"
        )

    def mend(self) -> None:
        """Replace what has died, without waiting: a fork server that is not ready yet will be, and is watched."""
        keep_names_registered()
        tracker = resource_tracker.getfd()  # its write end: ready, with an error, once nobody reads
        self._tracker = [] if tracker is None else [tracker]
        for spare in [spare for spare in self._spares if spare.has_ended]:
            self._spares.remove(spare)
            self._fruitless += 1
            spare.end(0.0)
        is_ready = self._server is None or self._server.is_ready()
        while is_ready and len(self._spares) < self._count and self._fruitless < _FRUITLESS:
            try:
                spare = self._start("headrace-spare")
            except OSError as error:
                logger.info("a spare could not be started: %s", error)
                return
            if self._rehearsal is not None:
                spare.assign(*self._rehearsal, is_last=False)
            self._spares.append(spare)

    def end(self) -> None:
        """End the spares. The fork server is this process's, and stays for the next run."""
        spares, self._spares = self._spares, []
        for spare in spares:
            spare.end(0.0)

    def _start(self, name: str) -> Child:
        return Child.spawn(name, self._preload) if self._server is None else self._server.fork(name)
