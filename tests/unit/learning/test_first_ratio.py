"""The first minibatch of every update sees the policy that acted: max |ratio - 1| < 1e-5, whatever acted and trains."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from torch import nn

import headrace as hr
from support.bit_envs import ACTIONS
from support.pairwise import Cell, matrix
from support.ppo_rows import spaces_named
from support.toy_policies import own_policy

# name -> observation, policy's options; "own" is a module of the user's
POLICIES: dict[str, tuple[str, Any]] = {
    "tanh": ("vector", {"activation": "tanh"}),
    "relu": ("vector", {"activation": "relu", "net_arch": (48,)}),
    "images as vectors": ("image", {"net_arch": (32,)}),
    "one-hot": ("discrete", {}),
    "float64": ("float64", {}),
    "cnn": ("image", {"policy": "CnnPolicy"}),
    "cnn chw": ("image_chw", {"policy": "CnnPolicy"}),
    "own": ("vector", None),
}
CLOSED_FORM_ACTIONS = [name for name in ACTIONS if not name.startswith("multi")]


def is_possible(cell: Cell) -> bool:
    if cell["policy"] not in ("tanh", "relu", "cnn", "own") and cell["action"] not in ("discrete", "box"):
        return False  # the kind of observation has nothing to do with the actions
    plain = cell["policy"] != "own" and not cell["policy"].startswith("cnn")
    return cell["gradients"] == "autograd" or (plain and cell["action"] in CLOSED_FORM_ACTIONS)


@pytest.mark.parametrize(
    "cell",
    matrix({"policy": list(POLICIES), "action": list(ACTIONS), "gradients": ["autograd", "closed_form"]}, is_possible),
)
def test_first_ratio_is_one(cell: Cell) -> None:
    observation, options = POLICIES[cell["policy"]]
    policy: str | nn.Module = "MlpPolicy"
    if options is None:
        policy = own_policy(*spaces_named(observation, cell["action"]), seed=3)
    elif "policy" in options:
        policy, options = options["policy"], {}
    with hr.PPO(
        policy,
        "support.bit_envs:Probe",
        env_kwargs={"observation": observation, "action": cell["action"]},
        n_envs=6,
        n_steps=8,
        batch_size=20,
        n_epochs=3,
        learning_rate=3e-3,
        gradients=cell["gradients"],
        policy_kwargs=options,
        seed=5,
    ) as model:
        before = model.run.hashes()
        errors = [model.run.update(10**6).record["headrace/first_ratio_error"] for _ in range(4)]
        assert model.run.hashes() != before
        assert model.run.algorithm.summary.endswith(f"gradients {cell['gradients'].replace('_', ' ')}")
    assert max(errors) < 1e-5


@pytest.mark.parametrize("gradients", ["autograd", "closed_form"])
def test_old_weights_are_noticed(gradients: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Completed with weights other than those that acted, the first ratio is off: the number can fail."""
    monkeypatch.setattr("headrace.weights.store.Weights.acted", lambda weights, version: first)
    with hr.PPO(
        "MlpPolicy", "CartPole-v1", n_envs=4, n_steps=16, seed=1, gradients=gradients, learning_rate=1e-2
    ) as model:
        first = copy.deepcopy(model.policy)
        assert model.run.update(10**6).record["headrace/first_ratio_error"] < 1e-5
        assert model.run.update(10**6).record["headrace/first_ratio_error"] > 1e-3
