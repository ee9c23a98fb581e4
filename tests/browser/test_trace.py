"""The trace in a real browser: it lists, filters and shows, and texts stay texts. Needs Chromium; skipped without."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.agents.records import Failure, Group
from headrace.agents.rollouts import AgentRollouts
from headrace.views.trace import write_trace

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")

EVIL = "</script><script>document.title='owned'</script><b id=injected>x</b>\x1b[2J"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "a.html"
    with AgentRollouts(["Bandit", "Sokoban"], backend="sequential", group_size=4) as rollouts:
        groups = rollouts.run(4)
    first, *rest = groups[0].episodes
    turn = replace(first.turns[0], prompt=f"needle {EVIL}", answer=EVIL)
    odd = replace(first, status="failed", failure=Failure("env", EVIL), turns=(turn,), system=EVIL)
    changed: list[Group] = [replace(groups[0], episodes=(odd, *rest)), *groups[1:]]
    write_trace(changed, None, f"run {EVIL}", path)
    return path


def shown(page: Path, address: str, folder: Path) -> str:
    """The document as it is after its script has run."""
    assert CHROMIUM is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    command = [CHROMIUM, *options, f"--user-data-dir={folder}", "--virtual-time-budget=2000", "--dump-dom"]
    done = subprocess.run(
        [*command, f"file://{page}{address}"], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


def test_it_lists_and_shows(page: Path, tmp_path: Path) -> None:
    text = shown(page, "#episode=1-2", tmp_path)
    assert len(re.findall('class="item"', text)) == 16
    assert "<h2>1-2 Sokoban</h2>" in text
    assert text.count('class="token"') > 10
    assert 'class="said given"' in text


@pytest.mark.parametrize(
    ("address", "count"),
    [("#tag=Sokoban", 8), ("#tag=Sokoban&text=needle", 0)],
)
def test_it_filters(page: Path, tmp_path: Path, address: str, count: int) -> None:
    text = shown(page, address, tmp_path)
    assert len(re.findall('class="item"', text)) == count
    assert f"{count} of 16 episodes" in text


def test_texts_stay_texts(page: Path, tmp_path: Path) -> None:
    """Of the one episode that failed, which the search finds by its text."""
    text = shown(page, "#status=failed&text=NEEDLE", tmp_path)
    assert "1 of 16 episodes" in text
    assert "needle &lt;/script&gt;&lt;script&gt;" in text, "shown, and escaped by the browser itself"
    assert "\\x1b[2J" in text
    assert 'id="injected"' not in text
    assert "<title>owned" not in text
