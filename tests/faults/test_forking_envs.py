"""An environment forks its process and lets the copy go on, as code does that forgets os._exit.

a worker     the copy finds no shared memory and ends at its first touch
the learner  memory is the copy's own, and it ends with its rollout: there is no second learner
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import headrace as hr
from support.topology_runs import CASES, INLINE, bits_of, calm, processes
from support.waiting import is_gone, wait_until

GONE_S = 10.0


class Forks(gym.Wrapper[Any, Any, Any, Any]):
    """In the tenth step of its process's first environment that gets there."""

    def __init__(self, env: gym.Env[Any, Any], folder: str, then: str) -> None:
        super().__init__(env)
        self._folder, self._then, self._steps = Path(folder), then, 0
        self._is_copy = False

    def step(self, action: Any) -> Any:
        """The copy's rewards are others, so that they would be seen."""
        self._steps += 1
        if self._steps == 10 and not (self._folder / "forked").exists():
            (self._folder / "forked").touch()
            pid = os.fork()
            self._is_copy = pid == 0
            if self._is_copy and self._then == "exits":
                sys.exit(0)
            if not self._is_copy:
                (self._folder / "copy").write_text(str(pid))
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward + (1000.0 if self._is_copy else 0.0), terminated, truncated, info


@pytest.mark.parametrize("then", ["goes on", "exits"])
@pytest.mark.parametrize("place", ["inline", "threads", "processes"])
def test_a_copy_that_goes_on_disturbs_nobody(place: str, then: str, tmp_path: Path) -> None:
    where = {"inline": INLINE, "threads": INLINE | {"topology": "threads", "workers": "1"}, "processes": processes(1)}
    case = CASES["noisy"].wrapped(partial(Forks, folder=str(tmp_path), then=then))
    with case.start(**where[place]) as run:
        assert bits_of(run, case.advance(run, case.updates)) == calm("noisy")
        assert getattr(run.source.place, "replaced", None) is None or run.source.place.replaced.restarts == 0
        copy = int((tmp_path / "copy").read_text())
        wait_until(lambda: is_gone(copy), GONE_S)


def test_a_copy_writes_no_records(tmp_path: Path) -> None:
    def forking() -> gym.Env[Any, Any]:
        return Forks(gym.make("CartPole-v1"), str(tmp_path), "exits")

    with hr.PPO("MlpPolicy", forking, n_envs=2, n_steps=16, batch_size=32, seed=1, topology="inline") as model:
        model.learn(128, run_dir=tmp_path / "run")
    copy = int((tmp_path / "copy").read_text())
    wait_until(lambda: is_gone(copy), GONE_S)
    assert "SystemExit" not in (tmp_path / "run" / "log.txt").read_text()
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 4
