"""The fork server: a process that has imported what children need, and forks them on request.

    parent: fork(name) ──name, import path, folder; two descriptors──> server ── fork ──> child
                       <──────── process id, pidfd ────────
            the child has ended: ──reap──> server: its exit code

The server is a child like any other: started by spawn, and gone with its parent. It has one thread and only answers.
Should it be killed, the processes that it has forked live on: their lines, life lines and pidfds do not go through it.
Only their exit codes are lost. Another server is started when it is next asked for. Its imports take seconds: `fork`
waits for them, `is_ready` does not. A process has one server per list of imports. Does not know what children do.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from headrace.clock import now_s
from headrace.runtime import child as children
from headrace.runtime.child import Child
from headrace.runtime.death import how_it_ended
from headrace.runtime.descriptors import receive_descriptors, send_descriptors
from headrace.runtime.life import Life
from headrace.runtime.line import Line

READY_S = 120.0  # for the imports
_ANSWER_S = 20.0  # for one fork
_LOOK_S = 1.0
_FRUITLESS = 5  # servers in a row that died before they were ready: no more are started ahead of need
_READY = b"R"

_servers: dict[tuple[str, ...], ForkServer] = {}  # those of this process


class ForkServer:
    """The parent's side. May be used by several threads."""

    def __init__(self, preload: Sequence[str]) -> None:
        self._preload = tuple(preload)
        self._lock = threading.RLock()
        self._server: Child | None = None
        self._is_ready = False
        self._fruitless = 0
        self._how_it_ended = ""  # the last one

    @classmethod
    def shared(cls, preload: Sequence[str]) -> ForkServer:
        """The server of this process for these imports; not started yet, if nobody needed it."""
        return _servers.setdefault(tuple(preload), cls(preload))

    @property
    def watched(self) -> list[int]:
        """Descriptors that are ready when it has died, or when it can fork and could not before."""
        server = self._server
        if server is None:
            return []
        return [server.sentinel] if self._is_ready else [server.sentinel, server.line.connection.fileno()]

    @property
    def pids(self) -> list[int]:
        """Its process id, if it runs."""
        server = self._server
        return [] if server is None or server.has_ended else [server.pid]

    def is_ready(self) -> bool:
        """Whether it can fork at once. One that has died is started again, without waiting for it."""
        with self._lock:
            if self._server is not None and self._server.has_ended:
                self._bury(self._server)
            if self._server is None and self._fruitless < _FRUITLESS:
                self._start()
            if self._server is not None and not self._is_ready:
                with self._talking_to(self._server):
                    self._is_ready = self._server.line.receive_nowait() == _READY
                self._fruitless = 0 if self._is_ready else self._fruitless
            return self._is_ready

    def fork(self, name: str) -> Child:
        """A new process, imports done. Waits for the server if need be; OSError if it dies meanwhile: ask again."""
        with self._lock:
            server = self._wait_until_ready()
            ours, theirs = multiprocessing.Pipe()
            life = Life()
            try:
                path = [one for one in list[Any](sys.path) if isinstance(one, str)]  # others are ignored by Python, too
                request = {"name": name, "path": path, "folder": _folder()}
                with self._talking_to(server):
                    server.line.send(json.dumps(request).encode())
                    send_descriptors(server.line.connection, [theirs.fileno(), life.read_end.fileno()])
                    answer = json.loads(self._answer(server))
                    if "error" not in answer:
                        self._wait_for(server)
                        (pidfd,) = receive_descriptors(server.line.connection, 1)
                if "error" in answer:
                    raise OSError(answer["error"])
            except BaseException:
                ours.close()
                life.end()  # should it have been forked all the same, it ends
                raise
            finally:
                theirs.close()
            reap = partial(self._reap, server, answer["pid"])
            return Child(name, answer["pid"], pidfd, reap, Line(ours), life)

    def _start(self) -> None:
        server = Child.spawn("headrace-fork-server", self._preload)
        with self._talking_to(server):
            server.assign(_serve, None)
        self._server = server
        self._fruitless += 1

    @contextlib.contextmanager
    def _talking_to(self, server: Child) -> Iterator[None]:
        """A question and its answer. Broken off in between, by Ctrl-C for instance, an answer may still be on its way,
        which the next one who asks would take for their own: so this server ends, and another one will be started.
        """
        try:
            yield
        except BaseException:
            self._bury(server)
            raise

    def _bury(self, server: Child) -> str:
        """Reap it; returns how it ended."""
        if server is self._server:
            self._server, self._is_ready = None, False
        self._how_it_ended = how_it_ended(server.end(0.0))
        return self._how_it_ended

    def _wait_until_ready(self) -> Child:
        self._fruitless = min(self._fruitless, _FRUITLESS - 1)  # it is needed now
        deadline = now_s() + READY_S
        while not self.is_ready():
            server = self._server
            if server is None:  # `is_ready` may have seen its end first
                how = f"ended before it was ready: {self._how_it_ended}" if self._how_it_ended else "did not start"
                raise ConnectionResetError(f"the fork server {how}")
            wait(self.watched, 1.0)
            if server.has_ended:
                raise ConnectionResetError(f"the fork server ended before it was ready: {self._bury(server)}")
            if now_s() > deadline:
                self._bury(server)
                raise TimeoutError(f"the fork server was not ready within {READY_S:g} s")
        assert self._server is not None
        return self._server

    def _wait_for(self, server: Child) -> None:
        ready: list[Any] = []
        deadline = now_s() + _ANSWER_S
        while not ready and now_s() < deadline:
            ready = wait([server.line.connection, server.sentinel], _LOOK_S)
            if not ready and server.is_stopped:  # it would not answer, however long it is waited for
                break
        if server.line.connection not in ready:
            raise ConnectionResetError(f"the fork server did not answer: {self._bury(server)}")

    def _answer(self, server: Child) -> bytes:
        self._wait_for(server)
        answer = server.line.receive_nowait()
        if not answer:
            raise ConnectionResetError(f"the fork server ended when it was asked: {self._bury(server)}")
        return answer

    def _reap(self, server: Child, pid: int) -> int | None:
        with self._lock:
            if server.has_ended:
                return None
            with contextlib.suppress(OSError), self._talking_to(server):
                server.line.send(json.dumps({"reap": pid}).encode())
                return int(json.loads(self._answer(server)))
            return None


