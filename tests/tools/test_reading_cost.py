"""The house stays readable: what a path through it costs its reader, by call trace, within the limits of the tool."""

from __future__ import annotations

import json
from typing import Any

import pytest
import reading_cost


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


def test_every_side_of_the_path_is_seen(report: dict[str, Any]) -> None:
    """The worker's, the reader's and the compiled one: a trace that lost one of them would come out cheap."""
    files = report["routes"]["processes"]["files"]
    assert {"train.py", "acting/actor.py", "memory/slab.py", "memory/atomics.py", "weights/store.py"} <= set(files)
