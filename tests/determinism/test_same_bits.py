"""A run's bits are a function of its configuration and seed: not of shards, of the rest of the process, or of luck.

Weights, optimiser, ledger, episode statistics, the list of episodes and every update's losses are compared.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headrace as hr
from support.bit_runs import SEED, UPDATES, WORKLOADS, Workload, advance, calm, play, trace_of
from support.pairwise import Cell, matrix

every_workload = pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)


@every_workload
def test_same_seed_twice(workload: Workload) -> None:
    want = calm(workload.name)
    np.random.seed(99)  # the global generators are nobody's business
    torch.manual_seed(99)
    assert play(workload) == want


@pytest.mark.parametrize("shards", [4, 5])
@every_workload
def test_shards_do_not_change_bits(workload: Workload, shards: int) -> None:
    assert play(workload, shards=shards) == calm(workload.name)


@pytest.mark.full
@pytest.mark.parametrize("shards", [2, 3, 7, 10])
@every_workload
def test_any_number_of_shards(workload: Workload, shards: int) -> None:
    assert play(workload, shards=shards) == calm(workload.name)


@every_workload
def test_another_seed_gives_other_bits(workload: Workload) -> None:
    other, want = play(workload, updates=2, seed=SEED + 1), play(workload, updates=2)
    assert other.weights_sha256 != want.weights_sha256
    assert other.optimizer_sha256 != want.optimizer_sha256
    assert other.losses != want.losses


def test_the_runs_are_what_they_claim_to_be() -> None:
    """Episodes end in every one of them, some longer than 10 slabs, and training changes the weights."""
    for name, workload in WORKLOADS.items():
        episodes = calm(name).episodes
        assert episodes, name
        assert calm(name).ledger["produced"] == workload.total_timesteps
        assert len({one["total_reward"] for one in episodes}) > 1 or name == "cnn", name
    assert max(one["length"] for one in calm("long").episodes) > 10 * WORKLOADS["long"].n_steps
    assert any(one["terminated"] for one in calm("mlp").episodes)
    assert not any(one["terminated"] for one in calm("continuous").episodes)
    stopped_early = [loss["train/n_updates"] for loss in calm("mlp").losses][-1] < UPDATES * 2 * 5
    assert stopped_early, "target_kl never bit: the workload no longer covers it"


def test_looking_at_a_run_does_not_change_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Evaluating, predicting and saving in between: evaluation has its own branch of the seed tree."""
    workload = WORKLOADS["mlp"]
    folder = tmp_path_factory.mktemp("saved")
    with workload.start() as model:
        part = advance(model, workload, 0)
        for update in range(UPDATES):
            one = advance(model, workload, 1)
            part.episodes += one.episodes
            part.losses += one.losses
            if update % 7 == 3:
                hr.evaluate_policy(model, n_eval_episodes=2, deterministic=False)
                model.predict(np.zeros(4, np.float32))
                model.save(folder / str(update))
        assert trace_of(model, part) == calm("mlp")


NETWORKS = {
    "linear": {"net_arch": ()},
    "narrow relu": {"net_arch": (4,), "activation": "relu"},
    "wide tanh": {"net_arch": (32, 32), "activation": "tanh"},
}
# The options that choose another path through the code, against the number of shards.
OPTIONS = {
    "action": ("discrete", "discrete_from_3", "multi_discrete", "multi_binary", "box", "box_float64"),
    "observation": ("vector", "wide", "discrete", "multi_binary", "float64", "multi_discrete"),
    "network": ("linear", "narrow relu", "wide tanh"),
    "gradients": ("auto", "autograd"),
    "shards": (3, 5),
}


@pytest.mark.parametrize("cell", matrix(OPTIONS))
def test_shards_do_not_change_bits_of_any_option(cell: Cell) -> None:
    """11 environments: shards of unequal sizes, rows that start at any address, tiles that are never full."""
    workload = Workload(
        "cell",
        "support.bit_envs:Probe",
        n_envs=11,
        n_steps=7,
        batch_size=30,
        env_kwargs={"observation": cell["observation"], "action": cell["action"]},
        options={"gradients": cell["gradients"], "policy_kwargs": NETWORKS[cell["network"]]},
    )
    assert play(workload, 3, shards=cell["shards"]) == play(workload, 3)
