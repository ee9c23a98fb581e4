"""Where the policy runs changes no bit: inference servers or local inference, any number of servers and workers, on any
device that is computed here, with and without double buffering.

Weights, optimiser, ledger and episodes of synchronous runs are compared with an undisturbed inline run's: with batches
of one shard, of all of them, and of as many as fit. The last test breaks a rule in the servers, and the comparison sees
it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.build import build_run
from headrace.clock import now_s
from headrace.collecting.schedule import Schedule
from support.mutant_servers import keeps_old_weights, swaps_answers
from support.pairwise import Cell, matrix
from support.topology_runs import CASES, INLINE, bits_of, calm, processes

BATCHES: dict[str, dict[str, Any]] = {
    "as they come": {"inference_max_wait_ms": 0.0},
    "all together": {"inference_max_wait_ms": 50.0},
    "few": {"inference_max_batch": 5},
}


BUFFERED = {"double_buffering": "on"}
DEVICE: dict[str, Any] = {"inference_device": "emulated:1ms+10us"}
DEVICES: dict[str, Any] = {"inference_device": "emulated:1ms+10us,emulated:2ms+5us"}


def central(workers: int, servers: int = 1, **more: Any) -> dict[str, Any]:
    return processes(workers, inference="central", inference_servers=servers, **{"double_buffering": "off", **more})


@pytest.mark.parametrize(
    "cell",
    matrix(
        {
            "case": ("noisy", "stacks", "continuous"),
            "workers": (1, 2, 5),
            "servers": (1, 2),
            "batches": tuple(BATCHES),
            "double_buffering": ("off", "on"),
        },
        lambda cell: cell["workers"] < 5 or cell["double_buffering"] == "off",
    ),
)
def test_same_bits_as_local_inference(cell: Cell) -> None:
    """Five shards: with double buffering some workers take turns with two and three of them."""
    more = {**BATCHES[cell["batches"]], "double_buffering": cell["double_buffering"]}
    place = central(cell["workers"], cell["servers"], shards=5, **more)
    assert CASES[cell["case"]].play(**place) == calm(cell["case"])


@pytest.mark.parametrize(
    "cell",
    matrix(
        {
            "case": ("masked", "normalized", "dict", "lstm", "gru"),
            "workers": (1, 2),
            "servers": (1, 2),
            "double_buffering": ("off", "on"),
        }
    ),
)
def test_same_bits_of_masks_statistics_several_arrays_and_memories(cell: Cell) -> None:
    """What requests carry beside one array: masks, further leaves, states there and back; buffers with the weights."""
    place = central(cell["workers"], cell["servers"], shards=4, double_buffering=cell["double_buffering"], spares=0)
    assert CASES[cell["case"]].play(**place) == calm(cell["case"])


@pytest.mark.parametrize(
    "place",
    [
        processes(2, **DEVICE), central(2, 2, **BUFFERED, **DEVICE), INLINE | DEVICE,
        central(2, 3, **DEVICES, shards=3), central(3, 2, **DEVICES),
    ],
)  # fmt: skip
def test_same_bits_on_an_emulated_accelerator(place: dict[str, Any]) -> None:
    """Or on two of them, also with three servers."""
    assert CASES["images"].play(**place) == calm("images")


@pytest.mark.alone
def test_a_device_for_each_server_is_faster() -> None:
    """2 ms for each of 8 rows: 16 ms on one device whoever asks, 8 ms on two."""
    speeds, hashes = {}, set()
    for name, more in {"one": {}, "shared": {"inference_servers": 2}, "two": {"inference_servers": 2}}.items():
        device: Any = ["emulated:0ms+2ms"] * (1 + (name == "two"))
        place: dict[str, Any] = {"topology": "processes", "workers": 4, "inference": "central", "spares": 0, **more}
        options: dict[str, Any] = {"n_envs": 8, "n_steps": 16, "batch_size": 128, "n_epochs": 1, "seed": 1}
        with hr.PPO(
            "MlpPolicy", "CartPole-v1", **options, **place, double_buffering="off", inference_device=device
        ) as model:
            model.learn(128)  # servers start
            begun_s = now_s()
            model.learn(3 * 128, reset_num_timesteps=False)
            speeds[name] = 3 * 128 / (now_s() - begun_s)
            hashes.add(model.run.hashes()["weights_sha256"])
    assert len(hashes) == 1
    assert speeds["two"] > 1.4 * max(speeds["one"], speeds["shared"]), speeds


@pytest.mark.full
def test_spawned_servers_and_workers() -> None:
    assert CASES["noisy"].play(**central(2, 2, start_method="spawn")) == calm("noisy")


@pytest.mark.parametrize(
    ("before", "after"), [(INLINE, central(2, 2, **BUFFERED)), (central(2, **BUFFERED), processes(3))]
)
def test_stop_and_resume_elsewhere(before: dict[str, Any], after: dict[str, Any]) -> None:
    case = CASES["noisy"]
    with case.start(**before) as run:
        episodes = case.advance(run, case.updates // 2)
        snapshot = run.snapshot()
    assert case.go_on(snapshot, episodes, **after) == calm("noisy")


def test_another_number_of_workers_in_mid_run() -> None:
    case = CASES["noisy"]
    with case.build(**central(1, 2, shards=4)) as (run, parts):
        episodes = case.advance(run, 2)
        parts.rescale(3)
        episodes += case.advance(run, case.updates - 2)
        assert bits_of(run, episodes) == calm("noisy")


def test_checkpoints_and_configurations_carry_it(tmp_path: Path) -> None:
    """A run directory is resumed with its servers, and comes to the bits of a local run that was never stopped."""
    options: dict[str, Any] = {"n_envs": 4, "n_steps": 16, "batch_size": 32, "seed": 3}
    where = {
        "topology": "processes", "workers": 2, "inference": "central", "inference_servers": 2, **BUFFERED, **DEVICES,
    }  # fmt: skip
    with hr.PPO("MlpPolicy", "CartPole-v1", **options, **where) as model:
        assert "inference central" in model.plan()
        model.learn(256)
        model.save(tmp_path / "run")
    with hr.PPO.load(tmp_path / "run") as model:
        topology = model.parts.topology
        assert (topology.inference, topology.servers, topology.turns, len(topology.shards)) == ("central", 2, 2, 4)
        model.learn(256, reset_num_timesteps=False)
        got = model.run.hashes()
    with hr.PPO("MlpPolicy", "CartPole-v1", topology="inline", **options) as model:
        model.learn(256)
        model.learn(256, reset_num_timesteps=False)
        assert got == model.run.hashes()


@pytest.mark.parametrize(("name", "pick_up_rows"), [("cartpole", 0), ("cartpole", 1), ("normalized", 1)])
def test_an_asynchronous_run_is_replayed_to_its_bits(name: str, pick_up_rows: int) -> None:
    """The servers pick versions up by themselves. They report per row which one acted, or the replay would differ."""
    case = CASES[name]
    place = central(1 + pick_up_rows, 2, shards=4, max_lag=2, pick_up_rows=pick_up_rows, **BUFFERED, **DEVICES)
    with case.start(**place) as run:
        updates = [run.update(case.total_timesteps) for _ in range(case.updates)]
        want = run.hashes()
    recorded = Schedule([one.version for one in updates], [list(one.harvest.uses) for one in updates])
    assert {version for use in recorded.uses for version in use.versions} != {0}
    run, _ = build_run(case.config(**place), schedule=recorded)
    try:
        for _ in updates:
            run.update(case.total_timesteps)
        assert run.hashes() == want
    finally:
        run.close()


@pytest.mark.parametrize("mutant", [swaps_answers, keeps_old_weights])
def test_a_server_that_breaks_a_rule_changes_the_bits(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.inference.servers.run_server", mutant)
    got = CASES["cartpole"].play(**central(2, shards=2, inference_max_wait_ms=50.0))
    assert got.weights_sha256 != calm("cartpole").weights_sha256
