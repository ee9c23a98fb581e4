"""The first episodes of environment 0, played again while a run trains: who is accused, and who never is.

    same           deterministic, in every place: also after kills, a resume, with 32-bit seeds, defined in a script
    differs        global random numbers, state beyond a reset: one warning with episode, seed, step and what differs
    nothing said   it raises there, can't be sent, hangs, is a pool, is mended, is off, the run is short

The run itself has the same bits with and without it, does not wait for it, and leaves no process behind.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import headrace as hr
from headrace.checkpoints.snapshot import find_latest
from headrace.envs.seeds import Purpose, episode_seed, leaf
from headrace.episodes.first_episodes import FirstEpisodes
from headrace.evaluation import in_passing
from support.command import PATHS, end, result_of, start
from support.faulty_envs import Steady
from support.waiting import family, is_gone, wait_until
from support.worker_envs import Ordered, order

SEED = 5
OPTIONS: dict[str, Any] = {"n_envs": 3, "n_steps": 8, "batch_size": 24, "n_epochs": 1, "seed": SEED}
PLACES: dict[str, dict[str, Any]] = {
    "inline": {"topology": "inline"},
    "threads": {"topology": "threads", "workers": 2},
    "processes": {"topology": "processes", "workers": 1},
}
WAIT_S = 150.0


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_passing, "AFTER_S", 0.0)


def checked(model: hr.PPO, **session: Any) -> dict[str, Any]:
    """Learn until the check has come to something."""
    deadline = time.monotonic() + WAIT_S

    def go_on(record: dict[str, float]) -> bool:
        assert model._check is not None
        time.sleep(0.01)  # the machine may have better things to do
        return model._check.state()["state"] == "not finished" and time.monotonic() < deadline

    model.learn(10**8, callback=go_on, **session)
    assert model.result is not None
    return model.result.env_check


def model_of(env: Any, place: str = "inline", **more: Any) -> hr.PPO:
    return hr.PPO("MlpPolicy", env, **OPTIONS | PLACES[place] | more)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


# --- never accused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "place", "kwargs"),
    [
        ("support.faulty_envs:Steady", "inline", {}),
        pytest.param("Pendulum-v1", "inline", {"max_episode_steps": 7}, marks=pytest.mark.full),
        ("support.faulty_envs:ShortSeeds", "threads", {}),
        pytest.param("CartPole-v1", "processes", {}, marks=pytest.mark.full),
    ],
)
def test_the_same(env: str, place: str, kwargs: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with model_of(env, place, env_kwargs=kwargs) as model:
        state = checked(model)
    assert (state["state"], state["episodes"]) == ("same", 3), state
    assert warnings_of(caplog) == []


def test_the_same_when_workers_are_killed_and_the_run_goes_on_elsewhere(tmp_path: Path) -> None:
    """The worker dies in the first episode and in the second; then the run is saved and loaded in mid-episode."""
    spec = hr.EnvSpec("support.faulty_envs:Steady", {}, (lambda env: Ordered(env, str(tmp_path)),))
    for episode, step in ((0, 3), (1, 2)):
        order(tmp_path, "kill", SEED, 0, episode, step)
    with model_of(spec, "processes") as model:
        state = checked(model)
        assert model.result is not None
        assert model.result.restarts == 2
        assert state["state"] == "same", state
        if model.num_timesteps % 15 == 0:
            model.learn(24)
        model.save(tmp_path / "saved")
        steps = model.num_timesteps // OPTIONS["n_envs"]
    assert steps % 5, "in the middle of an episode"
    with hr.PPO.load(tmp_path / "saved", env=spec, topology="inline") as model:
        state = checked(model)
        assert state["state"] == "same", state
        assert model._check is not None
        assert model._check.episodes is not None
        assert model._check.episodes.finished[0].episode == steps // 5 + 1, "the first that it saw from its beginning"


SCRIPT = """
import gymnasium as gym, numpy as np, json, sys, time
import headrace as hr
from headrace.evaluation import in_passing
in_passing.AFTER_S = 0.0

class Mine(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)
    offset = 0.0
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if sys.argv[1] == "bad":
            Mine.offset += 0.25
        self.count = 0
        return self.seen(), {}
    def step(self, action):
        self.count += 1
        return self.seen(), float(action) + Mine.offset, self.count == 6, False, {}
    def seen(self):
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

begun = time.time()
options = dict(n_envs=2, n_steps=8, batch_size=16, n_epochs=1, seed=5, topology="inline")
with hr.PPO("MlpPolicy", lambda: Mine(), **options) as m:
    def go_on(record):
        time.sleep(0.01)
        return m._check.state()["state"] == "not finished" and time.time() - begun < 150
    m.learn(10**8, callback=go_on)
    print(json.dumps(m.result.env_check))
