"""An environment that can be solved with both of its arrays only: PPO and IMPALA solve it, in seconds."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import headrace as hr
from support.dict_envs import Masked, Signpost


def masked(leaf: str) -> Masked:
    return Masked(Signpost(), leaf)


def mean_of(model: Any, env: Any = None) -> float:
    mean, _ = hr.evaluate_policy(model, env, n_eval_episodes=100)
    assert isinstance(mean, float)
    return mean


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (hr.PPO, {"n_steps": 32, "batch_size": 128, "n_epochs": 5, "learning_rate": 1e-3}),
        (hr.IMPALA, {"n_steps": 8, "learning_rate": 3e-3}),
    ],
    ids=["ppo", "impala"],
)
def test_both_leaves_are_learned_from(algorithm: Any, options: dict[str, Any]) -> None:
    with algorithm(
        "auto", Signpost, n_envs=32, gamma=0.3, ent_coef=0.01, seed=1, topology="inline", **options
    ) as model:
        before = mean_of(model)
        model.learn(40_000)
        after = mean_of(model)
        assert before < 5
        assert after > 0.95 * Signpost.LIMIT
        for leaf in ("position", "goal"):
            assert mean_of(model, partial(masked, leaf)) < 0.8 * Signpost.LIMIT
