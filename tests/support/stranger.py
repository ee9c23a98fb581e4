"""Another program on the machine: it makes entries in /dev/shm and keeps them, lets go of them, or dies.

    a test ──"hold"──> Unix socket ──> stranger makes an entry ──its name──> the test

Run as `python stranger.py SOCKET`; it removes what it made when its standard input is closed. Does not know whose
tests these are: it is started beside them, so it belongs to nobody in their family.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


def ask(address: str, what: str) -> Path:
    """Have the stranger do something; returns the entry that it made."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(60.0)
        line.connect(address)
        line.sendall(f"{what}\n".encode())
        with line.makefile() as answer:
            return SHARED_MEMORY / answer.readline().strip()


def main(address: str) -> None:
    made: list[Path] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        print("ready", flush=True)
        threading.Thread(target=_serve, args=(server, made), daemon=True).start()
        sys.stdin.read()
    for path in made:
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)


def _serve(server: socket.socket, made: list[Path]) -> None:
    while True:
        line, _ = server.accept()
        with line, line.makefile() as request:
            name = DEEDS[request.readline().strip()]()
            made.append(SHARED_MEMORY / name)
            line.sendall(f"{name}\n".encode())


_kept: list[shared_memory.SharedMemory] = []


def hold() -> str:
    """Keep it open and mapped."""
    segment = shared_memory.SharedMemory(create=True, size=64)
    resource_tracker.unregister(segment._name, "shared_memory")
    _kept.append(segment)
    return segment.name


def let_go() -> str:
    """Nobody has it open, and nothing in its name says whose it is."""
    segment = shared_memory.SharedMemory(create=True, size=64)
    resource_tracker.unregister(segment._name, "shared_memory")
    segment.close()
    return segment.name


def like_headrace() -> str:
    return _empty(f"headrace-{os.getpid()}-{os.urandom(8).hex()}")


def like_loky() -> str:
    return _empty(f"sem.loky-{os.getpid()}-{os.urandom(4).hex()}")


def like_joblib() -> str:
    name = f"joblib_memmapping_folder_{os.getpid()}_{os.urandom(8).hex()}"
    (SHARED_MEMORY / name).mkdir()
    return name


def die() -> str:
    """A program that had its process id in the name, and was killed."""
    code = "import os, signal; name = f'headrace-{os.getpid()}-%s'; open(f'/dev/shm/{name}', 'x').close();"
    code = code % os.urandom(8).hex() + "print(name, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    return done.stdout.strip()


def _empty(name: str) -> str:
    (SHARED_MEMORY / name).touch(exist_ok=False)
    return name


DEEDS: dict[str, Callable[[], str]] = {
    "hold": hold,
    "let go": let_go,
    "like headrace": like_headrace,
    "like loky": like_loky,
    "like joblib": like_joblib,
    "die": die,
}

if __name__ == "__main__":
    main(sys.argv[1])
