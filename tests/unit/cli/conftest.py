"""What the tests of the command line share."""

from __future__ import annotations

import pytest

from headrace.launch.decision import Measured
from headrace.launch.rehearsal import Rehearsal


@pytest.fixture
def measures_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """topology=auto finds a cheap environment and two free cores, however busy the machine is."""
    monkeypatch.setattr("headrace.launch.auto.measure", lambda spec, seed, envs, n_envs: Measured(8e-6, 0.1, 1.0))
    monkeypatch.setattr("headrace.build.rehearse", lambda *_: Rehearsal(1e-5, 0.01))
    monkeypatch.setattr("headrace.launch.measuring.FreeCores.seen", lambda free: 2.0)
