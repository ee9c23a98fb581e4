"""An environment leaves a thread, or a handler for the end, that would keep the process for ever: commands end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.command import TINY, end, result_of, start

MODULE = """
import atexit, threading, time
from support.faulty_envs import Steady
class Thread(Steady):
    def __init__(self):
        super().__init__()
        threading.Thread(target=time.sleep, args=(3600,), name="of-the-simulator").start()
class AtExit(Steady):
    def __init__(self):
        super().__init__()
        atexit.register(time.sleep, 3600)
"""
ENDS = """
import atexit, multiprocessing.util, threading, time, weakref
from pathlib import Path
from headrace.cli.ending import end_in_time
{}
class Ours: ...
ours = Ours()
weakref.finalize(ours, print, "finalized", flush=True)
end_in_time(7, 0.2)
"""


@pytest.mark.parametrize(
    ("left", "named"),
    [
        ("threading.Thread(target=time.sleep, args=(3600,), name='of-the-simulator').start()", "threads of-the-sim"),
        ("atexit.register(time.sleep, 3600)", "something that atexit was given"),
    ],
    ids=["thread", "atexit"],
)
def test_what_is_left_is_named_and_ours_is_done(left: str, named: str) -> None:
    done = subprocess.run([sys.executable, "-c", ENDS.format(left)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (7, "finalized\n")
    assert named in done.stderr


def test_nothing_left_nothing_said() -> None:
    program = ENDS.format("").replace("0.2", "30.0")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "finalized\n", "")


def test_train_ends(tmp_path: Path) -> None:
    (tmp_path / "lingering.py").write_text(MODULE)
    where = (*TINY, "--topology", "inline", "--check-episodes", "0", "--total-timesteps", "16", "--run-dir", "out")
    done = end(start("train", "lingering:Thread", *where, cwd=tmp_path, has_report=False), 60)
    assert done.code == 0
    assert "ended what was still running 5 s after the command: threads of-the-simulator" in done.err
    assert result_of(tmp_path / "out")["exit_reason"] == "done"


def test_check_ends(tmp_path: Path) -> None:
    """After its answer; the process that played is given a moment."""
    (tmp_path / "lingering.py").write_text(MODULE)
    done = end(start("check", "lingering:Thread", cwd=tmp_path), 100)
    assert done.code == 0
    assert "guarantee" in done.out
    assert "had not ended 3 s after the answer and was killed" in done.err
