"""Ids that the user's script registered, in workers: also where the script's own code asks gym.make for them."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import headrace as hr
from support.command import PATHS
from support.faulty_envs import Steady

SCRIPT = """
    import sys
    import cloudpickle
    import gymnasium as gym
    import headrace as hr
    from support.faulty_envs import Steady

    class Mine(Steady):
        pass

    def make_env(env_id):  # CleanRL's
        def thunk():
            return gym.wrappers.RecordEpisodeStatistics(gym.make(env_id))
        return thunk

    gym.register("Mine-v0", "__main__:Mine")
    gym.register("Other-v0", Mine)
    gym.register("Outer-v0", lambda: gym.wrappers.TimeLimit(gym.make("Mine-v0"), 3))
    specs = [hr.EnvSpec(env) for env in (lambda: gym.make("Mine-v0"), make_env("Other-v0"), "Outer-v0")]
    with open(sys.argv[1], "wb") as file:
        file.write(cloudpickle.dumps(specs))
"""
ELSEWHERE = """
    import sys
    import cloudpickle
    for spec in cloudpickle.load(open(sys.argv[1], "rb")):
        print(type(spec.make().unwrapped).__name__)
"""


def said(script: str, *arguments: str) -> list[str]:
    command = (
        [sys.executable, *arguments] if script == "" else [sys.executable, "-c", textwrap.dedent(script), *arguments]
    )
    environment = {"PYTHONPATH": PATHS, "PATH": ""}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.split()


def test_code_of_a_script_makes_what_the_script_registered(tmp_path: Path) -> None:
    """A function or a class is not the id: whatever it asks for is known in another process."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    assert said("", str(script), str(tmp_path / "specs")) == []
    assert said(ELSEWHERE, str(tmp_path / "specs")) == ["Mine"] * 3


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A copy, which the test may change."""
    kept = dict(gym.registry)
    yield gym.registry  # type: ignore[misc]
    gym.registry.clear()
    gym.registry.update(kept)


def test_what_can_not_be_sent_is_left_behind(registry: dict[str, Any]) -> None:
    """One entry with a lock in it does not keep the others, nor the environment, from the worker."""
    gym.register("Mine-v0", Steady)
    gym.register("Locked-v0", Steady, kwargs={"lock": threading.Lock()})
    sent = pickle.dumps(hr.EnvSpec(Steady))
    del registry["Mine-v0"], registry["Locked-v0"]
    pickle.loads(sent)
    assert "Mine-v0" in registry
    assert "Locked-v0" not in registry


def test_an_id_of_gymnasiums_takes_nothing_along(registry: dict[str, Any]) -> None:
    before = len(pickle.dumps(hr.EnvSpec("CartPole-v1")))
    gym.register("Mine-v0", Steady)
    assert len(pickle.dumps(hr.EnvSpec("CartPole-v1"))) == before


def test_the_workers_own_entry_stays(registry: dict[str, Any]) -> None:
    """In the process that registered it, an id keeps its entry when a spec is copied there."""
    gym.register("Mine-v0", Steady)
    entry = registry["Mine-v0"]
    pickle.loads(pickle.dumps(hr.EnvSpec(Steady)))
    assert registry["Mine-v0"] is entry


def test_an_entry_that_holds_a_spec_ends(registry: dict[str, Any]) -> None:
    """What an entry refers to may be a spec again, which has entries to take along."""
    gym.register("Mine-v0", Steady, kwargs={"like": hr.EnvSpec(Steady)})
    gym.register("Mine-v1", Steady, kwargs={"like": hr.EnvSpec(Steady)})
    assert len(pickle.dumps(hr.EnvSpec(Steady))) < 100_000
