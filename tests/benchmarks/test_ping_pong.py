"""More waiting processes than cores: the spin before a sleep gives way, and spinning always would show."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "ping_pong.py"


def round_trips_per_s(spin: str) -> float:
    command = [sys.executable, str(SCRIPT), "--pairs", "16", "--cores", "2", "--seconds", "0.4", "--spin", spin]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return float(json.loads(done.stdout)["per_s"])


@pytest.mark.alone
def test_sixteen_waiting_pairs_on_two_cores_do_not_collapse() -> None:
    rounds = [[round_trips_per_s(spin) for spin in ("adaptive", "always", "never")] for _ in range(3)]
    adaptive, always = (median(one[i] / one[2] for one in rounds) for i in range(2))
    assert adaptive > 0.6, f"{adaptive:.2f} of the round trips of processes that sleep at once"
    assert always < 0.6, "a spin that does not adapt would not be noticed here"
