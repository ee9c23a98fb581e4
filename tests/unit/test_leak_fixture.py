"""The fixture of tests/conftest.py can fail: one test for each kind of leak, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"

LEAKY_TESTS = """
import multiprocessing, os, subprocess, sys, threading, time
from multiprocessing import shared_memory

kept = []
SLEEPER = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]


def sleep_long():
    time.sleep(60)


def test_clean():
    segment = shared_memory.SharedMemory(create=True, size=64)
    segment.close()
    segment.unlink()
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        pool.apply(int)
        pool.close()
        pool.join()
    subprocess.run([sys.executable, "-S", "-c", ""], check=True)


def test_thread_that_ends_in_time():
    threading.Thread(target=time.sleep, args=(0.1,)).start()


def test_garbage_is_no_leak():
    cycle = [open(__file__)]
    cycle.append(cycle)


def test_leaks_process():
    kept.append(subprocess.Popen(SLEEPER))


def test_leaks_forkserver_worker():
    worker = multiprocessing.get_context("forkserver").Process(target=sleep_long, daemon=True)
    worker.start()
    kept.append(worker)


def test_leaks_zombie():
    worker = subprocess.Popen([sys.executable, "-S", "-c", ""])
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    kept.append(worker)


def test_leaks_orphan():
    subprocess.run(["sh", "-c", "sleep 60 & exit 0"], check=True)


def test_orphan_that_exits_is_no_leak():
    subprocess.run(["sh", "-c", "sleep 0.1 & exit 0"], check=True)


def test_leaks_shared_memory():
    kept.append(shared_memory.SharedMemory(create=True, size=64, name=f"headrace_leak_{os.getpid()}"))


def test_leaks_thread():
    stop = threading.Event()
    kept.append(stop)
    threading.Thread(target=stop.wait, name="left-over", daemon=True).start()


def test_leaks_descriptor():
    kept.append(open(__file__))


def test_after_the_leaks_is_clean():
    pass
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the fixture said after each leaky test: name -> message, empty when it passed."""
    folder = tmp_path_factory.mktemp("leaks")
    (folder / "conftest.py").write_text(CONFTEST.read_text() + "\nGRACE_S = 0.4\n")
    (folder / "test_leaky.py").write_text(LEAKY_TESTS)
    report = folder / "report.xml"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    options = ["-q", "-p", "no:cacheprovider", f"--rootdir={folder}", f"--junit-xml={report}"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, folder],
        env=environment,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        assert case.find("failure") is None, f"{case.get('name')} failed by itself: {case.find('failure').text}"
        error = case.find("error")
        found[case.get("name", "")] = "" if error is None else error.text or ""
    return found


@pytest.mark.parametrize(
    ("test_name", "said"),
    [
        ("test_leaks_process", "time.sleep(60)"),
        ("test_leaks_forkserver_worker", "forkserver"),
        ("test_leaks_zombie", "exited but never reaped"),
        ("test_leaks_orphan", "(sleep 60)"),
        ("test_leaks_shared_memory", "shared memory /dev/shm/headrace_leak_"),
        ("test_leaks_thread", "thread 'left-over', daemon"),
        ("test_leaks_descriptor", "test_leaky.py"),
    ],
)
def test_a_leak_is_named(outcomes: dict[str, str], test_name: str, said: str) -> None:
    assert "the test left behind" in outcomes[test_name]
    assert said in outcomes[test_name]


@pytest.mark.parametrize(
    "test_name",
    [
        "test_clean",
        "test_thread_that_ends_in_time",
        "test_orphan_that_exits_is_no_leak",
        "test_garbage_is_no_leak",
        "test_after_the_leaks_is_clean",
    ],
)
def test_what_is_no_leak_passes(outcomes: dict[str, str], test_name: str) -> None:
    assert outcomes[test_name] == ""
