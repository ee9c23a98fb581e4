"""Resuming: what does not fit is refused by the name of the field, damage falls back, a full disk harms nothing."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import headrace as hr
from headrace.checkpoints.snapshot import Snapshot, find_latest, load
from headrace.errors import CheckpointError, HeadraceError, SchemaError

OBSERVATION, ACTION = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)


class Plain(gym.Env[Any, Any]):
    """Whatever spaces one likes; nothing much happens."""

    def __init__(self, observation: spaces.Space[Any] = OBSERVATION, action: spaces.Space[Any] = ACTION) -> None:
        self.observation_space, self.action_space = observation, action

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, self.observation_space.dtype), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(self.observation_space.shape, self.observation_space.dtype), 1.0, False, False, {}


def plain(observation: spaces.Space[Any] = OBSERVATION, action: spaces.Space[Any] = ACTION, **options: Any) -> hr.PPO:
    options = {"n_envs": 4, "n_steps": 8, "batch_size": 16, "n_epochs": 1, "seed": 3} | options
    return hr.PPO("MlpPolicy", lambda: Plain(observation, action), **options)


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    with plain() as model:
        model.learn(64)
        return model.run.snapshot()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"n_steps": 16}, "n_steps: expected 16, got 8"),
        ({"n_envs": 5}, "n_envs: expected 5, got 4"),
        ({"seed": 4}, "seed: expected 4, got 3"),
        ({"observation": spaces.Box(-1, 1, (4,), np.float32)}, "observation_space: expected Box.*(4,).*got Box.*(3,)"),
        ({"observation": spaces.Box(-1, 1, (3,), np.float64)}, "observation_space: expected .*float64.*float32"),
        ({"observation": spaces.Box(-2, 2, (3,), np.float32)}, "observation_space: expected .*2.0.*got .*1.0"),
        ({"observation": spaces.Box(0, 255, (3,), np.uint8)}, "observation_space: expected .*uint8.*float32"),
        ({"observation": spaces.MultiBinary(3)}, "observation_space: expected .*int8.*float32"),
        ({"action": spaces.Discrete(3)}, "action_space: expected .*n=3.*got .*n=2"),
        ({"action": spaces.Discrete(2, start=1)}, "action_space: expected .*start=1.*got .*start=0"),
        ({"action": spaces.MultiDiscrete([2, 2])}, "action_space: expected MultiDiscrete.*got Discrete"),
        ({"action": spaces.Box(-1, 1, (1,), np.float32)}, "action_space: expected Box.*float32.*got Discrete.*int64"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_refused_by_name(snapshot: Snapshot, changed: dict[str, Any], named: str) -> None:
    with plain(**changed) as model:
        before = model.run.hashes()
        with pytest.raises(
            SchemaError, match=rf"does not fit this run: {named.replace('(', '[(]').replace(')', '[)]')}"
        ):
            model.parts.require_fit(snapshot)
        assert model.run.hashes() == before, "nothing of it was taken over"
        model.learn(1)  # and the run is as good as before


@pytest.mark.parametrize("changed", [{"net_arch": (32,)}, {"net_arch": (64, 64, 64)}])
def test_another_network_is_refused(snapshot: Snapshot, changed: dict[str, Any]) -> None:
    with plain(policy_kwargs=changed) as model, pytest.raises(CheckpointError, match="parameters do not fit"):
        model.run.restore(snapshot)


@pytest.mark.parametrize(
    "changed",
    [{"shards": 2}, {"shards": 4}, {"topology": "threads", "workers": "2"}, {"topology": "processes", "workers": "2"}],
    ids=str,
)
def test_the_places_where_actors_run_may_change(snapshot: Snapshot, changed: dict[str, Any]) -> None:
    """Another number of shards or another topology goes on to the very same weights."""
    with plain(topology="inline") as calm:
        calm.run.restore(snapshot)
        calm.learn(64)
        wanted, ledger = calm.run.hashes(), calm.run.totals().ledger
    with plain(**changed) as model:
        model.parts.require_fit(snapshot)
        model.run.restore(snapshot)
        model.learn(64)
        assert model.run.hashes() == wanted
        assert (model.num_timesteps, model.run.totals().ledger) == (128, ledger)


def test_what_does_fit_is_taken(snapshot: Snapshot) -> None:
    with plain() as model:
        model.parts.require_fit(snapshot)
        model.run.restore(snapshot)
        assert model.run.hashes() == snapshot.state["hashes"]
        assert model.num_timesteps == 64


# ------------------------------------------------------------------------------------------ a whole model, on the disk


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "model"
    with hr.PPO("MlpPolicy", "CartPole-v1", n_envs=4, n_steps=16, batch_size=32, n_epochs=1, seed=1) as model:
        model.learn(128)
        model.save(path)
    return path


def test_every_part_of_a_real_checkpoint_is_guarded(trained: Path, tmp_path: Path) -> None:
    """Bytes all over every file, the first and last ones among them; lengths likewise."""
    chosen = random.Random(0)
    for file in sorted(trained.iterdir()):
        data = file.read_bytes()
        places = {0, 1, 7, 8, 9, len(data) // 2, len(data) - 2, len(data) - 1} | {
            chosen.randrange(len(data)) for _ in range(60)
        }
        try:
            for place in places:
                broken = bytearray(data)
                broken[place] ^= 1 << chosen.randrange(8)
                for damage in (bytes(broken), data[:place]):
                    file.write_bytes(damage)
                    with pytest.raises(CheckpointError, match=file.name):
                        hr.PPO.load(trained)
        finally:
            file.write_bytes(data)
    with hr.PPO.load(trained) as model:
        assert model.run.hashes() == load(trained).state["hashes"]


def save_fails_from(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full from the count-th synced file on."""
    real, made = os.fsync, []

    def fsync(descriptor: int) -> None:
        made.append(descriptor)
        if len(made) > count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.views.report.write_report", lambda run_dir: None)


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize("full_after", [0, 3, 7, 10])
def test_a_disk_that_fills_up_while_training(full_after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One clear error; the checkpoint before it is whole and goes on as if nothing had been."""
    with plain() as model:
        save_fails_from(full_after, monkeypatch)
        with pytest.raises(CheckpointError, match=r"could not write a checkpoint to .*step_.*No space left on device"):
            model.learn(32 * 6, run_dir=tmp_path, checkpoint_every=32)
        monkeypatch.undo()
    if full_after < 7:  # 5 files, 2 directories
        with pytest.raises(CheckpointError, match="found none"):
            find_latest(tmp_path)
        return
    _, latest, damaged = find_latest(tmp_path)
    assert damaged == []
    assert latest.state["updates"] == 1
    with hr.PPO.from_snapshot(latest, env=lambda: Plain()) as model, plain() as calm:
        for one in (model, calm):
            one.run.update(10**6)
        calm.run.update(10**6)
        assert model.run.hashes() == calm.run.hashes()


@pytest.mark.usefixtures("no_report")
def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path: Path) -> None:
    with plain() as model:
        model.learn(32 * 3, run_dir=tmp_path, checkpoint_every=32)
    newest = sorted((tmp_path / "checkpoints").iterdir())[-1]
    (newest / "optimizer.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"optimizer\.safetensors is damaged"):
        model = hr.PPO.load(tmp_path, env=lambda: Plain())
    with model:
        assert model.num_timesteps == 64
    for checkpoint in (tmp_path / "checkpoints").iterdir():
        (checkpoint / "state.json").unlink()
    with pytest.raises(HeadraceError, match="no checkpoint is whole"):
        hr.PPO.load(tmp_path, env=lambda: Plain())
