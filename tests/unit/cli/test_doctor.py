"""headrace doctor without a run: one line for each matter, JSON beside it, and --clean takes the dead's alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli import machine_check
from headrace.cli.main import main
from headrace.memory.owner import Owner, this_process
from headrace.planning.finding import Finding


@pytest.fixture
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of segments of our own: what other programs of this machine left is not the test's."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(machine_check, "DIRECTORY", folder)
    monkeypatch.setattr(machine_check, "left_folders", lambda prefix: [])
    return folder


def put(folder: Path, owner: Owner) -> Path:
    path = folder / f"headrace-{owner.mark}-0123456789abcdef"
    path.write_bytes(b"x" * 1_000)
    return path


def test_clean_removes_what_dead_runs_left_and_nothing_else(
    shm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    me = this_process()
    live, dead, other = put(shm, me), put(shm, Owner(me.pid, me.started - 1)), shm / "psm_1234"
    other.touch()
    code = main(["doctor"])
    before = capsys.readouterr().out
    assert "1 of dead runs, 1 KB; 1 in use" in before
    assert "headrace doctor --clean" in before
    assert dead.exists(), "without --clean nothing goes"

    assert main(["doctor", "--clean", "--json", str(tmp_path / "found.json")]) == code
    after = capsys.readouterr().out
    assert after.startswith("removed 1 shared-memory segment of dead runs, 1 KB\n")
    assert "1 in use" in after
    assert live.exists()
    assert other.exists()
    assert not dead.exists()
    answer = json.loads((tmp_path / "found.json").read_text())
    assert answer["removed"] == [dead.name]
    names = [one["name"] for one in answer["findings"]]
    assert names[:2] == ["shared memory", "cores"]
    assert all(one["level"] in ("ok", "warning", "problem") for one in answer["findings"])
    assert all(f" {name} " in after for name in names)


def test_a_problem_is_exit_code_1(shm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--need", "900TB"]) == 1
    assert "PROBLEM  shared memory" in capsys.readouterr().out


def test_a_need_that_is_none(shm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--need", "much"]) == 2
    assert "--need: expected bytes" in capsys.readouterr().err


def test_a_line_each_and_what_to_do_below_it() -> None:
    findings = [Finding("cores", "ok", "2 cores"), Finding("clock", "problem", "stands\nstill", "restart")]
    lines = machine_check.text_of(findings).splitlines()
    assert lines[0].split() == ["OK", "cores", "2", "cores"]
    assert lines[1].startswith("PROBLEM  clock")
    assert lines[2].strip() == "-> restart"
    assert lines[3] == "this machine: 1 problem"
    assert len(lines) == 4, "what is quoted breaks no line"
