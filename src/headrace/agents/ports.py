"""A worker's way out: to the desk and the engine of this process, or over a socket to those of the parent.

    MemoryPort, in a thread:   pull · generate · over · done · beat ──> desk, engine
    SocketPort, in a process:  {"pull"} {"generate": request} {"forget": question} {"over"} {"done": group} {"beat"}
                                   ──unix socket, JSON──> Hub: desk, engine ──{"answer"}──> SocketPort

Nothing is unpickled from the socket: frames are JSON, the socket lies in a directory of the user's own and asks for a
key. Every caller is asked in a thread of its own and has a few seconds to answer: one that says nothing, or nonsense,
keeps no worker waiting. A worker that dies closes its connection, and that is how the hub knows; one that lost its
connection and lives is as good as dead. A worker whose parent is gone ends.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from multiprocessing.connection import Client, Listener, answer_challenge, deliver_challenge
from typing import Any, TypeVar

from headrace.agents.desk import Desk
from headrace.agents.engines.protocol import Completion, Engine, Request
from headrace.agents.plan import Ticket
from headrace.agents.records import ENGINE, EpisodeError, Group, decode, encode
from headrace.runtime.folder import AGENTS, Folder
from headrace.runtime.line import Line

T = TypeVar("T")
Reply = Callable[[int, Any], None]
OnStep = Callable[[str, float, float], None]  # tag, seconds, of them computing

_KEY_S = 10.0  # for a caller to show that it knows the key
_WAITING = 128  # callers that the kernel keeps until they are accepted
_PAUSE_S = 0.05  # after an accept that failed, for instance for want of descriptors

logger = logging.getLogger(__name__)


class MemoryPort:
    """Without a wire, for a worker in a thread."""

    def __init__(self, worker: int, desk: Desk, engine: Engine, on_step: OnStep | None = None) -> None:
        self._worker, self._desk, self._engine, self._on_step = worker, desk, engine, on_step

    def pull(self) -> Future[Ticket | None]:
        """From the desk."""
        return self._desk.pull(self._worker)

    def generate(self, request: Request) -> Future[Completion]:
        """From the engine."""
        return self._engine.submit(request)

    def stepped(self, tag: str, step_s: float, computing_s: float) -> None:
        """To those who choose the way to play."""
        if self._on_step is not None:
            self._on_step(tag, step_s, computing_s)

    def over(self, number: int) -> None:
        """To the desk."""
        self._desk.over(number)

    def done(self, group: Group) -> None:
        """To the desk."""
        self._desk.done(self._worker, group)

    def beat(self, waits: list[tuple[str, float]]) -> None:
        """To the desk."""
        self._desk.beat(self._worker, waits)

    def close(self) -> None:
        """Nothing to let go of: the host says goodbye."""


class SocketPort:
    """A worker's end of the socket. `life` says how often this worker was started before."""

    def __init__(self, address: str, key: bytes, worker: int, life: int = 0) -> None:
        try:
            self._line = Line(Client(address, "AF_UNIX", authkey=key))
        except EOFError:  # it closes
            raise ConnectionResetError("the parent is gone") from None
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._pending: dict[int, Callable[[Any], None]] = {}
        self._count = 0
        self._is_gone = False
        self._send({"hello": worker, "life": life, "pid": os.getpid()})
        self._reader = threading.Thread(target=self._read, name="port-reader", daemon=True)
        self._reader.start()

    def pull(self) -> Future[Ticket | None]:
        """From the hub."""
        return self._ask({"pull": True}, lambda answer: None if answer is None else Ticket(**answer))

    def generate(self, request: Request) -> Future[Completion]:
        """Through the hub."""
        return self._ask({"generate": vars(request) | {"ids": list(request.ids)}}, _completion)

    def stepped(self, tag: str, step_s: float, computing_s: float) -> None:
        """Of no interest: the way to play was chosen."""

    def over(self, number: int) -> None:
        """To the hub."""
        self._send({"over": number})

    def done(self, group: Group) -> None:
        """To the hub."""
        self._send({"done": encode(group)})

    def beat(self, waits: list[tuple[str, float]]) -> None:
        """To the hub."""
        self._send({"beat": waits})

    def close(self, failure: str = "") -> None:
        """Say goodbye, or what it failed with while it had groups."""
        self._send({"failed": failure} if failure else {"bye": True})
        self._reader.join(5.0)  # the hub hangs up once it has read everything
        self._line.connection.close()

    def _ask(self, message: dict[str, Any], read: Callable[[Any], T]) -> Future[T]:
        future: Future[T] = Future()

        def resolve(answer: Any) -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                if isinstance(answer, ConnectionError):
                    raise answer
                future.set_result(read(answer))
            except Exception as error:
                future.set_exception(error)

        with self._lock:
            self._count += 1
            number, is_gone = self._count, self._is_gone
            if not is_gone:
                self._pending[number] = resolve
        if is_gone:
            resolve(_gone())
            return future
        future.add_done_callback(partial(self._forget, number))
        self._send(message | {"id": number})
        return future

    def _forget(self, number: int, future: Future[Any]) -> None:
        if future.cancelled() and self._pending.pop(number, None) is not None:
            self._send({"forget": number})

    def _send(self, message: dict[str, Any]) -> None:
        frame = json.dumps(message).encode()
        with self._sending, contextlib.suppress(OSError):  # a hub that is gone is noticed by the reader
            self._line.send(frame)

    def _read(self) -> None:
        while (frame := self._line.receive()) is not None:
            reply = json.loads(frame)
            resolve = self._pending.pop(reply["id"], None)
            if resolve is not None:
                resolve(reply["answer"])
        with self._lock:
            self._is_gone = True
            pending, self._pending = self._pending, {}
        for resolve in pending.values():
            resolve(_gone())


