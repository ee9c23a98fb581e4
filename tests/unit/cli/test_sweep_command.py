"""`headrace sweep`: table, knees, JSON and picture of a small sweep."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from headrace.cli.main import main
from headrace.cli.sweep_command import _rows
from headrace.envs.spec import EnvSpec
from headrace.launch.sweeping import environment_sps
from headrace.planning.sweep import Point, curve_of


def test_a_small_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer, plot = tmp_path / "sweep.json", tmp_path / "sweep.png"
    options = ["--n-envs", "1", "8", "--repetitions", "2", "--accelerator", "emulated:20ms+1us"]
    assert main(["sweep", "CartPole-v1", *options, "--json", str(answer), "--plot", str(plot)]) == 0
    said = capsys.readouterr().out
    curves = {curve["name"]: curve for curve in json.loads(answer.read_text())["curves"]}
    assert list(curves) == ["environments", "policy", "policy on emulated:20ms+1us", "both"]
    for curve in curves.values():
        assert [point["batch"] for point in curve["points"]] == [1, 8]
        assert all(len(point["sps"]) == 2 and min(point["sps"]) > 0 for point in curve["points"])
        assert f"{curve['name']}: {curve['explained']}" in said
    for place in (0, 1):  # what both take is what each takes: far from any other number, however busy the machine is
        alone = [max(curves[name]["points"][place]["sps"]) for name in ("environments", "policy")]
        both = curves["both"]["points"][place]["sps"]
        together = 1 / sum(1 / one for one in alone)
        assert all(together / 20 < one < 2 * min(alone) for one in both), (both, alone)
    device = curves["policy on emulated:20ms+1us"]
    assert (device["knee"], device["is_still_rising"]) == (8, True)
    assert max(device["points"][0]["sps"]) <= 1 / 0.020
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("rate", [9.3, 3_000.0, 21_500.0, 78_000.0])
def test_a_picture_has_every_curve_and_says_how_high_it_is(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    from headrace.views.sweep_figure import draw_sweep

    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (drawn.append(self), save(self, *a, **k))[1])
    draw_sweep("an environment", [curve_of(f"curve {n}", [Point(2, (rate,))]) for n in range(15)])
    (axes,) = drawn[0].axes
    least, most = axes.get_ylim()
    assert len(axes.get_legend().get_texts()) == 15
    assert [tick for tick in axes.get_yticks() if least <= tick <= most]


def test_a_sweep_with_a_policy_that_remembers(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--n-envs", "2", "--repetitions", "1", "--policy", "MlpLstmPolicy", "--accelerator", "emulated:1ms+0us"]
    assert main(["sweep", "CartPole-v1", *options]) == 0
    said = capsys.readouterr().out
    assert said.count(": one batch size (B = 2) shows no knee: give several") == 4
    assert "+-" not in said
    assert "*" not in said
    assert "policy on emulated:1ms+0us: " in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--n-envs", "0"], "--n-envs: expected numbers of at least 1"),
        (["--plot", "/dev/null/x.txt"], "--plot /dev/null/x.txt: expected a name that ends in .png, .svg or .pdf"),
        (["--repetitions", "0"], "--repetitions: expected at least 1"),
        (["--accelerator", "gpu"], "--accelerator: expected cpu, cuda"),
        (["--accelerator", "cuda:7"], "--accelerator=cuda:7: torch finds no CUDA device here; an emulated one is"),
        (["--workers", "2", "3"], "--workers: expected at most 1, as many as environments (--n-envs)"),
    ],
)
def test_bad_options(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "CartPole-v1", "--n-envs", "1", "--repetitions", "1", *options]) == 2
    assert said in capsys.readouterr().err


def test_json_has_what_the_table_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = tmp_path / "sweep.json"
    options = ["--n-envs", "1", "2", "--repetitions", "2", "--accelerator", "emulated:5ms+1us", "--json", str(answer)]
    assert main(["sweep", "CartPole-v1", *options]) == 0
    said, found = capsys.readouterr().out, json.loads(answer.read_text())
    for curve in found["curves"]:
        for point in curve["points"]:
            assert f"{point['median']:,.0f} +- {point['error']:,.0f}" in said
    assert found["on_the_device"].startswith("policy on emulated:5ms+1us: ")
    assert found["on_the_device"] in said


class Forbidding(gym.Env[Any, Any]):
    """One action is allowed, another one after each step; any other is an error. A step takes 4 ms."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.turn = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        assert action == self.turn % 3, "forbidden"
        time.sleep(0.004)
        self.turn += 1
        return np.zeros(2, np.float32), 0.0, self.turn == 50, False, {}

    def action_masks(self) -> Any:
        return np.arange(3) == self.turn % 3


