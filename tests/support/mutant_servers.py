"""Inference servers that break a rule, each in its own process: what comparisons of bits must notice."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from headrace.inference.server import Server, ServerPlan, run_server
from headrace.runtime.line import Line


def swaps_answers(line: Line, plan: ServerPlan) -> None:
    """Of a batch of two shards, the first environment of each gets the other's action."""
    act = Server._act

    def swapped(server: Server, batch: Sequence[int]) -> None:
        act(server, batch)
        if len(batch) > 1:
            first, second = (server._slots[i].action for i in batch[:2])
            first[0], second[0] = second[0].copy(), first[0].copy()

    Server._act = swapped  # type: ignore[method-assign]
    run_server(line, plan)


def keeps_old_weights(line: Line, plan: ServerPlan) -> None:
    """It says that the version that was asked for acted, and acts with the first one it saw."""
    version = Server._version

    def named(server: Server, wanted: int) -> int:
        if server._replica.version is None:
            version(server, wanted)
        return wanted

    Server._version = named  # type: ignore[method-assign]
    run_server(line, plan)


def dies_at_once(line: Line, plan: ServerPlan) -> None:
    """Whenever it is started."""
    os._exit(3)


class StopsOnce:
    """The first that is started stands still before it is ready; the file says that it did."""

    __name__ = "run_server"

    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self, line: Line, plan: ServerPlan) -> None:
        with suppress(FileExistsError):
            self._file.touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGSTOP)
        run_server(line, plan)
