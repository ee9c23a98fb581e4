"""What the scripts share: a run that other processes disturbed is made again, so that it does not decide a median."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def harness() -> Iterator[Any]:
    found = importlib.util.spec_from_file_location("benchmark_harness", ROOT / "benchmarks" / "harness.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["benchmark_harness"] = module  # dataclasses look their module up
    found.loader.exec_module(module)
    yield module
    del sys.modules["benchmark_harness"]


def test_a_disturbed_run_is_made_again(harness: Any) -> None:
    values = iter([1.0, 2.0, 3.0])
    shares = iter([0.9, 0.0, 0.0])
    said: list[str] = []
    found = harness.alternate({"a": lambda: next(values)}, 2, said.append, others=lambda: next(shares))
    assert found == {"a": [2.0, 3.0]}
    assert "others took 90% of a core" in said[0]


def test_it_is_not_made_again_for_ever(harness: Any) -> None:
    runs = iter(range(10))
    found = harness.alternate({"a": lambda: next(runs)}, 1, lambda text: None, others=lambda: 1.0)
    assert found == {"a": [harness.MOST_REPEATS]}


def test_what_counts_as_others(harness: Any) -> None:
    """Our own children do not, once they have ended; one that goes on does."""
    program = "n = 0\nfor i in range(4_000_000): n += i\nprint(n, flush=True)\nimport sys; sys.stdin.read()"
    others = harness.Others()
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    assert others() > 0.2, "it runs, and is not ours to count yet"
    own_s = others._now()[1]
    child.communicate()
    assert others._now()[1] - own_s > 0.05, "it has ended: what it took is ours"