def _gone() -> ConnectionError:
    return ConnectionResetError("the parent is gone")


def _completion(answer: dict[str, Any]) -> Completion:
    if "failure" in answer:
        raise EpisodeError(answer["failure"], answer["message"])
    return Completion(**answer)


class Hub:
    """The parent's end: one thread a worker."""

    def __init__(self, desk: Desk, engine: Engine, on_lost: Callable[[int], None] = lambda pid: None) -> None:
        """`on_lost` gets the process of a worker that hung up without a goodbye, and may still live."""
        self._desk, self._engine, self._on_lost = desk, engine, on_lost
        self._folder = Folder(AGENTS)
        self.address = str(self._folder.path / "hub")
        self.key = secrets.token_bytes(32)
        self._listener = Listener(self.address, "AF_UNIX", _WAITING)
        self._callers: dict[Line, threading.Thread] = {}
        self._refused = 0
        self.pids: dict[int, int] = {}
        self._is_closed = False
        self._accepter = threading.Thread(target=self._accept, name="hub-accepter", daemon=True)
        self._accepter.start()

    def close(self) -> None:
        """Hang up on all workers."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as knock:  # wake the accepter
            knock.setblocking(False)  # it may have gone with a worker that came late, and would not answer
            knock.connect(self.address)
        self._accepter.join()
        self._listener.close()
        callers = list(self._callers.items())
        for line, _ in callers:
            _shut_down(line)
        for _, thread in callers:
            thread.join(5.0)
        self._folder.remove()

    def _has_ended(self) -> bool:
        return self._is_closed

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection = self._listener.accept()
            except OSError as error:
                self._refuse(error)
                time.sleep(_PAUSE_S)
                continue
            if self._has_ended():
                connection.close()
                return
            line = Line(connection)
            thread = self._callers[line] = threading.Thread(
                target=self._meet, args=(line,), name="hub-worker", daemon=True
            )
            thread.start()

    def _meet(self, line: Line) -> None:
        """A caller, who is a worker if it shows in time that it knows the key."""
        deadline = threading.Timer(_KEY_S, _shut_down, (line,))
        deadline.daemon = True
        deadline.start()
        try:
            deliver_challenge(line.connection, self.key)
            answer_challenge(line.connection, self.key)
        except Exception as error:  # a stranger without the key, or a peer that went away
            self._refuse(error)
            deadline.cancel()
            deadline.join()
            line.connection.close()
        else:
            deadline.cancel()
            deadline.join()
            self._serve(line)
        finally:
            self._callers.pop(line, None)

    def _refuse(self, error: Exception) -> None:
        """Said once, and then ever more rarely: strangers can't fill a log."""
        self._refused += 1
        if not self._is_closed and str(self._refused).strip("0") == "1":
            logger.warning("connections refused so far: %d; last: %s: %s", self._refused, type(error).__name__, error)

    def _serve(self, line: Line) -> None:
        """One worker, from its hello to its goodbye or its death."""
        who, lock = {"hello": -1, "life": -1, "pid": -1}, threading.Lock()
        asked: dict[int, Future[Completion]] = {}

        def reply(number: int, answer: Any) -> None:
            with lock, contextlib.suppress(OSError):  # a worker that is gone is noticed below
                line.send(json.dumps({"id": number, "answer": answer}).encode())

        how = ""
        try:
            while (frame := line.receive()) is not None:
                message = json.loads(frame)
                worker = who["hello"]
                if "generate" in message:
                    self._generate(Request(**message["generate"]), message["id"], asked, reply)
                elif "forget" in message:
                    if (future := asked.pop(message["forget"], None)) is not None:
                        future.cancel()
                elif "pull" in message:
                    self._desk.pull(worker).add_done_callback(partial(_granted, reply, message["id"]))
                elif "beat" in message:
                    self._desk.beat(worker, [(what, age) for what, age in message["beat"]])
                elif "over" in message:
                    self._desk.over(message["over"])
                elif "done" in message:
                    self._desk.done(worker, decode(message["done"]))
                elif "hello" in message:
                    who, how = message, f"process {message['pid']} ended, or lost its connection"
                    self.pids[who["hello"]] = who["pid"]
                    self._desk.join(who["hello"], who["life"])
                elif "failed" in message:
                    how = message["failed"]
                    break
                elif "bye" in message:
                    self._desk.leave(worker, who["life"])
                    return
        except Exception as error:
            logger.exception("worker %d sent what can't be read", who["hello"])
            how = f"sent what can't be read: {error}"
        finally:
            self._part(line, lock, who, asked)
        if not self._is_closed and who["hello"] >= 0:
            self._on_lost(who["pid"])
            self._desk.died(who["hello"], who["life"], how)

    def _part(
        self, line: Line, lock: threading.Lock, who: dict[str, int], asked: dict[int, Future[Completion]]
    ) -> None:
        """A worker is gone, one way or the other: its answers are not waited for."""
        if self.pids.get(who["hello"]) == who["pid"]:
            self.pids.pop(who["hello"], None)
        with lock, contextlib.suppress(OSError):
            line.connection.close()
        for future in list(asked.values()):
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
                reply(number, vars(one) | plain)
            elif isinstance(error, EpisodeError):
                reply(number, {"failure": error.boundary, "message": error.message})
            else:
                reply(number, {"failure": ENGINE, "message": f"{type(error).__name__}: {error}"})

        future = asked[number] = self._engine.submit(request)
        future.add_done_callback(answered)


def _shut_down(line: Line) -> None:
    """Its reader sees the end; closing it under a reader would be an error there."""
    handle = line.connection.fileno
    with contextlib.suppress(OSError), socket.fromfd(handle(), socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.shutdown(socket.SHUT_RDWR)


def _granted(reply: Reply, number: int, future: Future[Ticket | None]) -> None:
    ticket = None if future.cancelled() else future.result()
    reply(number, None if ticket is None else dict(vars(ticket)))
