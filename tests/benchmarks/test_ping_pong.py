"""More waiting processes than cores: the spin before a sleep gives way, and spinning always would show."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "ping_pong.py"


def against_sleeping_at_once(*spins: str, cores: int) -> list[float]:
    """Round trips of 16 pairs, as a share of those of processes that never spin: medians of three rounds in turns.

    Per second of CPU time: what others do on the machine does not count.
    """

    def round_trips_per_cpu_s(spin: str) -> float:
        options = {"--pairs": 16, "--cores": cores, "--seconds": 0.4, "--spin": spin}
        command = [sys.executable, str(SCRIPT), *(str(word) for option in options.items() for word in option)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return float(json.loads(done.stdout)["per_cpu_s"])

    rounds = [[round_trips_per_cpu_s(spin) for spin in (*spins, "never")] for _ in range(3)]
    return [median(one[i] / one[-1] for one in rounds) for i in range(len(spins))]


@pytest.mark.alone
def test_sixteen_waiting_pairs_on_two_cores_do_not_collapse() -> None:
    [adaptive] = against_sleeping_at_once("adaptive", cores=2)
    assert adaptive > 0.6, f"{adaptive:.2f} of the round trips of processes that sleep at once"


@pytest.mark.alone
def test_sixteen_waiting_pairs_on_one_core_do_not_collapse() -> None:
    """On two cores a scheduler may run both of a pair for a while, so that spinning pays; on one core it never does."""
    adaptive, always = against_sleeping_at_once("adaptive", "always", cores=1)
    assert adaptive > 0.6, f"{adaptive:.2f} of the round trips of processes that sleep at once"
    assert always < 0.6, "a spin that does not adapt would not be noticed here"
