"""Reward-only state: an environment whose observations replay and whose rewards do not is noticed, never trained on.

gymnasium.wrappers.NormalizeReward keeps a running variance beyond resets. Its observations are exact after a replay, so
only the checksum sees it: when a worker is lost, in a resume, on another number of workers, after Ctrl-C.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import ReplayError
from support.command import run
from support.topology_runs import processes
from support.waiting import is_gone, wait_until

NORMALIZED = hr.EnvSpec("CartPole-v1", wrappers=("gymnasium.wrappers:NormalizeReward",))
SAID = (
    r"env \d, episode \d+:\d+, seed \d+: its \d+ replayed steps end at .*other rewards.*class C.*NormalizeReward.*check"
)


@contextmanager
def trained(env: hr.EnvSpec, updates: int = 3, **place: Any) -> Iterator[hr.PPO]:
    with hr.PPO("MlpPolicy", env, n_envs=4, n_steps=32, batch_size=64, n_epochs=1, seed=5, **place) as model:
        model.learn(updates * 128)
        yield model


def test_a_lost_worker() -> None:
    with trained(NORMALIZED, **processes(2)) as model:
        victim = model.parts.reader.place.workers.pids[1]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: is_gone(victim))
        with pytest.raises(ReplayError, match=SAID):
            model.learn(256)


def test_a_resume(tmp_path: Path) -> None:
    with trained(NORMALIZED, topology="inline") as model:
        model.save(tmp_path / "saved")
    with hr.PPO.load(tmp_path / "saved", topology="inline") as model, pytest.raises(ReplayError, match=SAID):
        model.learn(128)
    with hr.PPO.load(tmp_path / "saved", topology="inline", weights_only=True) as model:
        model.learn(128)


def test_another_number_of_workers() -> None:
    with trained(NORMALIZED, topology="threads", workers=2) as model:
        model.parts.rescale(1)
        with pytest.raises(ReplayError, match=SAID):
            model.learn(128)


def test_after_ctrl_c() -> None:
    with trained(NORMALIZED, topology="inline") as model:
        model._is_torn = True  # as a signal in the middle of collecting leaves it
        with pytest.raises(ReplayError, match=SAID):
            model.learn(128)


def test_the_first_episodes_are_replayed_even_so(tmp_path: Path) -> None:
    """Before any reset but the first there is nothing that a replay could miss: no false alarm."""
    with trained(hr.EnvSpec("Pendulum-v1", wrappers=NORMALIZED.wrappers), topology="inline") as model:
        model.save(tmp_path / "saved")
        model.learn(128)
        calm = model.run.hashes()
    with hr.PPO.load(tmp_path / "saved", topology="inline") as model:
        model.learn(128)
        assert model.run.hashes() == calm


def test_headrace_check_agrees(tmp_path: Path) -> None:
    said = run("check", "CartPole-v1", "--wrappers", NORMALIZED.wrappers[0], cwd=tmp_path)
    assert said.code == 0
    assert "class         C" in said.out
