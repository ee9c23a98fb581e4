"""Ports over a socket, for workers in processes of their own: a client at the worker's end, a hub at the parent's.

    worker: {"pull"} {"generate": request} {"forget": question} {"done": group} {"beat"}  ──unix socket, JSON──>  hub
    hub: dispatcher, engine ──{"answer"}──> worker

Nothing is unpickled from the socket: frames are JSON, the socket lies in a directory of the user's own and asks for a
key. A worker that dies closes its connection, and that is how the hub knows. A worker whose parent is gone ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from headrace.agents.bridge import Bridge, awaited
from headrace.agents.dispatcher import Dispatcher
from headrace.agents.engines.protocol import Completion, Engine, Request
from headrace.agents.failures import EpisodeError
from headrace.agents.plan import Ticket
from headrace.agents.records import ENGINE, Group, decode, encode

Reply = Callable[[int, Any], None]

logger = logging.getLogger(__name__)


class SocketPort:
    """A worker's end."""

    def __init__(self, address: str, key: bytes, worker: int) -> None:
        self._connection: Connection[Any, Any] = Client(address, "AF_UNIX", authkey=key)
        self._loop, self._bridge = asyncio.get_running_loop(), Bridge()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        self._is_gone = False
        self._send({"hello": worker, "pid": os.getpid()})
        self._reader = threading.Thread(target=self._read, name="port-reader", daemon=True)
        self._reader.start()

    async def pull(self) -> Ticket | None:
        """From the hub."""
        told = await self._ask({"pull": True})
        return None if told is None else Ticket(**told)

    async def generate(self, request: Request, limit_s: float) -> Completion:
        """Through the hub."""
        told = await self._ask({"generate": vars(request) | {"ids": list(request.ids)}}, limit_s)
        if "failure" in told:
            raise EpisodeError(told["failure"], told["message"])
        return Completion(**told)

    def done(self, group: Group) -> None:
        """To the hub."""
        self._send({"done": encode(group)})

    def beat(self, waits: list[tuple[str, float]]) -> None:
        """To the hub."""
        self._send({"beat": waits})

    def close(self) -> None:
        """Say goodbye."""
        with contextlib.suppress(OSError):
            self._send({"bye": True})
            self._reader.join(5.0)  # the hub hangs up once it has read everything
        self._connection.close()

    async def _ask(self, message: dict[str, Any], limit_s: float | None = None) -> Any:
        if self._is_gone:
            raise ConnectionResetError("the parent is gone")
        self._count += 1
        number = self._count
        future: asyncio.Future[Any] = self._loop.create_future()
        self._pending[number] = future
        try:
            self._send(message | {"id": number})
            return await awaited(future, limit_s)
        except (asyncio.CancelledError, TimeoutError):
            with contextlib.suppress(OSError):
                self._send({"forget": number})
            raise
        finally:
            self._pending.pop(number, None)

    def _send(self, message: dict[str, Any]) -> None:
        self._connection.send_bytes(json.dumps(message).encode())

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                told = json.loads(self._connection.recv_bytes())
                self._bridge.post(partial(self._resolve, told["id"], told["answer"]))
        self._bridge.post(self._hang_up)

    def _resolve(self, number: int, answer: Any) -> None:
        future = self._pending.get(number)
        if future is not None and not future.done():
            future.set_result(answer)

    def _hang_up(self) -> None:
        self._is_gone = True
        for future in self._pending.values():
            if not future.done():
                future.set_exception(ConnectionResetError("the parent is gone"))


