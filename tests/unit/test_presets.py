"""Presets, and ids whose package headrace imports itself: Atari without a word more than its id."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import headrace as hr
from headrace.cli.train_command import _parse, _run_config
from headrace.envs.adapters.gymnasium_spaces import describe_observation
from headrace.envs.spec import EnvSpec
from headrace.errors import UsageError
from headrace.memory.spaces import Dict
from headrace.presets import PRESETS
from support.command import PATHS, run

TINY = ("--n-envs", "2", "--n-steps", "6", "--batch-size", "6", "--n-epochs", "1", "--total-timesteps", "24")
SHORT = '{"max_num_frames_per_episode": 40}'  # episodes of some six steps


def test_a_preset_is_a_set_of_defaults_and_what_is_typed_wins(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("n_epochs = 7\nn_envs = 3\n")
    given = ("--n-envs", "5", "--env-kwargs", '{"mode": 2}')
    options = _parse(["ALE/Pong-v5", "--preset", "atari", "--config", str(file), *given])
    config = _run_config(options)
    preset = PRESETS["atari"]
    assert config.env == EnvSpec("ALE/Pong-v5", {"frameskip": 1, "mode": 2}, preset.wrappers)
    assert (config.topology.n_envs, config.topology.n_steps) == (5, 128)
    assert (config.algorithm.n_epochs, config.algorithm.clip_range) == (7, "lin_0.1")
    assert config.policy.policy == "CnnPolicy"
    assert options.session.total_timesteps == 10_000_000
    own = _run_config(_parse(["ALE/Pong-v5", "--preset", "atari", "--wrappers", "a:B"]))
    assert own.env.wrappers == ("a:B",)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("CartPole-v1", "--preset", "atary"), "preset: expected one of atari, got 'atary'"),
        (("CartPole-v1", "--preset", "atari", "--algorithm", "impala"), "leave --algorithm out"),
        (("--resume", "runs/x", "--preset", "atari"), "leave --preset out"),
        (("CartPole-v1", "--config", "file.toml"), "preset is for the command line only"),
    ],
)
def test_presets_that_can_not_be(arguments: tuple[str, ...], error: str, tmp_path: Path) -> None:
    (tmp_path / "file.toml").write_text('preset = "atari"\n')
    outcome = run("train", *arguments, cwd=tmp_path)
    assert outcome.code == 2
    assert error in outcome.error


def test_in_python_too() -> None:
    small = {"n_envs": 1, "n_steps": 4, "n_epochs": 10, "batch_size": 4, "topology": "inline"}
    with hr.PPO("auto", "ALE/Pong-v5", 1e-3, preset="atari", env_kwargs={"mode": 0}, **small) as model:
        config = model.parts.config
    assert config.env == EnvSpec("ALE/Pong-v5", {"frameskip": 1, "mode": 0}, PRESETS["atari"].wrappers)
    assert (config.algorithm.learning_rate, config.algorithm.n_epochs, config.algorithm.ent_coef) == (1e-3, 10, 0.01)
    assert config.policy.policy == "auto"
    with pytest.raises(UsageError, match="preset: expected one of atari, got 'x'"):
        hr.PPO("auto", "CartPole-v1", preset="x")


def test_atari_trains_the_same_in_worker_processes_and_says_nothing_besides(tmp_path: Path) -> None:
    """In a process that has not imported ale_py; frames are stored once, and episodes end in every rollout."""
    found = []
    for place in (("inline",), ("processes", "--workers", "2")):
        command = [
            sys.executable, "-m", "headrace", "train", "ALE/Pong-v5", "--preset", "atari", *TINY, "--seed", "3",
            "--quiet", "--env-kwargs", SHORT, "--run-dir", str(tmp_path / place[0]), "--topology", *place,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": PATHS})
        assert (done.returncode, done.stderr) == (0, "")
        result = json.loads((tmp_path / place[0] / "result.json").read_text())
        found.append((result["weights_sha256"], result["optimizer_sha256"], result["mean_return"]))
    assert found[0] == found[1]
    assert found[0][2] is not None, "no episode ended"


@pytest.mark.parametrize(
    ("env_id", "package", "extra"), [("ALE/No-v5", "ale_py", "atari"), ("MiniGrid-No-v0", "minigrid", "minigrid")]
)
def test_a_package_that_is_missing_is_named(
    env_id: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf"needs the package {package}: pip install 'headrace\[{extra}\]'"):
        EnvSpec(env_id).make()


def test_texts_are_left_out_and_what_is_unknown_is_refused_with_a_remedy() -> None:
    class Mission(gym.Space):  # type: ignore[type-arg]
        """A space of another package, as MiniGrid's."""

    image, number = gym.spaces.Box(0, 255, (7, 7, 3), np.uint8), gym.spaces.Discrete(4)
    for text in (Mission(dtype=str), gym.spaces.Text(9)):
        found = describe_observation(gym.spaces.Dict({"image": image, "direction": number, "mission": text}), "here")
        assert isinstance(found, Dict)
        assert [name for name, _ in found.leaves] == ["direction", "image"]
        assert found.left_out == ("mission",)
    with pytest.raises(UsageError, match=r"here, b: unsupported .* Mission; .*gymnasium.wrappers.FilterObservation"):
        describe_observation(gym.spaces.Dict({"a": number, "b": Mission()}), "here")
