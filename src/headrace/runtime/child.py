"""A child process with a line to its parent: started, spoken to, ended.

    parent: Child.start(name, target, payload) -> line.send(bytes) · hang_up · end          child: target(line, payload)

The child watches a second pipe that never carries anything: it closes when the parent dies, however it dies, and with a
fork server getppid() would not tell. Ctrl-C reaches the parent alone; children end when it hangs up.
Does not know what is said over the line (runtime/line waits for that).
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from headrace.runtime.line import Line

Target = Callable[[Line, Any], None]
START_METHODS = ("forkserver", "spawn")
_PARENT_DIED = 87  # exit code of a child whose parent is gone


class Child:
    """The parent's end: one process and the line to it."""

    def __init__(self, name: str, process: Any, connection: Connection[Any, Any], life: Connection[Any, Any]) -> None:
        self.name = name
        self.pid, self.sentinel = int(process.pid), int(process.sentinel)
        self.line = Line(connection)
        self._process = process
        self._life = life
        self._exit_code: int | None = None

    @classmethod
    def start(
        cls, name: str, target: Target, payload: Any, method: str = "forkserver", preload: Sequence[str] = ()
    ) -> Child:
        """Start a process that runs target(line, payload); the payload may hold lambdas and closures.

        A fork server has imported `preload` before its first child. The caller's script is not run again in the child,
        so it needs no `if __name__ == "__main__"`: what the payload takes from it goes along by value.
        """
        context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload(list(preload))
        ours, theirs = context.Pipe()
        watched, life = context.Pipe(duplex=False)
        blob = cloudpickle.dumps((target, payload))
        process = context.Process(target=_run, args=(theirs, watched, blob), name=name, daemon=True)
        try:
            with _another_main():
                process.start()
        except BaseException:
            for connection in (ours, life):
                connection.close()
            raise
        finally:
            theirs.close()
            watched.close()
        return cls(name, process, ours, life)

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone, also if a process that inherited its sentinel lives on."""
        return self._exit_code is not None or self._process.exitcode is not None

    def hang_up(self) -> None:
        """Close the line: the child ends when it next listens."""
        self.line.connection.close()

    def end(self, timeout_s: float) -> int:
        """See that it ends: wait, then SIGKILL. Returns its exit code."""
        if self._exit_code is not None:
            return self._exit_code
        self.line.connection.close()
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            self._process.kill()
        self._process.join()
        self._exit_code = int(self._process.exitcode)
        self._process.close()
        self._life.close()
        return self._exit_code


@contextlib.contextmanager
def _another_main() -> Iterator[None]:
    """multiprocessing runs the file of __main__ again in every child; a module without a file leaves nothing to run."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _run(connection: Connection[Any, Any], watched: Connection[Any, Any], blob: bytes) -> None:
    """The child's first function."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.enable()
    threading.Thread(target=_end_with_parent, args=(watched,), name="parent-watch", daemon=True).start()
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # envs may have children
    target, payload = cloudpickle.loads(blob)
    target(Line(connection), payload)


def _end_with_parent(watched: Connection[Any, Any]) -> None:
    with contextlib.suppress(EOFError, OSError):
        watched.recv_bytes()
    os._exit(_PARENT_DIED)
