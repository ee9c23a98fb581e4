"""Open files over a line, from process to process: pipes, processes, and memory that is too long for the line itself.

    send_descriptors(connection, [3, 4]) ──> receive_descriptors(connection, 2) -> [7, 8], the same files
    send_memory(connection, bytes)       ──> receive_memory(connection) -> bytes

Neither waits for the other side: what is sent is small, and the memory goes along as a file. Does not know who asks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any


def send_descriptors(connection: Connection[Any, Any], descriptors: Sequence[int]) -> None:
    """Over a line, between two messages."""
    with socket.socket(fileno=os.dup(connection.fileno())) as channel:
        socket.send_fds(channel, [b"."], list(descriptors))


def receive_descriptors(connection: Connection[Any, Any], count: int) -> list[int]:
    """What was sent so."""
    with socket.socket(fileno=os.dup(connection.fileno())) as channel:
        data, descriptors, _, _ = socket.recv_fds(channel, 1, count)
    if not data or len(descriptors) != count:
        raise ConnectionResetError("the other side ended while it sent descriptors")
    return descriptors


def send_memory(connection: Connection[Any, Any], data: bytes) -> None:
    """Bytes, as a file that has no name."""
    descriptor = os.memfd_create("headrace")
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(data)
        send_descriptors(connection, [descriptor])
    finally:
        os.close(descriptor)


def receive_memory(connection: Connection[Any, Any]) -> bytes:
    """What was sent so."""
    (descriptor,) = receive_descriptors(connection, 1)
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()
