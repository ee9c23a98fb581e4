"""Observations of several arrays on their way out (Parquet, Minari, ONNX, get_env), and from other packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pyarrow.parquet as pq
import pytest

import headrace as hr
from support.dict_envs import Nested

SMALL: dict[str, Any] = {"n_envs": 3, "n_steps": 30, "batch_size": 45, "seed": 2, "topology": "inline", "n_epochs": 1}


def seen(env: Nested, seed: int, actions: Any) -> list[Any]:
    """What an environment shows, step by step."""
    return [env.reset(seed=seed)[0], *(env.step(action)[0] for action in actions)]


def test_files_have_every_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setattr("headrace.views.report.write_report", lambda *args, **options: None)
    callback = hr.EvalCallback(Nested(side=4), eval_freq=30, n_eval_episodes=1, verbose=0)
    with hr.PPO("auto", "support.dict_envs:Nested", env_kwargs={"side": 4}, **SMALL) as model:
        model.learn(180, callback=callback, run_dir=tmp_path / "run")
        envs = model.get_env()
        obs = envs.reset()
        assert obs["arm"]["row"].shape == (3, 3)
        obs, *_ = envs.step(model.predict(obs)[0])
        assert obs["pair"][1].shape == (3, 4, 4, 1)
        envs.close()
    hr.export_rollouts(tmp_path / "run", tmp_path / "it.parquet", trust=True)
    hr.export_rollouts(tmp_path / "run", "minari:tests/nested-v0", trust=True)
    rows = pq.read_table(tmp_path / "it.parquet").to_pylist()
    dataset = minari.load_dataset("tests/nested-v0")
    assert dataset.observation_space == Nested(side=4).observation_space
    ids = [(row["env_index"], row["episode"]) for row in rows]
    for episode, key in zip(dataset, dict.fromkeys(ids), strict=True):
        steps = [row for row, one in zip(rows, ids, strict=True) if one == key]
        want = seen(Nested(side=4), steps[0]["seed"], episode.actions)
        assert len(want) == len(steps) + 1
        for index, obs in enumerate(want):
            got = episode.observations
            np.testing.assert_array_equal(got["arm"]["row"][index], obs["arm"]["row"])
            np.testing.assert_array_equal(got["pair"][1][index], obs["pair"][1])
        for row, obs in zip(steps, want, strict=False):
            assert row["observation/arm/row"] == obs["arm"]["row"].tolist()
            assert row["observation/pair/1"] == obs["pair"][1].tobytes()
            assert row["observation/arm/mode"] == obs["arm"]["mode"]
        assert steps[-1]["final_observation/arm/row"] == want[-1]["arm"]["row"].tolist()


def test_an_onnx_file_has_an_input_for_each_array(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    with hr.PPO("auto", Nested, env_kwargs={"side": 36}, **SMALL) as model:
        path = hr.export_policy(model, tmp_path / "it.onnx")
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        rows, _ = model.policy.obs_to_tensor(Nested(side=36).reset(seed=1)[0])  # type: ignore[operator]
        given = {f"observation/{name}": leaf.numpy() for name, leaf in rows.items()}
        assert {one.name for one in session.get_inputs()} == set(given)
        want, _ = model.predict(Nested(side=36).reset(seed=1)[0], deterministic=True)
        np.testing.assert_allclose(session.run(None, given)[0][0], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("env", "kwargs", "leaves"),
    [
        ("Blackjack-v1", {}, ["0", "1", "2"]),
        ("envpool:LaneKeeping-v0", {}, ["derivative", "reference_state", "state"]),
        ("gymnasium:make_vec", {"id": "Blackjack-v1"}, ["0", "1", "2"]),
        ("MiniGrid-Empty-5x5-v0", {}, ["direction", "image"]),
    ],
)
def test_environments_of_others(env: str, kwargs: dict[str, Any], leaves: list[str]) -> None:
    with hr.PPO("auto", env, env_kwargs=kwargs, **SMALL) as model:
        record = model.run.update(10**6).record
        assert record["headrace/first_ratio_error"] < 1e-5
        assert sorted(name for name, _ in model.parts.observation.leaves) == leaves
        assert ("left out     mission: text, which no policy sees" in model.plan()) == env.startswith("MiniGrid")


def test_a_text_may_be_there_and_may_change() -> None:
    env = gym.make("MiniGrid-Empty-5x5-v0")
    with hr.PPO("auto", "MiniGrid-Empty-5x5-v0", **SMALL) as model:
        obs, _ = env.reset(seed=1)
        action, _ = model.predict(obs, deterministic=True)
        again, _ = model.predict({"image": obs["image"], "direction": obs["direction"]}, deterministic=True)
        assert action == again
