"""What test children do: targets that a fresh process finds by name. And parents of them that can be killed.

hold_gil        a C call of minutes that never lets another thread run
spawn_sleep     has a process of its own, in its group or (`session`) out of it
leave           an exit code
PARENT          a script: one child, by fork server or spawn; says their process ids, then sleeps
"""

from __future__ import annotations

import ctypes
import os
import subprocess

from headrace.runtime.line import Line


def hold_gil(line: Line, _: object) -> None:
    """Until it is killed."""
    line.send(b"holds")
    ctypes.PyDLL(None).sleep(600)


def spawn_sleep(line: Line, how: str) -> None:
    """Say its process id, then listen until the parent hangs up."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=how == "session")
    line.send(str(process.pid).encode())
    line.receive()


def leave(line: Line, code: int) -> None:
    """At once."""
    os._exit(code)


def echo(line: Line, word: str) -> None:
    """Say where it runs, and its word."""
    line.send(f"{os.getcwd()} {word}".encode())


PARENT = """
import os, sys, time
from headrace.runtime.child import Child
from headrace.runtime.fork_server import ForkServer
from support import children

method, target, forks = sys.argv[1:]
child = Child.spawn("one") if method == "spawn" else ForkServer(()).fork("one")
child.assign(getattr(children, target), "")
word = child.line.receive().decode()
copy = os.fork() if forks == "forks" else 0
if forks == "forks" and copy == 0:
    time.sleep(600)
print(child.pid, copy, word if word.isdigit() else 0, flush=True)
time.sleep(600)
"""
