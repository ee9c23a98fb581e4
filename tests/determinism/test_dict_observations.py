"""Observations of several arrays: when a run was saved changes no bit, and a checkpoint is held against its form.

Places of actors and kills are in the matrices of test_topologies and test_central_inference.
"""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.errors import CheckpointError, SchemaError
from support.dict_envs import Nested, Signpost
from support.doctored import doctor
from support.topology_runs import CASES, bits_of, calm, processes, threads


@pytest.mark.parametrize("algorithm", [hr.PPO, hr.IMPALA])
@pytest.mark.parametrize("env", [Signpost, Nested])
def test_saved_and_resumed(algorithm: Any, env: Any, tmp_path: Path) -> None:
    """The same weights as without a break, also on another topology; and the first ratio of every update is 1."""
    options: dict[str, Any] = {"n_envs": 6, "n_steps": 8, "batch_size": 20, "seed": 3, "topology": "inline"}
    errors: list[float] = []

    def advance(model: Any) -> None:
        records = [model.run.update(10**6).record for _ in range(2)]
        if algorithm is hr.PPO:
            errors.extend(record["headrace/first_ratio_error"] for record in records)

    with algorithm("auto", f"support.dict_envs:{env.__name__}", **options) as model:
        advance(model)
        model.save(tmp_path / "saved")
        before = model.run.hashes()
        advance(model)
        wanted = model.run.hashes()
        assert wanted != before
        obs, _ = env().reset(seed=1)
    for place in ({}, {"topology": "processes", "workers": 2}):
        with algorithm.load(tmp_path / "saved", **place) as again:
            assert again.run.hashes() == before
            advance(again)
            assert again.run.hashes() == wanted
    with algorithm.load(tmp_path / "saved", weights_only=True) as weights:
        action, _ = weights.predict(obs, deterministic=True)
        assert np.isfinite(np.asarray(action, float)).all()
    assert max(errors, default=0.0) < 1e-5


@pytest.mark.parametrize("name", ["dict", "nested"])
def test_stopped_here_and_resumed_with_central_inference(name: str) -> None:
    case = CASES[name]
    with case.start(**threads(2)) as run:
        episodes = case.advance(run, 2)
        snapshot = run.snapshot()
    assert case.go_on(snapshot, episodes, **processes(2, inference="central")) == calm(name)


@pytest.mark.parametrize("name", ["dict", "nested"])
def test_an_inference_server_is_killed(name: str) -> None:
    case = CASES[name]
    with case.start(**processes(2, inference="central")) as run:
        episodes = case.advance(run, 1)
        victim = next(iter(run.source.place._servers.children.values()))  # type: ignore[union-attr]
        os.kill(victim.pid, signal.SIGKILL)
        wait([victim.sentinel], 60.0)
        episodes += case.advance(run, case.updates - 1)
        assert bits_of(run, episodes) == calm(name)


def test_another_dict_is_another_run(tmp_path: Path) -> None:
    options: dict[str, Any] = {"n_envs": 2, "n_steps": 8, "batch_size": 16, "seed": 3, "topology": "inline"}
    with hr.PPO("auto", "support.dict_envs:Nested", env_kwargs={"side": 4}, **options) as model:
        model.learn(16).save(tmp_path / "saved")
    with pytest.raises(SchemaError, match=r"pair/1: Box\(shape=\(5, 5.*pair/1: Box\(shape=\(4, 4"):
        hr.PPO.load(tmp_path / "saved", env=hr.EnvSpec("support.dict_envs:Nested", {"side": 5}))


DOCTORED = {
    "an unknown leaf": lambda space: space["leaves"][0].__setitem__(1, {"kind": "Dict", "leaves": []}),
    "no leaves": lambda space: space["leaves"].clear(),
    "one name twice": lambda space: space["leaves"].append(space["leaves"][0]),
    "no pairs": lambda space: space["leaves"].append("x"),
    "a text that is none": lambda space: space.update(left_out=[7]),
    "a name that is none": lambda space: space["leaves"][0].__setitem__(0, 3),
    "a shape of another": lambda space: space["leaves"][1][1].__setitem__("shape", [3]),
    "something else": lambda space: space.update(more=1),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dict") / "saved"
    with hr.PPO("MultiInputPolicy", Signpost, topology="inline", n_envs=2, n_steps=8, batch_size=16, seed=1) as model:
        model.learn(16).save(path)
    return path


@pytest.mark.parametrize("name", DOCTORED)
def test_a_file_that_no_run_would_write(name: str, saved: Path, tmp_path: Path) -> None:
    path = doctor(saved, tmp_path / "it", lambda state: DOCTORED[name](state["observation_space"]))
    with pytest.raises(CheckpointError, match="use an earlier checkpoint"):
        hr.PPO.load(path, env=Signpost)


def test_layers_that_are_not_there_are_not_built(saved: Path, tmp_path: Path) -> None:
    def claim(state: Any) -> None:
        state["config"]["policy"]["net_arch"] = [1 << 20, 1 << 20]

    with pytest.raises(CheckpointError, match="net_arch"):
        hr.PPO.load(doctor(saved, tmp_path / "it", claim), env=Signpost)
