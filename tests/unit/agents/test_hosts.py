"""What is used of joblib: public names only, and they do what the hosts rely on. If joblib moves them, this is red."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import headrace.agents
from headrace.agents.hosts import _JoblibCall, _own_loky, _patient_pool
from headrace.runtime.folder import Folder
from support.command import PATHS
from support.waiting import wait_until


def test_no_private_module_of_joblib_is_imported() -> None:
    for path in Path(headrace.agents.__file__).parent.rglob("*.py"):
        private = re.findall(r"joblib(?:\.\w+)*\._\w+|joblib\.externals", path.read_text())
        assert not private, f"{path.name}: {private}"


def test_the_backends_have_what_is_overridden() -> None:
    from joblib.parallel import LokyBackend, MultiprocessingBackend

    for name in ("configure", "abort_everything", "terminate"):
        assert callable(getattr(LokyBackend, name)), name
    assert callable(MultiprocessingBackend.submit)


def _pid(path: str) -> None:
    Path(path, str(os.getpid())).touch()


def test_loky_ends_its_processes_with_the_call(tmp_path: Path) -> None:
    """joblib would keep them for the next call, for minutes."""
    from joblib import Parallel, delayed

    backend = _own_loky()
    Parallel(2, backend=backend, batch_size=1, pre_dispatch="all")([delayed(_pid)(str(tmp_path))] * 2)
    assert not backend.has_processes
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert pids
    assert os.getpid() not in pids
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists() and "Z" not in _state(pid)]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def _die(path: str) -> None:
    _pid(path)
    os.kill(os.getpid(), 9)


@pytest.mark.parametrize("is_early", [False, True])
def test_a_pool_that_lost_a_process_can_be_given_up(is_early: bool, tmp_path: Path) -> None:
    """joblib would wait for the task of the killed process for ever, also for one that is given to the pool later."""
    from joblib import Parallel, delayed

    backend = _patient_pool()
    tasks = [delayed(_die)(str(tmp_path))] * 2

    def call() -> None:
        Parallel(2, backend=backend, batch_size=1, pre_dispatch="all")(tasks)

    thread = threading.Thread(target=call, daemon=True)
    if is_early:
        backend.give_up()
    thread.start()
    if not is_early:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 60.0)
        thread.join(0.5)
        assert thread.is_alive()
        backend.give_up()
    thread.join(60)
    assert not thread.is_alive()


def _refuse() -> None:
    raise RuntimeError("no room\nsecond line")


def test_a_call_that_fails_reports_each_of_its_workers() -> None:
    from joblib import delayed

    died: list[tuple[int, int, str]] = []
    tasks: list[Any] = [delayed(_refuse)()] * 2
    call = _JoblibCall("threading", [(0, 0), (1, 4)], tasks, lambda *what: died.append(what))
    assert call.join(10, has_lost=False)
    assert died == [(0, 0, "RuntimeError: no room"), (1, 4, "RuntimeError: no room")]


OWNER = """
import os, sys, time
from headrace.runtime.folder import Folder

folder = Folder(sys.argv[1])
(folder.path / "hub").touch()
print(folder.path, flush=True)
pid = os.fork()
if pid == 0:
    time.sleep(60)  # a fork of the owner does not keep the folder
    os._exit(0)
print(pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_hubs_folder_goes_with_its_owner_whoever_else_lives(tmp_path: Path) -> None:
    """It was left behind where the owner was killed before a worker had come up that could remove it."""
    program = [sys.executable, "-c", OWNER, str(tmp_path / "hub-")]
    done = subprocess.Popen(program, env={**os.environ, "PYTHONPATH": PATHS}, stdout=subprocess.PIPE, text=True)
    assert done.stdout is not None
    folder, fork = Path(done.stdout.readline().strip()), int(done.stdout.readline())
    try:
        done.wait(60)
        assert folder.parent == tmp_path
        wait_until(lambda: not folder.exists(), 10.0)
        assert Path(f"/proc/{fork}").exists(), "it was not the fork's end that did it"
    finally:
        os.kill(fork, 9)
        done.stdout.close()


def test_a_folder_that_is_removed_leaves_nobody(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "hub-"))
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.remove()
    assert not folder.path.exists()
    assert folder._cleaner is not None
    assert folder._cleaner.returncode == 0
