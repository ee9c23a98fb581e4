"""hr.IMPALA learns CartPole, in step and asynchronously; its bits are a function of its seed; it goes on from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.errors import UsageError

# Seeds 1, 2, 3, 4, 5 and 11 need 32,000 to 44,000 steps to 195.
SETTINGS: dict[str, Any] = {"n_envs": 16, "learning_rate": 3e-3, "batch_size": 512, "seed": 1}
ROLLOUT = 16 * 32
SMALL: dict[str, Any] = {"n_envs": 5, "n_steps": 8, "batch_size": 16, "ent_coef": "lin_0.02", "seed": 3}
PER_UPDATE = 40


def learn_until(model: hr.IMPALA, mean_return: float, most_steps: int) -> list[dict[str, float]]:
    """Train until the last 100 episodes have that mean return, or the steps run out; the records of all updates."""
    records: list[dict[str, float]] = []

    def is_not_there(record: dict[str, float]) -> bool:
        records.append(record)
        return record["headrace/episodes"] < 100 or record["rollout/ep_rew_mean"] < mean_return

    model.learn(most_steps, callback=is_not_there)
    return records


def test_cartpole_reaches_195_within_100_000_steps() -> None:
    with hr.IMPALA("MlpPolicy", "CartPole-v1", topology="inline", **SETTINGS) as model:
        records = learn_until(model, 195.0, 100_000)
        assert records[-1]["rollout/ep_rew_mean"] >= 195.0
        mean, _ = hr.evaluate_policy(model, n_eval_episodes=20)
        assert isinstance(mean, float)
        assert mean >= 195.0
    assert records[0]["rollout/ep_rew_mean"] < 50.0
    assert {record["headrace/lag"] for record in records} == {0.0}


def test_it_learns_from_late_rollouts() -> None:
    """Two workers run a version ahead: V-trace corrects what older weights have collected."""
    where = {"topology": "processes", "workers": 2, "max_lag": 1}
    with hr.IMPALA("MlpPolicy", "CartPole-v1", **where, **SETTINGS) as model:
        records = learn_until(model, 100.0, 100_000)
    assert records[-1]["rollout/ep_rew_mean"] >= 100.0
    assert np.mean([record["headrace/lag_mean"] for record in records]) > 0.2
    assert max(record["headrace/lag"] for record in records) <= 2.0, "what is older was passed over"


def hashes_after(updates: int, env: str, policy: str, **options: Any) -> dict[str, str]:
    with hr.IMPALA(policy, env, **SMALL | options) as model:
        model.learn(updates * PER_UPDATE)
        return model.run.hashes()


@pytest.mark.parametrize(
    ("env", "policy"),
    [
        ("support.bit_envs:Noisy", "MlpPolicy"),
        ("Pendulum-v1", "MlpPolicy"),
        ("support.memory_envs:Recall", "MlpGruPolicy"),
    ],
)
def test_same_bits_anywhere(env: str, policy: str) -> None:
    """Inline, threads, processes, and any number of shards; also of a policy that remembers."""
    want = hashes_after(4, env, policy, topology="inline")
    for where in (
        {"topology": "inline", "shards": 3},
        {"topology": "threads", "workers": 2},
        {"topology": "processes", "workers": 2},
        {"topology": "processes", "workers": 2, "shards": 5},
    ):
        assert hashes_after(4, env, policy, **where) == want, where
    assert hashes_after(4, env, policy, topology="inline", seed=4) != want


def test_a_saved_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Weights, optimiser and schedules; here and in threads, from the journal."""
    with hr.IMPALA("MlpPolicy", "CartPole-v1", topology="inline", **SMALL) as calm:
        for _ in range(7):
            calm.run.update(7 * PER_UPDATE)
        want = calm.run.hashes()
    with hr.IMPALA("MlpPolicy", "CartPole-v1", topology="inline", **SMALL) as model:
        for _ in range(3):
            model.run.update(7 * PER_UPDATE)
        model.save(tmp_path / "saved")
    places: list[dict[str, Any]] = [{}, {"topology": "threads", "workers": 2}]
    for where in places:
        with hr.IMPALA.load(tmp_path / "saved", **where) as model:
            assert (model.run.updates, model.num_timesteps) == (3, 3 * PER_UPDATE)
            for _ in range(4):
                model.run.update(7 * PER_UPDATE)
            assert model.run.hashes() == want
    with hr.IMPALA.load(tmp_path / "saved", weights_only=True) as fresh:
        fresh.run.update(7 * PER_UPDATE)
        assert fresh.run.hashes() != want


def test_a_class_refuses_the_other_algorithms_checkpoint(tmp_path: Path) -> None:
    """By the name of the class that takes it; whatever takes any algorithm takes both."""
    options: dict[str, Any] = {"n_envs": 2, "n_steps": 8, "batch_size": 16, "seed": 1, "topology": "inline"}
    with (
        hr.PPO("MlpPolicy", "CartPole-v1", **options) as ppo,
        hr.IMPALA("MlpPolicy", "CartPole-v1", **options) as impala,
    ):
        ppo.learn(16).save(tmp_path / "ppo")
        impala.learn(16).save(tmp_path / "impala")
    for weights_only in (False, True):
        with pytest.raises(
            UsageError, match=r"expected a checkpoint of ppo, got one of impala; load it with hr\.IMPALA"
        ):
            hr.PPO.load(tmp_path / "impala", weights_only=weights_only)
        with pytest.raises(UsageError, match=r"expected a checkpoint of impala, got one of ppo; load it with hr\.PPO"):
            hr.IMPALA.load(tmp_path / "ppo", weights_only=weights_only)
    with hr.IMPALA.load(tmp_path / "impala") as model:
        assert model.learn(16).num_timesteps == 32


def test_options_are_the_algorithms_and_the_places() -> None:
    with pytest.raises(UsageError, match=r"unknown option learning_rat: did you mean learning_rate\?"):
        hr.IMPALA("MlpPolicy", "CartPole-v1", learning_rat=1e-3)
    with pytest.raises(UsageError, match=r"unknown option frobnicate: expected some of .*batch_size.*workers"):
        hr.IMPALA("MlpPolicy", "CartPole-v1", frobnicate=1)
    with pytest.raises(UsageError, match="unknown option n_epochs"):
        hr.IMPALA("MlpPolicy", "CartPole-v1", n_epochs=4)
    with hr.IMPALA("MlpPolicy", "CartPole-v1", seed=1, topology="inline") as model:
        assert "rollout      32 x 8 = 256 steps" in model.plan()
        assert "algorithm    impala, one pass in minibatches of 256, V-trace" in model.plan()
