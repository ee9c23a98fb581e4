"""docs/environments.md is docs/environments.json, written out by its script; a row that could not be made says why."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = importlib.util.spec_from_file_location("environments_page", ROOT / "tools" / "environments.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, "environments_page", module)  # dataclasses look their module up
    found.loader.exec_module(module)
    return module


def test_every_refused_row_says_why(script: Any) -> None:
    rows = [script.Row(**row) for row in json.loads(script.ROWS.read_text())]
    refused = [row.refused for row in rows if row.refused]
    assert [text for text in refused if text.strip().endswith(":") or len(text) < 20] == []
    for row in rows:
        assert f"| {row.family} | {row.env} |" in script.PAGE.read_text()
        assert row.refused in script.PAGE.read_text()


def test_the_page_is_the_rows_and_says_what_to_use_instead(script: Any) -> None:
    rows = [script.Row(**row) for row in json.loads(script.ROWS.read_text())]
    page = script.PAGE.read_text()
    assert script.page(rows, []) == page
    for row in rows:
        if "could not be made" in row.refused:
            assert "; use [" in next(line for line in page.splitlines() if f"| {row.env} |" in line)


def test_a_row_without_a_cause_is_not_written(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "headrace: error: Mine-v0: could not be made: AssertionError: "
    monkeypatch.setattr(script, "run", lambda command: ("", said, 1))
    with pytest.raises(SystemExit, match="no cause"):
        script.row_of("mine", "Mine-v0", "")
    monkeypatch.setattr(script, "run", lambda command: ("", said + "no licence", 1))
    assert script.row_of("mine", "Mine-v0", "").refused == "could not be made: AssertionError: no licence"
