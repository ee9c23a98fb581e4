"""Stacks of a process that can't speak: written while it hangs, also if it holds the GIL; not for one that is slow."""

from __future__ import annotations

import faulthandler
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

import pytest

from headrace.last_words import StallWatch


def said_after(folder: Path, stall_s: float, live: Any) -> tuple[list[float], str]:
    """What is said, and written, while `live(watch)` runs."""
    said: list[float] = []
    with (folder / "log").open("a") as file:
        watch = StallWatch(file, stall_s, said.append)
        with watch.watching():
            live(watch)
    return said, (folder / "log").read_text()


def hold_the_gil(watch: StallWatch) -> None:
    """A C function that never lets go of it: about a second."""
    until = time.monotonic() + 0.8
    while time.monotonic() < until:
        pow(3, 600_000)


@pytest.mark.alone
def test_a_hang_that_holds_the_gil_is_written_down(tmp_path: Path) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(100.0)  # nor does the loop around it
    try:
        said, written = said_after(tmp_path, 0.2, hold_the_gil)
    finally:
        sys.setswitchinterval(before)
    assert written.startswith("Timeout (0:00:00.200000)!")
    assert "in hold_the_gil" in written
    assert written.count("Timeout") == 1
    assert said in ([], [0.2]), "said only if the GIL was free for a moment"


@pytest.mark.alone
def test_signs_of_life_and_slow_ones(tmp_path: Path) -> None:
    """After a pause that was only slow, only a ten times longer one counts."""

    def live(watch: StallWatch) -> None:
        for _ in range(30):
            time.sleep(0.02)
            watch.alive()
        time.sleep(0.6)  # a stall
        watch.alive()
        time.sleep(0.7)  # no longer one: 6 s are, now
        watch.alive()

    said, written = said_after(tmp_path, 0.4, live)
    assert said == [0.4]
    assert written.count("Timeout") == 1


def test_nobody_watches_with_zero(tmp_path: Path) -> None:
    threads = threading.active_count()

    def live(watch: StallWatch) -> None:
        watch.alive()
        assert threading.active_count() == threads

    assert said_after(tmp_path, 0.0, live) == ([], "")


CRASH = """
import ctypes, faulthandler, sys
from headrace import last_words
if sys.argv[1] == "users own":
    faulthandler.enable(open("own", "w"))
last_words.watch_stderr()
with open("log", "w") as file:
    with last_words.stacks_into(file):
        if sys.argv[1] != "after":
            ctypes.string_at(0)
ctypes.string_at(0)
"""


@pytest.mark.parametrize(("when", "where"), [("inside", "log"), ("after", "stderr"), ("users own", "own")])
def test_a_crash_is_written_where_it_belongs(when: str, where: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CRASH, when], cwd=tmp_path, text=True, capture_output=True, check=False
    )
    assert done.returncode < 0
    texts = {"stderr": done.stderr} | {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert {name for name, text in texts.items() if "Segmentation fault" in text} == {where}


def test_faulthandler_is_left_as_it_was() -> None:
    """pytest's own, here."""
    assert faulthandler.is_enabled()
    from headrace.last_words import stacks_into

    file: IO[Any]
    with open("/dev/null", "w") as file, stacks_into(file):
        pass
    assert faulthandler.is_enabled()