"""


@pytest.mark.parametrize("kind", ["good", pytest.param("bad", marks=pytest.mark.full)])
def test_an_environment_of_a_script(kind: str, tmp_path: Path) -> None:
    """A lambda over a class of __main__, in a script without a guard; its class keeps a number in the bad case."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py", kind], cwd=tmp_path, env=os.environ | {"PYTHONPATH": PATHS},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    state = json.loads(done.stdout)
    assert state["state"] == ("same" if kind == "good" else "differs"), state
    assert kind == "good" or "the reward of step 0: " in state["detail"]


# --- accused ---------------------------------------------------------------------------------------------------------

BAD = {
    "uses_global_random": ("support.faulty_envs:UsesGlobalRandom", r"the observation after step 0"),
    "draws_random": ("support.passing_envs:DrawsRandom", r"the observation of the reset"),
    "carries_state": ("support.faulty_envs:CarriesState", r"truncated of step 5: False, then True"),
    "seeds_global_random": (
        "support.faulty_envs:SeedsGlobalRandom",
        r"the observation of the reset|the observation after step 0",
    ),
    "draws_own_actions": ("support.faulty_envs:DrawsOwnActions", r"the reward of step \d: [\d.]+, then [\d.]+"),
}


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("draws_random", "inline"),
        ("carries_state", "processes"),
        pytest.param("uses_global_random", "threads", marks=pytest.mark.full),
        pytest.param("seeds_global_random", "inline", marks=pytest.mark.full),
        pytest.param("draws_own_actions", "processes", marks=pytest.mark.full),
    ],
)
def test_it_differs(name: str, place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One warning, at once, in the log, and in result.json."""
    env, what = BAD[name]
    with model_of(env, place) as model:
        state = checked(model, run_dir=tmp_path / "out")
    assert state["state"] == "differs"
    (text,) = warnings_of(caplog)
    seed = leaf(SEED, Purpose.ENV, 0, 2)
    assert re.match(
        rf"env 0, episode 0:2, seed {seed}: played again in a fresh process, it differs in ({what})\. ", text
    ), text
    assert f"headrace check {env} looks for the reason" in text
    assert "NOT guaranteed are the same bits for the same seed, resume" in text
    assert state["detail"] == text == result_of(tmp_path / "out")["env_check"]["detail"]
    assert text in (tmp_path / "out" / "log.txt").read_text()


@pytest.mark.full
def test_a_wrapper_that_keeps_rewards() -> None:
    """The first episode comes out the same; the later ones do not."""
    with model_of("CartPole-v1", wrappers=(gym.wrappers.NormalizeReward,)) as model:
        state = checked(model)
    assert state["state"] == "differs"
    assert "the reward of step" in state["detail"]


# --- nothing is said -------------------------------------------------------------------------------------------------


def test_what_can_not_be_played_again_is_no_difference(caplog: pytest.LogCaptureFixture) -> None:
    with model_of("support.passing_envs:RaisesThere") as model:
        state = checked(model)
    assert state["state"] == "not possible"
    assert "could not be played again: the simulator serves one client" in state["detail"]
    assert warnings_of(caplog) == []


@pytest.mark.full
def test_what_can_not_be_sent_is_no_difference(caplog: pytest.LogCaptureFixture) -> None:
    lock = threading.Lock()

    def make() -> Steady:
        assert not lock.locked()
        return Steady()

    with model_of(make) as model:
        state = checked(model)
    assert state["state"] == "not possible"
    assert "can't be sent to another process" in state["detail"]
    assert warnings_of(caplog) == []


@pytest.mark.parametrize(
    ("env", "options", "session", "why"),
    [
        ("support.faulty_envs:CarriesState", {}, {"check_episodes": 0}, "check_episodes=0"),
        ("support.faulty_envs:CarriesState", {"nan_policy": "clamp"}, {}, "nan_policy=clamp"),
        ("support.faulty_envs:CarriesState", {"nan_policy": "drop"}, {}, "nan_policy=drop"),
        ("support.worker_envs:pool", {}, {}, "class B"),
    ],
)
def test_it_is_off(env: str, options: dict[str, Any], session: dict[str, Any], why: str) -> None:
    with model_of(env, **options) as model:
        model.learn(240, **session)
        assert model.result is not None
        state = model.result.env_check
    assert state["state"] == "off"
    assert why in state["detail"]


def test_a_short_run_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_passing, "AFTER_S", 1000.0)
    monkeypatch.setattr(in_passing.Child, "spawn", None)
    with model_of("support.faulty_envs:CarriesState") as model:
        model.learn(240)
        assert model.result is not None
        assert model.result.env_check["state"] == "not finished"


# --- the run is as it would be ---------------------------------------------------------------------------------------


def test_same_bits_and_no_waiting(tmp_path: Path) -> None:
    """It hangs in the process that checks: the run ends in its own time, with its own bits, and nothing is left."""
    began, pids, hashes = tmp_path / "hangs", [], []

    def see_it_hang(record: dict[str, float]) -> None:
        if record["time/iterations"] == 20:
            wait_until(began.exists, WAIT_S)
            assert model._check is not None
            assert model._check._child is not None
            pids.append(model._check._child.pid)

    for episodes in (0, 3):
        with model_of("support.passing_envs:HangsThere", env_kwargs={"file": str(began)}) as model:
            model.learn(720, callback=see_it_hang if episodes else None, check_episodes=episodes)
            assert model.result is not None
            hashes.append((model.result.weights_sha256, model.result.optimizer_sha256, model.result.episodes))
            if episodes:
                assert is_gone(pids[0])
                assert model.result.env_check["state"] == "not finished"
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.full)])
def test_it_ends_with_the_run(number: int, tmp_path: Path) -> None:
    """By the command, which begins it after some seconds of training."""
    began = tmp_path / "hangs"
    process = start(
        "train", "support.passing_envs:HangsThere", "--env-kwargs", json.dumps({"file": str(began)}), "--n-envs", "2",
        "--n-steps", "512", "--batch-size", "256", "--n-epochs", "1", "--seed", "7", "--quiet", "--topology", "inline",
        "--total-timesteps", "100000000", "--run-dir", "out", cwd=tmp_path, has_report=False,
    )  # fmt: skip
    try:
        wait_until(lambda: began.exists() or process.poll() is not None)
        members = family(process.pid)
        process.send_signal(number)
        took_s = wait_until(lambda: process.poll() is not None and all(map(is_gone, members)), 60.0)
    finally:
        process.kill()
        outcome = end(process)
    assert len(members) == 2, "the process that checks, the resource tracker"
    assert took_s < 10.0
    if number == signal.SIGINT:
        assert (outcome.code, outcome.err) == (130, "")
        assert result_of(tmp_path / "out")["env_check"]["state"] == "not finished"
        assert find_latest(tmp_path / "out")[1].state["steps"] > 0


# --- what is kept ----------------------------------------------------------------------------------------------------


class _Rows:
    """Rows of environment 0, as a slab has them, and of a second one that is not looked at."""

    def __init__(self, places: list[tuple[int, int, bool]]) -> None:
        rows = len(places)
        self.episode = np.array([[episode, 99] for episode, _, _ in places])
        self.step = np.array([[step, 98] for _, step, _ in places])
        self.terminated = np.array([[ends, True] for *_, ends in places])
        self.truncated = np.zeros((rows, 2), bool)
        self.valid = np.ones((rows, 2), bool)
        self.action = np.stack([self.episode * 100 + self.step] * 1, axis=-1)
        self.reward = self.action[..., 0].astype(np.float32)


def test_whole_episodes_are_kept() -> None:
    kept = FirstEpisodes(2)
    slabs = [
        [(3, 4, False), (3, 5, True), (4, 0, False)],  # a resumed run: the third episode has begun before
        [(4, 1, False), (4, 2, False), (4, 3, True)],
        [
            (6, 1, False),
            (6, 2, True),
            (7, 0, True),
        ],  # not what follows: how the sixth began is missing
        [(8, 0, False), (8, 1, True), (9, 0, False)],
    ]
    for places in slabs:
        rows: Any = _Rows(places)
        kept.take(range(2, 4), rows, rows.action[..., 0])  # another shard
        kept.take(range(2), rows, rows.action[..., 0])
    assert [one.episode for one in kept.finished] == [4, 7]
    first = kept.finished[0]
    assert first.actions[:, 0].tolist() == first.checksums.tolist() == first.rewards.tolist() == [400, 401, 402, 403]
    assert first.flags.tolist() == [[False, False]] * 3 + [[True, False]]
    assert kept.is_full


def test_no_more_is_kept_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.episodes.first_episodes._MOST_STEPS", 3)
    kept = FirstEpisodes(2)
    rows: Any = _Rows([(0, step, False) for step in range(4)])
    kept.take(range(2), rows, rows.action[..., 0])
    assert (kept.is_full, kept.finished) == (True, [])


def test_one_altered_step_is_found_and_named() -> None:
    """Without a process: every kind of difference, at the step where it is."""
    spec, seed = hr.EnvSpec("support.passing_envs:ShowsItsLength"), episode_seed(63, SEED, Purpose.ENV, 0, 0)
    kept = FirstEpisodes(1)
    with model_of(spec) as model:
        model.parts.reader.notices.first_episodes = kept
        model.run.update(1000)
    (shown,) = kept.finished
    assert in_passing.difference_of(spec, shown, seed) is None
    others = {
        "the reward of step 2: 9, then 3": ("rewards", 2, 9.0),
        "terminated of step 1: True, then False": ("flags", (1, 0), True),
        "truncated of step 4: False, then True": ("flags", (4, 1), False),
        "the observation of the reset": ("checksums", 0, 1),
        "the observation after step 2": ("checksums", 3, 1),
        "the observation after step 3 or 4": ("checksums", 4, 1),
    }
    for text, (name, at, value) in others.items():
        arrays = {key: getattr(shown, key).copy() for key in ("actions", "rewards", "flags", "checksums")}
        arrays[name][at] = value
        assert in_passing.difference_of(spec, type(shown)(0, **arrays), seed) == text
