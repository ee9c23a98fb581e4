"""The ratios in README and docs/benchmarks.md are those of benchmarks/results, and all mean "larger is better".

page ──> table rows ──> N.NNx  ──>  a claim's ratio; for times and step counts (smaller is better) its inverse

docs/chaos.md is benchmarks/results/chaos.json, written out by the script itself.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "benchmarks.md"]
RATIO = re.compile(r"\b\d+\.\d\dx")
SMALLER_IS_BETTER = ("s", "us", "steps")  # units


def claimed(folder: Path) -> set[str]:
    """Every ratio of the results, as pages print it."""
    claims = [one for path in sorted(folder.glob("*.json")) for one in json.loads(path.read_text())["claims"]]
    found = [(one["ratio"], one["unit"]) for one in claims if one["ratio"]]
    return {f"{1 / ratio if unit in SMALLER_IS_BETTER else ratio:.2f}x" for ratio, unit in found}


def unknown_ratios(page: str, known: set[str]) -> list[str]:
    rows = [line for line in page.splitlines() if line.startswith("|")]
    return [ratio for row in rows for ratio in RATIO.findall(row) if ratio not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_ratio_of_a_table_was_measured(page: Path) -> None:
    text = page.read_text()
    assert RATIO.search(text), "no ratio at all"
    assert not unknown_ratios(text, claimed(ROOT / "benchmarks" / "results"))


def test_an_invented_ratio_is_caught() -> None:
    known = claimed(ROOT / "benchmarks" / "results")
    real = sorted(known)[0]
    assert unknown_ratios(f"| a | {real} |\n| b | 99.99x |\n", known) == ["99.99x"]


# --------------------------------------------------------------------------------------------------- docs/chaos.md

CHAOS = ROOT / "benchmarks" / "results" / "chaos.json"


def page_of(document: dict[str, Any]) -> str:
    """As benchmarks/chaos.py writes it."""
    found = importlib.util.spec_from_file_location("chaos_page", ROOT / "benchmarks" / "chaos_points" / "page.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return str(module.rendered(document))


def test_the_reliability_report_is_what_was_measured() -> None:
    document = json.loads(CHAOS.read_text())
    assert (ROOT / "docs" / "chaos.md").read_text() == page_of(document)
    numbers = {entry["number"] for entry in document["extra"]["points"]}
    assert numbers >= {str(number) for number in range(1, 23)}, "every point of the bar"
    assert numbers >= {"14, slow learner, long", "14, slow actors, long"}


def test_memory_is_shown_with_files_too() -> None:
    page = (ROOT / "docs" / "chaos.md").read_text()
    assert "files included: slow actors: 17.1 MB, without files 0.279 MB" in page
    assert "files included: slow learner: 13.4 MB, without files 0.0123 MB" in page


def test_another_figure_or_a_broken_promise_would_show() -> None:
    document = json.loads(CHAOS.read_text())
    page = page_of(document)
    for change in ({"value": 99_999}, {"holds": False}):
        other = json.loads(CHAOS.read_text())
        other["claims"][0] |= change
        assert page_of(other) != page
    missing = [text for entry in document["extra"]["points"] for text in entry["missing"]]
    assert missing
    assert all(f"| {text} | not built yet | | |" in page for text in missing)


def test_links_within_the_reliability_report_lead_somewhere() -> None:
    page = (ROOT / "docs" / "chaos.md").read_text()
    headings = [line.removeprefix("## ").lower() for line in page.splitlines() if line.startswith("## ")]
    anchors = {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\(#([^)]*)\)", page)) == anchors