class Hub:
    """The parent's end: one thread a worker."""

    def __init__(self, dispatcher: Dispatcher, engine: Engine) -> None:
        self._dispatcher, self._engine = dispatcher, engine
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-agents-")
        self.address = str(Path(self._folder.name) / "hub")
        self.key = secrets.token_bytes(32)
        self._listener = Listener(self.address, "AF_UNIX", authkey=self.key)
        self._threads: list[threading.Thread] = []
        self._connections: list[Connection[Any, Any]] = []
        self.pids: dict[int, int] = {}
        self._is_closed = False
        self._accepter = threading.Thread(target=self._accept, name="hub-accepter", daemon=True)
        self._accepter.start()

    def close(self) -> None:
        """Hang up on everybody."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as knock:  # wake the accepter
            knock.setblocking(False)  # it may have gone with a worker that came late, and would not answer
            knock.connect(self.address)
        self._accepter.join()
        self._listener.close()
        for connection in self._connections:
            _hang_up(connection)
        for thread in self._threads:
            thread.join(5.0)
        self._folder.cleanup()

    def _has_ended(self) -> bool:
        return self._is_closed

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection = self._listener.accept()
            except Exception as error:  # a stranger without the key, or a peer that went away
                if not self._is_closed:
                    logger.warning("a connection was refused: %s: %s", type(error).__name__, error)
                continue
            if self._has_ended():
                connection.close()
                return
            thread = threading.Thread(target=self._serve, args=(connection,), name="hub-worker", daemon=True)
            self._connections.append(connection)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: Connection[Any, Any]) -> None:
        worker, lock = -1, threading.Lock()
        asked: dict[int, Future[Completion]] = {}

        def reply(number: int, answer: Any) -> None:
            with lock, contextlib.suppress(OSError):  # a worker that is gone is noticed below
                connection.send_bytes(json.dumps({"id": number, "answer": answer}).encode())

        try:
            while True:
                told = json.loads(connection.recv_bytes())
                if "generate" in told:
                    self._generate(Request(**told["generate"]), told["id"], asked, reply)
                elif "forget" in told:
                    if (future := asked.pop(told["forget"], None)) is not None:
                        future.cancel()
                elif "pull" in told:
                    self._dispatcher.pull(worker).add_done_callback(partial(_granted, reply, told["id"]))
                elif "beat" in told:
                    self._dispatcher.beat(worker, [(what, age) for what, age in told["beat"]])
                elif "done" in told:
                    self._dispatcher.done(worker, decode(told["done"]))
                elif "hello" in told:
                    worker = told["hello"]
                    self.pids[worker] = told["pid"]
                    self._dispatcher.join(worker)
                elif "bye" in told:
                    self._dispatcher.leave(worker)
                    return
        except (EOFError, OSError):
            if not self._is_closed:
                self._dispatcher.lost(worker, f"process {self.pids.get(worker)} ended")
        except Exception as error:
            logger.exception("worker %d sent what can't be read", worker)
            self._dispatcher.lost(worker, f"sent what can't be read: {error}")
        finally:
            self.pids.pop(worker, None)
            with lock, contextlib.suppress(OSError):
                connection.close()
            for future in list(asked.values()):  # nobody waits for these any more
                future.cancel()

    def _generate(self, request: Request, number: int, asked: dict[int, Future[Completion]], reply: Reply) -> None:
        def answered(future: Future[Completion]) -> None:
            asked.pop(number, None)
            if future.cancelled():
                reply(number, {"failure": ENGINE, "message": "cancelled"})
                return
            error = future.exception()
            if error is None:
                one = future.result()
                plain = {"ids": list(one.ids), "log_probs": list(one.log_probs), "versions": list(one.versions)}
                reply(number, asdict(one) | plain)
            elif isinstance(error, EpisodeError):
                reply(number, {"failure": error.boundary, "message": error.told})
            else:
                reply(number, {"failure": ENGINE, "message": f"{type(error).__name__}: {error}"})

        future = asked[number] = self._engine.submit(request)
        future.add_done_callback(answered)


def _hang_up(connection: Connection[Any, Any]) -> None:
    """Whoever reads it sees its end; closing it under a reader would be an error there."""
    with contextlib.suppress(OSError), socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.shutdown(socket.SHUT_RDWR)


def _granted(reply: Reply, number: int, future: Future[Ticket | None]) -> None:
    ticket = None if future.cancelled() else future.result()
    reply(number, None if ticket is None else dict(vars(ticket)))
