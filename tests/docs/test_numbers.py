"""The ratios in README and docs/benchmarks.md are those of benchmarks/results, and all mean "larger is better".

page ──> table rows ──> N.NNx  ──>  a claim's ratio; for times and step counts (smaller is better) its inverse
"""

from __future__ import annotations

import json
import re
from pathlib import Path

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
