"""Processes can be started from odd places, and their ends are noticed by whoever else waits for them.

a worker of multiprocessing.Pool   may have no children, says Python: ours end with it
SIGCHLD ignored, or waited for     the exit code is lost, and nothing else
stopped (SIGSTOP)                  Python waits for it at its own exit: it is killed before
several threads at once            what a start changes for a moment belongs to the whole process
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.command import PATHS
from support.waiting import is_gone, wait_until

START = """
import multiprocessing, os, signal, sys, threading
from headrace.runtime.child import Child
from headrace.runtime.fork_server import ForkServer
from support.children import echo, hold_gil, leave

def start(method, name="one"):
    return Child.spawn(name) if method == "spawn" else ForkServer.shared(()).fork(name)

def answer(method):
    child = start(method)
    child.assign(echo, "yes")
    assert child.line.receive().endswith(b"yes")
    return child.end(20.0)
"""
IN_A_POOL = """
def held(method):
    child = start(method)
    child.assign(hold_gil, "")
    child.line.receive()
    return child.pid

if __name__ == "__main__":
    method = sys.argv[1]
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(pool.apply(answer, [method]), multiprocessing.current_process().daemon)
        print(pool.apply(held, [method]), flush=True)
"""
NOBODY_WAITS = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(answer(sys.argv[1]))
"""
ANOTHER_WAITS = """
child = start("spawn")
child.assign(leave, 3)
os.waitpid(child.pid, 0)
print(child.end(20.0), child.has_ended, len(multiprocessing.active_children()))
"""
STOPPED = """
start("forkserver").end(0.0)
for pid in ForkServer.shared(()).pids:
    os.kill(pid, signal.SIGSTOP)
"""
IN_THREADS = """
failures, main, go = [], sys.modules["__main__"], threading.Barrier(8)

def work():
    go.wait()
    for _ in range(3):
        try:
            child = Child.spawn("one")
            child.end(0.0)
        except BaseException as error:
            failures.append(repr(error))

sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(failures, sys.modules["__main__"] is main, "PYTHONSAFEPATH" in os.environ)
"""


def said(folder: Path, script: str, *arguments: str) -> str:
    """By a script of its own: it changes what belongs to the whole process."""
    (folder / "mine.py").write_text(START + script)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, "mine.py", *arguments], cwd=folder, env=environment | {"PYTHONPATH": PATHS}, text=True,
        capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_in_a_worker_of_a_pool(method: str, tmp_path: Path) -> None:
    first, second = said(tmp_path, IN_A_POOL, method).splitlines()
    assert first == "0 False"
    wait_until(lambda: is_gone(int(second)), 10.0)


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_nobody_waits_for_children(method: str, tmp_path: Path) -> None:
    """As in all that `trap '' CHLD` starts. The fork server waits for its own."""
    assert said(tmp_path, NOBODY_WAITS, method) == ("0\n" if method == "forkserver" else "None\n")


def test_another_has_waited_for_it(tmp_path: Path) -> None:
    """A loop over waitpid(-1), as the first process of a container has. What is unknown is not sent a signal later."""
    assert said(tmp_path, ANOTHER_WAITS) == "None True 0\n"


def test_in_several_threads(tmp_path: Path) -> None:
    assert said(tmp_path, IN_THREADS) == "[] True False\n"


def test_a_child_that_was_stopped_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """A fork server stays until its process ends; Python would wait for it for ever."""
    assert said(tmp_path, STOPPED) == ""
