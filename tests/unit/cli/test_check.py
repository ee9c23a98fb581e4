"""`headrace check ENV`: one answer; what it is at, a terminal shows for a while and nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from support.command import run

ANSWER = ["environment", "observation", "action", "class", "step", "guarantee", "guarantee", "guarantee", "guarantee"]


def test_the_answer_and_no_more(tmp_path: Path) -> None:
    outcome = run("check", "CartPole-v1", cwd=tmp_path)
    assert outcome.code == 0
    assert [line.split()[0] for line in outcome.out.splitlines()] == ANSWER
    assert outcome.err == ""


def test_a_terminal_shows_what_it_is_at_and_keeps_the_answer() -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "headrace", "check", "CartPole-v1"]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm"}) as process:
        os.close(theirs)
        seen = b""
        with suppress(OSError):  # the other side was closed
            while data := os.read(ours, 4096):
                seen += data
    os.close(ours)
    assert process.returncode == 0
    assert b"playing 3 instances in turn ..." in seen
    shown = [line.rpartition("\x1b[K")[2] for line in seen.decode().replace("\r\n", "\n").split("\n")]
    assert [line.split()[0] for line in shown if line] == ANSWER