def _serve(line: Line, _: None) -> None:
    """The server's life."""
    context = multiprocessing.get_context("fork")
    forked: dict[int, Any] = {}
    line.send(_READY)
    while (data := line.receive()) is not None:
        request = json.loads(data)
        if "reap" in request:
            process = forked.pop(request["reap"])
            process.join()
            line.send(json.dumps(process.exitcode).encode())
            process.close()
            continue
        descriptors = receive_descriptors(line.connection, 2)
        try:
            process = context.Process(target=_forked, args=(line, descriptors, request), name=request["name"])
            process.start()
            assert process.pid is not None
            with contextlib.suppress(OSError):  # as it does itself (life): an end of this server's group is not its end
                os.setpgid(process.pid, process.pid)
            pidfd = os.pidfd_open(process.pid)
        except OSError as error:
            line.send(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        else:
            forked[process.pid] = process
            line.send(json.dumps({"pid": process.pid}).encode())
            send_descriptors(line.connection, [pidfd])
            os.close(pidfd)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
    os._exit(0)  # nothing to wait for: those that it has forked are bound to its parent


def _forked(server: Line, descriptors: Sequence[int], request: dict[str, Any]) -> None:
    """The first function of a child."""
    server.connection.close()  # else its parent would not notice that the server is gone
    sys.path[:] = request["path"]
    if request["folder"] is not None:
        with contextlib.suppress(OSError):
            os.chdir(request["folder"])
    line, life = descriptors
    children.run(Connection(line), Connection(life, writable=False), (), keeps_safe_path=True)


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


os.register_at_fork(after_in_child=_servers.clear)  # a fork of this process asks for a server of its own
