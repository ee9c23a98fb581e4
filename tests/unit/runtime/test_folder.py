"""A folder that goes with its owner: killed at any moment of making it, the owner leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from headrace.runtime.folder import Folder
from support.command import PATHS
from support.waiting import wait_until

OWNER = """
import os, subprocess, sys
from headrace.runtime.folder import Folder

make = os.mkdir

def killed(*_, **__):
    os.kill(os.getpid(), 9)

def made(*given):
    make(*given)
    killed()

if sys.argv[2] == "before it has a cleaner":
    subprocess.Popen = killed
else:
    os.mkdir = made
Folder(sys.argv[1])
"""


@pytest.mark.parametrize("when", ["before it has a cleaner", "as soon as it is there"])
def test_an_owner_that_is_killed_on_the_way_leaves_no_folder(when: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c", OWNER, str(tmp_path / "hub-"), when]
    assert subprocess.run(program, env={**os.environ, "PYTHONPATH": PATHS}, check=False).returncode == -9
    wait_until(lambda: not list(tmp_path.iterdir()), 10.0)


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "hub-a"
    theirs.mkdir()
    with (
        mock.patch("headrace.runtime.folder.secrets.token_hex", return_value="a"),
        pytest.raises(FileExistsError),
    ):
        Folder(str(tmp_path / "hub-"))
    assert theirs.exists(), "its cleaner has ended by now"
