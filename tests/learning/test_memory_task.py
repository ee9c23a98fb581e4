"""What was shown at the start is asked for at the end: solved by policies with a memory, and by no other."""

from __future__ import annotations

import pytest

import headrace as hr

CHANCE = 0.25


@pytest.mark.parametrize("policy", ["MlpLstmPolicy", "MlpGruPolicy", "MlpPolicy"])
def test_recall(policy: str) -> None:
    is_solved = policy != "MlpPolicy"
    options = {"lstm_hidden_size": 32, "net_arch": [32]} if is_solved else {}
    with hr.PPO(
        policy, "support.memory_envs:Recall", env_kwargs={"delay": 4, "choices": 4}, n_envs=16, n_steps=32,
        batch_size=128, n_epochs=6, learning_rate=3e-3, seed=1, topology="inline", policy_kwargs=options,
    ) as model:  # fmt: skip
        model.learn(24 * 512)
        mean, _ = hr.evaluate_policy(model, n_eval_episodes=200)
    assert mean > 0.95 if is_solved else mean < CHANCE + 0.12


def test_recall_by_impala() -> None:
    """Two workers run ahead: the state goes on from version to version, and V-trace corrects for it."""
    with hr.IMPALA(
        "MlpLstmPolicy", "support.memory_envs:Recall", env_kwargs={"delay": 2}, n_envs=16, n_steps=12, batch_size=96,
        learning_rate=5e-3, ent_coef=0.01, seed=1, topology="threads", workers=2, max_lag=1,
        policy_kwargs={"lstm_hidden_size": 32, "net_arch": [32]},
    ) as model:  # fmt: skip
        model.learn(100 * 192)
        mean, _ = hr.evaluate_policy(model, n_eval_episodes=200)
    assert mean > 0.95
