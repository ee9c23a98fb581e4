"""Orphans: a segment is removed if its owner is dead for certain, and every doubt keeps it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.memory.orphans import remove_orphans, sightings
from headrace.memory.owner import Owner, owner_in, this_process
from headrace.memory.segment import PREFIX, SharedSegment

DEAD = Owner(4_000_000, 1)  # above the largest process id that the test's oracle calls alive


def is_alive(owner: Owner) -> bool:
    return owner != DEAD and owner.is_alive()


def put(folder: Path, owner: Owner, token: str = "0123456789abcdef") -> Path:
    path = folder / f"{PREFIX}{owner.mark}-{token}"
    path.write_bytes(b"x" * 10)
    return path


def standings(folder: Path) -> dict[str, str]:
    return {one.name: one.standing for one in sightings(folder, is_alive)}


def test_a_dead_owners_segment_is_removed_once(tmp_path: Path) -> None:
    path = put(tmp_path, DEAD)
    assert standings(tmp_path) == {path.name: "orphan"}
    assert path.exists(), "looking removes nothing"
    assert [(one.name, one.size_bytes) for one in remove_orphans(tmp_path, is_alive)] == [(path.name, 10)]
    assert not path.exists()
    assert remove_orphans(tmp_path, is_alive) == []


def test_a_live_owners_segment_stays(tmp_path: Path) -> None:
    path = put(tmp_path, this_process())
    assert standings(tmp_path) == {path.name: "live"}
    assert remove_orphans(tmp_path, is_alive) == []
    assert path.exists()


def test_a_process_id_that_was_given_again_is_not_the_owner(tmp_path: Path) -> None:
    me = this_process()
    path = put(tmp_path, Owner(me.pid, me.started - 1))
    assert standings(tmp_path) == {path.name: "orphan"}


def test_a_segment_that_a_process_still_holds_stays(tmp_path: Path) -> None:
    """Its owner's number means nothing here: it may be one of another container that shares /dev/shm."""
    path = put(tmp_path, DEAD)
    with path.open("rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_SH)
        assert standings(tmp_path) == {path.name: "held"}
        assert remove_orphans(tmp_path, is_alive) == []
        assert path.exists()
    assert [one.name for one in remove_orphans(tmp_path, is_alive)] == [path.name]


def test_what_others_have_made_is_not_even_looked_at(tmp_path: Path) -> None:
    names = ["psm_0123", "sem.loky-4000000-abc", "torch_4000000_1", "headrace-4000000-1-XYZ", "headrace-notes"]
    for name in names:
        (tmp_path / name).touch()
    assert sightings(tmp_path, is_alive) == []
    assert remove_orphans(tmp_path, is_alive) == []
    assert {path.name for path in tmp_path.iterdir()} == {*names}


def test_links_and_folders_with_our_name_stay_and_so_does_what_they_point_to(tmp_path: Path) -> None:
    shm, target = tmp_path / "shm", tmp_path / "precious"
    shm.mkdir()
    target.write_text("mine")
    link, folder = shm / f"{PREFIX}{DEAD.mark}-{'a' * 16}", shm / f"{PREFIX}{DEAD.mark}-{'b' * 16}"
    link.symlink_to(target)
    folder.mkdir()
    assert standings(shm) == {link.name: "foreign", folder.name: "foreign"}
    assert remove_orphans(shm, is_alive) == []
    assert link.is_symlink()
    assert folder.is_dir()
    assert target.read_text() == "mine"


def test_another_users_segment_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, DEAD)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert standings(tmp_path) == {path.name: "foreign"}
    assert remove_orphans(tmp_path, is_alive) == []


def test_what_can_not_be_opened_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, DEAD)

    def refused(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "open", refused)
    assert standings(tmp_path) == {path.name: "unknown"}
    assert remove_orphans(tmp_path, is_alive) == []
    assert path.exists()


def test_a_name_without_its_owners_start_can_not_be_judged(tmp_path: Path) -> None:
    path = tmp_path / f"{PREFIX}4000000-{'a' * 16}"
    path.touch()
    assert standings(tmp_path) == {path.name: "unknown"}
    assert remove_orphans(tmp_path, is_alive) == []


def test_a_directory_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert sightings(tmp_path / "missing") == []


# -------------------------------------------------------------------------------------------- with real processes

OWNER = """
import os, signal, sys
from multiprocessing import resource_tracker
from headrace.memory.segment import SharedSegment
segment = SharedSegment.create(4096)
resource_tracker.unregister("/" + segment.name, "shared_memory")  # as if the tracker were killed with its process
print(segment.name, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def owner() -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    name = process.stdout.readline().strip()
    try:
        yield process, name
    finally:
        process.kill()
        process.communicate()
        Path("/dev/shm", name).unlink(missing_ok=True)


def test_a_killed_runs_segment_is_an_orphan_as_soon_as_it_is_dead(owner: tuple[subprocess.Popen[str], str]) -> None:
    process, name = owner

    def standing() -> str | None:
        return {one.name: one.standing for one in sightings()}.get(name)

    assert standing() == "live"
    held = SharedSegment.attach(name)  # a worker of it
    process.communicate("now\n")
    assert process.returncode == -signal.SIGKILL
    assert standing() == "held", "somebody maps it"
    assert name not in {one.name for one in remove_orphans(is_alive=lambda one: one.pid != process.pid)}
    held.buffer.release()
    del held
    assert standing() == "orphan"
    only_it = lambda one: one.pid != process.pid  # noqa: E731  # what other programs of this machine left stays
    assert [one.name for one in remove_orphans(is_alive=only_it)] == [name]
    assert not os.path.exists(f"/dev/shm/{name}")


def test_a_creator_holds_its_own_segment() -> None:
    """Also where its process id can't be seen: a lock is seen from every container."""
    segment = SharedSegment.create(64)
    try:
        seen = {one.name: one.standing for one in sightings(is_alive=lambda owner: False)}
        assert seen[str(segment.name)] == "held"
    finally:
        segment.unlink()


def test_an_ended_process_that_nobody_has_reaped_does_not_run() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    stat = Path(f"/proc/{process.pid}/stat").read_text()
    owner = Owner(process.pid, int(stat.rpartition(")")[2].split()[19]))
    assert owner.is_alive()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not owner.is_alive()
    process.communicate()
    assert not owner.is_alive()


def test_an_owner_is_read_from_a_name() -> None:
    me = this_process()
    assert owner_in(f"{PREFIX}{me.mark}-ab", PREFIX) == me
    assert owner_in(f"other-{me.mark}-ab", PREFIX) is None
    assert owner_in(f"{PREFIX}12-ab", PREFIX) is None
