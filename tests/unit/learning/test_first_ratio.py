"""The first minibatch of every update sees the policy that acted: max |ratio - 1| < 1e-5, whatever acted and trains."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from torch import nn

import headrace as hr
from headrace.learning import ppo
from headrace.policies.normalization import normalizers
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
    "dict": ("dict", {"policy": "MultiInputPolicy"}),
    "nested": ("nested", {"policy": "MultiInputPolicy"}),
    "own": ("vector", None),
    "normalized": ("vector", {"norm": True}),
    "float64, normalized": ("float64", {"norm": True}),
    "own, normalized": ("vector", None),
}
CLOSED_FORM_ACTIONS = [name for name in ACTIONS if not name.startswith("multi")]


def is_possible(cell: Cell) -> bool:
    if cell["policy"] not in ("tanh", "relu", "cnn", "own") and cell["action"] not in ("discrete", "box"):
        return False  # the kind of observation has nothing to do with the actions
    plain = not cell["policy"].startswith(("own", "cnn", "dict", "nested"))
    return cell["gradients"] == "autograd" or (plain and cell["action"] in CLOSED_FORM_ACTIONS)


@pytest.mark.parametrize(
    "cell",
    matrix({"policy": list(POLICIES), "action": list(ACTIONS), "gradients": ["autograd", "closed_form"]}, is_possible),
)
def test_first_ratio_is_one(cell: Cell) -> None:
    observation, options = POLICIES[cell["policy"]]
    policy: str | nn.Module = "MlpPolicy"
    norm = cell["policy"].endswith("normalized")
    if options is None:
        policy = own_policy(*spaces_named(observation, cell["action"]), seed=3)
    elif "policy" in options:
        policy, options = options["policy"], {}
    elif norm:
        options = {}
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
        norm_obs=norm,
        norm_reward=norm,
        seed=5,
    ) as model:
        before = model.run.hashes()
        errors = [model.run.update(10**6).record["headrace/first_ratio_error"] for _ in range(4)]
        assert model.run.hashes() != before
        assert model.run.algorithm.summary.endswith(f"gradients {cell['gradients'].replace('_', ' ')}")
    assert max(errors) < 1e-5


def test_new_statistics_before_the_epochs_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics that change between acting and learning would move the first ratio."""
    completing = ppo.complete

    def too_soon(batch: Any, *others: Any) -> None:
        completing(batch, *others)
        normalizers(model.policy)[0].take(batch.leaves, batch.valid)

    with hr.PPO("MlpPolicy", "Pendulum-v1", n_envs=4, n_steps=16, seed=1, norm_obs=True) as model:
        assert model.run.update(10**6).record["headrace/first_ratio_error"] < 1e-5
        monkeypatch.setattr(ppo, "complete", too_soon)
        assert model.run.update(10**6).record["headrace/first_ratio_error"] > 1e-4


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("pairs", [False, True])
def test_first_ratio_is_one_with_masks(pairs: bool, norm: bool) -> None:
    options: dict[str, Any] = {"action_masks": True, "norm_obs": norm, "norm_reward": norm, "learning_rate": 3e-3}
    with hr.PPO(
        "MlpPolicy", "support.bit_envs:Hand", env_kwargs={"pairs": pairs}, n_envs=6, n_steps=8, batch_size=20, seed=5,
        **options,
    ) as model:  # fmt: skip
        assert max(model.run.update(10**6).record["headrace/first_ratio_error"] for _ in range(4)) < 1e-5


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