FORBIDDING = f"{__name__}:Forbidding"


def test_environments_with_masks_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = tmp_path / "answer.json"
    short = ["--n-envs", "2", "--repetitions", "1", "--accelerator", "", "--json", str(answer)]
    assert main(["sweep", FORBIDDING, "--action-masks", *short]) == 0
    assert {curve["name"] for curve in json.loads(answer.read_text())["curves"]} == {"environments", "policy", "both"}
    assert main(["plan", "--measure", FORBIDDING, "--action-masks", "--n-envs", "2", "--n-steps", "8"]) == 0
    assert "actors needed" in capsys.readouterr().out


def test_a_slow_environment_is_collected_for_a_moment_and_not_for_thousands_of_steps() -> None:
    """5 ms a step: 30 steps in 150 ms, and two rows at least. Cheap ones have some 2,048 steps, and eight rows."""
    assert (_rows(1, 200.0), _rows(4, 200.0), _rows(1024, 200.0)) == (30, 8, 2)
    assert (_rows(1, 1e6), _rows(64, 1e6), _rows(1024, 1e6)) == (2048, 32, 8)


def test_steps_of_a_pool_that_only_reset_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool whose every other step is a reset, as EnvPool's after an end, makes half as many steps as calls."""
    calls: list[int] = []

    class Ends(gym.vector.VectorEnv[Any, Any, Any]):
        def __init__(self, num_envs: int) -> None:
            self.num_envs, self.turn = num_envs, 0
            self.metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}
            self.single_observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
            self.single_action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return np.zeros((self.num_envs, 2), np.float32), {}

        def step(self, actions: Any) -> Any:
            calls.append(self.num_envs)
            self.turn += 1
            ends = np.full(self.num_envs, self.turn % 2 == 1)
            flags = np.zeros(self.num_envs, np.bool_)
            return np.zeros((self.num_envs, 2), np.float32), np.zeros(self.num_envs), ends, flags, {}

    monkeypatch.setattr("headrace.launch.sweeping.now_s", lambda: 0.001 * len(calls))  # a millisecond for each call
    assert environment_sps(EnvSpec(Ends), 1, 4, 1, 0.1) == (pytest.approx(2_000),)


class Narrow(gym.Env[Any, Any]):
    """Its generator is numpy's older one, which takes 32 bits of a seed."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.random = np.random.RandomState(seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        return self.random.uniform(-1, 1, 2).astype(np.float32), 0.0, False, False, {}


def test_an_environment_with_narrow_seeds_is_swept(capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--n-envs", "2", "--repetitions", "1", "--accelerator", ""]
    assert main(["sweep", f"{__name__}:Narrow", *short]) == 0
    assert "environments: one batch size" in capsys.readouterr().out


def test_an_environment_that_hangs_ends_a_sweep(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headrace.launch.sweeping._LONGEST_S", 0.3)
    monkeypatch.setattr(Narrow, "step", lambda self, action: time.sleep(60))
    assert main(["sweep", f"{__name__}:Narrow", "--n-envs", "2", "--repetitions", "1"]) == 1
    assert (
        "hung in step(): no progress for 0.3 s; time it with headrace train --hang-ceiling-s 0"
        in capsys.readouterr().err
    )
