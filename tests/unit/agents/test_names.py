"""What users import from headrace.agents: every name leads somewhere, pages use no others, and none costs a start."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headrace.agents

ROOT = Path(__file__).parents[3]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
    *sorted((ROOT / "examples").glob("*.py")),
]
HEAVY = ("torch", "transformers", "gymnasium", "numpy", "joblib", "openai", "pyarrow")


def python_of(page: Path) -> str:
    text = page.read_text()
    return text if page.suffix == ".py" else "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S))


def imported(code: str) -> list[tuple[str, str]]:
    """(module, name) of every `from module import name` of headrace's."""
    froms = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    return [(node.module or "", one.name) for node in froms for one in node.names if node.module]


@pytest.mark.parametrize("name", headrace.agents.__all__)
def test_every_name_leads_somewhere(name: str) -> None:
    assert getattr(headrace.agents, name) is not None
    assert name in dir(headrace.agents)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match=r"module 'headrace\.agents' has no attribute 'Stap'"):
        _ = headrace.agents.Stap


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_import_from_no_deeper(page: Path) -> None:
    ours = [(module, name) for module, name in imported(python_of(page)) if module.startswith("headrace.agents")]
    assert [one for one in ours if one[0] != "headrace.agents"] == []
    assert [name for _, name in ours if name not in headrace.agents.__all__] == []
    assert not re.findall(r"headrace\.agents\.[a-z_]+\.", page.read_text()), "nor does its prose"


def test_the_guide_is_looked_at() -> None:
    """The check above has something to check."""
    guide = python_of(ROOT / "docs" / "guides" / "llm-agents.md")
    assert ("headrace.agents", "Step") in imported(guide)
    assert len({name for module, name in imported(guide) if module == "headrace.agents"}) >= 9


def test_importing_it_imports_nothing_heavy() -> None:
    program = f"import headrace.agents, sys; dir(headrace.agents); print(*(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def test_what_is_not_installed_is_named() -> None:
    program = (
        "import sys; sys.modules['transformers'] = sys.modules['torch'] = None\nfrom headrace.agents import in_process"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert "pip install 'headrace[llm]'" in done.stderr
