"""Environments that can't be made: the error has what was raised, and what to install or to write instead.

In every topology, from Python and from the command line, in one line.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import headrace as hr
from headrace.envs.spec import EnvSpec
from headrace.errors import EnvError, HeadraceError, UsageError
from support.command import run

CASES = {
    "made:Silent": (EnvError, "could not be made: AssertionError without a message, from `assert False` (made.py:"),
    "made:Raises": (EnvError, "made:Raises: could not be made: RuntimeError: no licence file"),
    "made:Needs": (EnvError, "No module named 'simx_of_mine'; install the package that brings it, often: pip"),
    "made:Unsaid": (EnvError, "could not be made: Unsayable: (its message can't be shown: ValueError)"),
    "made:Says": (EnvError, "DependencyNotInstalled: the simulator is missing, run `pip install simx`"),
    "made:Robots": (EnvError, "No module named 'gymnasium_robotics.missing'; pip install gymnasium-robotics"),
    "made:Nothing": (UsageError, "module 'made' has no attribute 'Nothing'"),
    "broken:Any": (EnvError, "importing broken failed: No module named 'simx_of_mine'; install the package"),
    "syntax:Any": (EnvError, "importing syntax raised SyntaxError"),
    "not_there:Any-v0": (UsageError, "No module named 'not_there'; expected a module that can be imported"),
    "HalfCheetah-v2": (EnvError, "HalfCheetah-v5 is its newest version"),
    "CartPoel-v1": (UsageError, "did you mean CartPole-v1"),
    "CartPole-v9": (UsageError, "did you mean CartPole-v1"),
    "ALE/NoSuchGame-v5": (UsageError, "unknown environment 'ALE/NoSuchGame-v5': did you mean ALE/"),
    "ALE/Ponk-v5": (UsageError, "did you mean ALE/Pong-v5"),
    "made.py:Silent": (UsageError, "expected a module, without .py: made:"),
    "./made.py": (UsageError, "expected module:attribute for a class of your own, as in made:MyEnv"),
    "made:Silnt": (UsageError, "module 'made' has no attribute 'Silnt'; did you mean Silent?"),
    "NoGameNoFrameskip-v9": (UsageError, "pip install 'headrace[atari]', and write ale_py:NoGameNoFrameskip-v9"),
    "FetchNothing-v9": (UsageError, "pip install gymnasium-robotics, and write gymnasium_robotics:FetchNothing-v9"),
}  # fmt: skip

MADE = """
import gymnasium as gym
import numpy as np


class Silent(gym.Env):
    def __init__(self):
        assert False


class Spaceless(gym.Env):
    pass


class Infoless(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32)  # Python unpacks it as if it were (observation, info)


class Raises(gym.Env):
    def __init__(self):
        raise RuntimeError("no licence file")


class Unsayable(Exception):
    def __str__(self):
        raise ValueError


class Unsaid(gym.Env):
    def __init__(self):
        raise Unsayable


class Moody(gym.Env):
    action_space = gym.spaces.Discrete(2)

    @property
    def observation_space(self):
        raise RuntimeError("not connected yet")


class Needs(gym.Env):
    def __init__(self):
        import simx_of_mine


class Says(gym.Env):
    def __init__(self):
        try:
            import simx_of_mine
        except ImportError as error:
            raise gym.error.DependencyNotInstalled("the simulator is missing, run `pip install simx`") from error


class Robots(gym.Env):
    def __init__(self):
        raise ModuleNotFoundError("No module named 'gymnasium_robotics.missing'", name="gymnasium_robotics.missing")
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "made.py").write_text(MADE)
    (tmp_path / "broken.py").write_text("import simx_of_mine\n")
    (tmp_path / "syntax.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in ("made", "broken", "syntax"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")  # Gymnasium's, of HalfCheetah-v2
@pytest.mark.parametrize("env", CASES)
def test_the_error_has_the_cause_and_what_to_do(env: str, modules: Path) -> None:
    kind, said = CASES[env]
    with pytest.raises(kind) as raised:
        EnvSpec(env).make()
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("made:Spaceless", "Spaceless: it has no observation_space; set self.observation_space in its __init__"),
        ("made:Infoless", "returned an array, expected 2 (observation, info)"),
        ("made:Moody", "Moody: its observation_space raised RuntimeError: not connected yet"),
    ],
)
def test_what_an_environment_lacks_is_said_in_gymnasiums_words(env: str, said: str, modules: Path) -> None:
    with pytest.raises(HeadraceError, match=re.escape(said)):
        hr.PPO("MlpPolicy", env, n_envs=2, n_steps=8, batch_size=8, topology="inline").learn(16)


@pytest.mark.parametrize("topology", ["inline", "threads", "processes", "auto"])
def test_it_is_the_same_in_every_topology(topology: str, modules: Path) -> None:
    kind, said = CASES["made:Needs"]
    with pytest.raises(HeadraceError) as raised:
        hr.PPO("MlpPolicy", "made:Needs", n_envs=2, n_steps=8, batch_size=8, topology=topology)
    assert isinstance(raised.value, kind)
    assert said in str(raised.value)


@pytest.mark.parametrize("command", ["train", "check"])
def test_the_command_line_says_it_last(command: str, modules: Path) -> None:
    outcome = run(command, "made:Silent", cwd=modules)
    assert outcome.code == 1
    last = outcome.err.splitlines()[-1]
    assert last.startswith("headrace: error: ")
    assert CASES["made:Silent"][1] in last


def test_a_version_that_works_is_not_talked_out_of() -> None:
    class Refuses(gym.Env[Any, Any]):
        def __init__(self) -> None:
            raise ValueError("not today")

    gym.register("OnlyOne-v3", Refuses)
    try:
        with pytest.raises(EnvError) as raised:
            EnvSpec("OnlyOne-v3").make()
    finally:
        del gym.registry["OnlyOne-v3"]
    assert str(raised.value) == "OnlyOne-v3: could not be made: ValueError: not today"
