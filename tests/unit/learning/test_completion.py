"""Completion fills in what acting left out: the policy's own numbers for every row, and for the ends of episodes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.errors import NumericsError
from headrace.learning.assembly import complete
from support.bit_envs import ACTIONS, OBSERVATIONS
from support.pairwise import Cell, matrix
from support.ppo_rows import completed_batch, shaken, spaces_named
from support.toy_policies import mlp_policy

CELLS = matrix(
    {
        "observation": [name for name in OBSERVATIONS if not name.startswith("image")],
        "action": ["discrete", "box_float64", "multi_discrete_2d", "multi_binary"],
        "n_envs": [1, 5, 8],
    }
)


@pytest.mark.parametrize("cell", CELLS)
def test_every_number_is_the_policys(cell: Cell) -> None:
    spaces = spaces_named(cell["observation"], cell["action"])
    module = shaken(mlp_policy(*spaces), 1, 0.3)
    batch = completed_batch(module, cell["observation"], spaces[1], n_steps=12, n_envs=cell["n_envs"], seed=2)
    with torch.no_grad():
        for t in range(12):
            want = module.evaluate(torch.from_numpy(batch.obs[t]), torch.from_numpy(batch.action[t]))
            np.testing.assert_allclose(batch.log_prob[t], want.log_prob, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(batch.value[t], want.value, rtol=1e-5, atol=1e-5)
        last = module.value(torch.from_numpy(batch.last_obs)).numpy()
        ends = module.value(torch.from_numpy(batch.final_obs)).numpy() if len(batch.final_obs) else np.zeros(0)
    np.testing.assert_allclose(batch.last_value, last, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(batch.bootstrap_value[batch.truncated], ends, rtol=1e-5, atol=1e-5)
    assert not batch.bootstrap_value[~batch.truncated].any()


@pytest.mark.parametrize("observation", ["vector", "image"])
def test_chunks_do_not_show(observation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by working in pieces; what comes out is the same up to rounding."""
    spaces = spaces_named(observation, "discrete")
    module = shaken(mlp_policy(*spaces), 1, 0.3)
    whole = completed_batch(module, observation, spaces[1], 9, 5, seed=2)
    monkeypatch.setattr("headrace.learning.assembly._CHUNK_BYTES", 100)
    parts = completed_batch(module, observation, spaces[1], 9, 5, seed=2)
    for name in ("log_prob", "value", "last_value", "bootstrap_value"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-5, atol=1e-6)


def test_completing_twice_changes_nothing() -> None:
    spaces = spaces_named("vector", "box")
    module = shaken(mlp_policy(*spaces), 1)
    batch = completed_batch(module, "vector", spaces[1], 9, 5, seed=2)
    before = {name: getattr(batch, name).tobytes() for name in ("log_prob", "value", "bootstrap_value", "last_value")}
    batch.bootstrap_value[:] = np.nan  # a slab that is used again holds what it held
    complete(batch, lambda version: module)
    assert {name: getattr(batch, name).tobytes() for name in before} == before


@pytest.mark.parametrize("poisoned", ["actor.0.bias", "critic.0.bias"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_diverged_weights_are_named(poisoned: str, bad: float) -> None:
    spaces = spaces_named("vector", "box")
    module = mlp_policy(*spaces, activation="relu")
    batch = completed_batch(module, "vector", spaces[1], 3, 2, seed=0)
    with torch.no_grad():
        module.get_parameter(poisoned)[0] = bad
    with pytest.raises(NumericsError, match="not finite; the weights have diverged"):
        complete(batch, lambda version: module)


def test_every_action_space_is_looked_at() -> None:
    for action in ACTIONS:
        spaces = spaces_named("vector", action)
        assert np.isfinite(completed_batch(mlp_policy(*spaces), "vector", spaces[1], 2, 3, seed=1).log_prob).all()
