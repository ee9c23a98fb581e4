"""Junk for sockets: what strangers, scanners and broken clients send. Seeded; the same number is the same junk.

    call_hub(address, number)   -> the hub of LLM workers: random bytes, half frames, huge lengths, wrong keys, silence
    call_http(port, number)     -> an HTTP server: the same, and requests that are well formed but absurd

A caller that says nothing more but does not hang up is returned as an open socket: close it when it was silent enough.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from typing import Any

TIMEOUT_S = 60.0  # for an answer; none comes to those who are kept waiting on purpose
Said = tuple[bytes, bool]  # and whether the caller then stays, silent


def hub_junk(rng: random.Random) -> Said:
    """What a stranger says to the hub."""
    noise = rng.randbytes(rng.randint(0, 300))
    kinds: list[Callable[[], Said]] = [
        lambda: (noise, False),
        lambda: (b"", True),  # a scanner: nothing at all
        lambda: (noise[:3], True),  # half a length
        lambda: (struct.pack("!i", 16) + noise[:5], True),  # half a frame
        lambda: (struct.pack("!i", 2**31 - 1) + noise, rng.random() < 0.5),
        lambda: (struct.pack("!iQ", -1, 2**62) + noise, rng.random() < 0.5),
        lambda: (struct.pack("!i", -7) + noise, False),
        lambda: (struct.pack("!i", 16) + noise[:16].ljust(16), False),  # a digest, and the wrong one
        lambda: (struct.pack("!i", len(noise)) + noise, False),
        lambda: (_framed({"hello": 0, "life": 0, "pid": 1}), rng.random() < 0.5),  # without showing a key
        lambda: (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", False),
    ]
    return rng.choice(kinds)()


def _framed(message: Any) -> bytes:
    data = json.dumps(message).encode()
    return struct.pack("!i", len(data)) + data


def call_hub(address: str, number: int) -> socket.socket | None:
    """One stranger."""
    rng = random.Random(number)
    if number % 10 == 0:
        with contextlib.suppress(AuthenticationError, OSError, EOFError):
            Client(address, "AF_UNIX", authkey=rng.randbytes(32)).close()
            raise AssertionError("a wrong key was accepted")
        return None
    caller = socket.socket(socket.AF_UNIX)
    caller.settimeout(TIMEOUT_S)
    caller.connect(address)
    return _say(caller, *hub_junk(rng))


def _say(caller: socket.socket, what: bytes, stays: bool) -> socket.socket | None:
    with contextlib.suppress(OSError):  # hung up on: that is an answer
        caller.sendall(what)
    if stays:
        return caller
    caller.close()
    return None


# ---------------------------------------------------------------------------------------------------------------- HTTP

DEEP = 100_000


def _json(**asked: Any) -> bytes:
    return json.dumps(asked).encode()


BODIES: list[Callable[[random.Random], bytes]] = [
    lambda rng: rng.randbytes(rng.randint(0, 500)),
    lambda rng: b"[" * DEEP,
    lambda rng: b'{"prompt":' * DEEP,
    lambda rng: b'{"prompt": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    lambda rng: b'{"prompt": "a", "max_tokens": ' + b"9" * rng.choice([5, 20, 5000]) + b"}",
    lambda rng: _json(prompt=rng.choice([None, True, 1.5, {}, [[1]], [None], ["a"], "", [1e300], -1])),
    lambda rng: b'{"prompt": [Infinity]}',
    lambda rng: b'{"prompt": [NaN, 1]}',
    lambda rng: b'{"prompt": "\\ud800"}',
    lambda rng: _json(prompt="a", **{rng.choice(["seed", "max_tokens"]): rng.choice([-1, 1e400, 2**70, "x"])}),
    lambda rng: _json(prompt="a", temperature=rng.choice([-1, "hot", float("nan"), float("inf")])),
    lambda rng: _json(prompt=["x" * 10_000]),
    lambda rng: _json(messages=rng.choice([None, 3, "hi", [3], [{}], [{"role": 1}], {"a": 1}])),
]  # fmt: skip


def http_junk(rng: random.Random) -> Said:
    """What a stranger says to a server."""
    path = rng.choice(["/v1/completions", "/v1/chat/completions"])
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n"

    def posted() -> Said:
        body = rng.choice(BODIES)(rng)
        return f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body, False

    kinds: list[Callable[[], Said]] = [
        posted,
        posted,
        posted,
        lambda: (rng.randbytes(rng.randint(0, 500)), False),
        lambda: (b"", True),
        lambda: (f"POST {path} HTTP/1.1\r\nHos".encode(), True),  # never ends its head
        lambda: (f"{head}Content-Length: 1000\r\n\r\n{{".encode(), True),  # nor its body
        lambda: (f"{head}Content-Length: {10**15}\r\n\r\n{{".encode(), False),
        lambda: (
            f"{head}Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFF\r\n".encode(),
            False,
        ),
        lambda: (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", False),
        lambda: (b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", False),
        lambda: (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", False),
    ]
    return rng.choice(kinds)()


def call_http(port: int, number: int) -> tuple[socket.socket | None, bytes]:
    """One stranger; what it was answered, up to the end of the connection."""
    rng = random.Random(number)
    caller = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    what, stays = http_junk(rng)
    if stays:
        return _say(caller, what, True), b""
    answer = bytearray()
    with caller, contextlib.suppress(OSError):
        caller.sendall(what)
        caller.shutdown(socket.SHUT_WR)
        while chunk := caller.recv(65_536):
            answer += chunk
    return None, bytes(answer)


def call_http_oversized(port: int, size: int) -> bytes:
    """A body without an end in sight; how it is answered."""
    answer = bytearray()
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as caller, contextlib.suppress(OSError):
        caller.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
        for _ in range(size >> 20):
            caller.sendall(b" " * (1 << 20))
            caller.setblocking(False)
            try:
                answer += caller.recv(65_536)
                break
            except BlockingIOError:
                caller.settimeout(TIMEOUT_S)
        caller.settimeout(5.0)
        while chunk := caller.recv(65_536):
            answer += chunk
    return bytes(answer)
