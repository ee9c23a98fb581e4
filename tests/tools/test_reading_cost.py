"""The house stays readable: what a path through it costs its reader, by call trace, within the limits of the tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import reading_cost

import headrace as hr
from headrace.clock import now_s
from headrace.collecting import processes, watch


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("reading") / "cost.json"
    reading_cost.main(["--route", "processes", "--route", "loky", "--json", str(path)])
    document: dict[str, Any] = json.loads(path.read_text())
    return document


LIMITED = [(route, name) for route, limits in reading_cost.LIMITS.items() for name in limits]


@pytest.mark.parametrize(("route", "name"), LIMITED)
def test_limits(report: dict[str, Any], route: str, name: str) -> None:
    figures, files = report["routes"][route]["figures"], report["routes"][route]["files"]
    on_path = {path: one["lines"] for path, one in files.items() if one["where"] == "path"}
    assert figures[name] <= reading_cost.LIMITS[route][name], f"{route}: {figures}\n{on_path}"


@pytest.mark.parametrize("route", ["processes", "loky"])
def test_the_trace_of_calls_misses_nothing_that_the_trace_of_lines_sees(report: dict[str, Any], route: str) -> None:
    assert report["routes"][route]["disputed"] == []


def test_the_rooms_are_there_and_run(report: dict[str, Any]) -> None:
    strays = {room: one for room, one in report["rooms"].items() if one["lines"] is None or not one["is_on_path"]}
    assert not strays
    assert sum(one["lines"] for one in report["rooms"].values()) <= reading_cost.ROOMS_LINES


def test_the_architecture_names_the_figures_that_hold() -> None:
    """Its table has the limits, and what is measured is never above them."""
    lines = (Path(reading_cost.__file__).parents[1] / "ARCHITECTURE.md").read_text().splitlines()
    split = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("|")]
    rows = {cells[1]: cells[2:4] for cells in split}
    limits, package = reading_cost.LIMITS, Path(hr.__file__).parent
    processes = [str(limits["processes"]["files"]), f"{limits['processes']['lines']:,}"]
    assert rows["env.step -> weights, worker processes"] == processes
    rooms = [str(len(reading_cost.ROOMS)), f"{reading_cost.ROOMS_LINES:,}"]
    assert rows["the rooms of one observation (below)"] == rooms
    assert rows["visits to train.py on the way"][1] == str(len((package / "train.py").read_text().splitlines()))
    assert rows["LLM turn -> record, loky"][0] == str(limits["loky"]["files"])


def test_every_side_of_the_path_is_seen(report: dict[str, Any]) -> None:
    """The worker's, the reader's and the compiled one: a trace that lost one of them would come out cheap."""
    files = report["routes"]["processes"]["files"]
    assert {"train.py", "acting/actor.py", "memory/slab.py", "memory/atomics.py", "weights/store.py"} <= set(files)


def test_no_source_file_is_two_rooms() -> None:
    lines = {str(path): len(path.read_text().splitlines()) for path in Path(hr.__file__).parent.rglob("*.py")}
    assert {path: count for path, count in lines.items() if count > 350} == {}


def test_the_watch_runs_by_the_clock_and_not_with_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tool does not count as the path: with a stopped clock no number of updates runs it."""
    assert {("collecting/watch.py", "look_after")} == reading_cost.BY_THE_CLOCK
    looks: list[object] = []

    def look_after(workers: processes.Workers) -> None:
        looks.append(workers)
        watch.look_after(workers)

    options: dict[str, Any] = {"n_envs": 4, "n_steps": 4, "batch_size": 8, "n_epochs": 1, "seed": 1}
    with hr.PPO("MlpPolicy", "CartPole-v1", topology="processes", workers=2, **options) as model:
        model.run.update(1000)
        time_s = now_s() + 1.0
        monkeypatch.setattr(processes, "look_after", look_after)
        monkeypatch.setattr(processes, "now_s", lambda: time_s)
        model.run.update(1000)
        assert len(looks) == 1
        looks.clear()
        for _ in range(20):
            model.run.update(1000)
        assert not looks
        time_s += 1.0
        model.run.update(1000)
        assert len(looks) == 1
