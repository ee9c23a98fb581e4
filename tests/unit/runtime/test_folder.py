"""A folder that goes with its owner: killed at any moment of making it, the owner leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from headrace.memory.owner import Owner, this_process
from headrace.runtime.folder import Folder, left_folders
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
    theirs = tmp_path / f"hub-{this_process().mark}-a"
    theirs.mkdir()
    with (
        mock.patch("headrace.runtime.folder.secrets.token_hex", return_value="a"),
        pytest.raises(FileExistsError),
    ):
        Folder(str(tmp_path / "hub-"))
    assert theirs.exists(), "its cleaner has ended by now"


def test_folders_of_the_dead_are_found_and_nothing_else(tmp_path: Path) -> None:
    dead, mine = Owner(99, 1), this_process()
    reused = Owner(mine.pid, mine.started - 1)  # this process has its id now
    for owner in (dead, mine, reused):
        (tmp_path / f"hub-{owner.mark}-aa").mkdir()
    (tmp_path / "hub-no-owner").mkdir()
    (tmp_path / f"other-{dead.mark}-aa").mkdir()
    (tmp_path / f"hub-{dead.mark}-file").touch()
    (tmp_path / f"hub-{dead.mark}-link").symlink_to(tmp_path / f"hub-{dead.mark}-aa")
    found = left_folders("hub-", tmp_path, lambda owner: owner != dead and owner.is_alive())
    assert {path.name for path in found} == {f"hub-{owner.mark}-aa" for owner in (dead, reused)}
    assert left_folders("hub-", tmp_path / "missing") == []
