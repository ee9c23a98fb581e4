"""A saved run goes on elsewhere: by PPO.load and by --resume, in another place, or without the device that it had.

No bit of a synchronous run depends on where it is collected, so every way must come to the weights of the run that was
never stopped.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.collecting.moving import left_open, moved
from headrace.collecting.topology import TopologyConfig
from headrace.errors import UsageError
from support.command import assert_says, result_of, run
from support.doctored import doctor

SMALL: dict[str, Any] = {"n_envs": 4, "n_steps": 8, "batch_size": 16, "n_epochs": 1, "seed": 3}
NARROW: dict[str, Any] = {"policy_kwargs": {"lstm_hidden_size": 8, "net_arch": [8]}}
CENTRAL: dict[str, Any] = {
    "topology": "processes", "workers": 2, "inference": "central", "inference_servers": 2, "double_buffering": "on",
    "spares": 0,
}  # fmt: skip
POLICIES = {"MlpPolicy": {}, "MlpLstmPolicy": NARROW}
WHERE: list[dict[str, Any]] = [
    {"topology": "inline"},
    {"topology": "inline", "inference": "local"},
    {"topology": "threads", "workers": 2},
    {"inference": "local"},
    {"inference_servers": 1, "double_buffering": "off"},
    {"workers": 1},
]


# ------------------------------------------------------------------------------------------------------------ elsewhere


@pytest.fixture(scope="module")
def central(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run of each policy that inference servers acted for, and the hashes of inline runs that went on."""
    folder, wanted = tmp_path_factory.mktemp("central"), {}
    for policy, options in POLICIES.items():
        with hr.PPO(policy, "CartPole-v1", **SMALL, **CENTRAL, **options) as model:
            model.learn(32)
            model.save(folder / policy)
        with hr.PPO(policy, "CartPole-v1", topology="inline", **SMALL, **options) as model:
            model.learn(64)
            wanted[policy] = model.run.hashes()
    return folder, wanted


@pytest.mark.parametrize("where", WHERE, ids=str)
@pytest.mark.parametrize("policy", POLICIES)
def test_load_elsewhere(policy: str, where: dict[str, Any], central: tuple[Path, dict[str, Any]]) -> None:
    folder, wanted = central
    with hr.PPO.load(folder / policy, **where) as model:
        model.learn(32)
        assert model.run.hashes() == wanted[policy]
        topology = model.parts.topology
        assert topology.topology == where.get("topology", "processes")
        assert (topology.inference == "local") == ("topology" in where or "inference" in where)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"topology": "inline", "inference": "central"}, "inference=central needs topology=processes, got inline"),
        ({"topology": "inline", "workers": 2}, "workers=2: topology=inline has none"),
        ({"topology": "inlin"}, "did you mean inline"),
        ({"inference_servers": 3, "workers": 1}, "inference_servers: expected at most shards = 2, got 3"),
        ({"n_envs": 2}, "load: n_envs is no option of ppo that can change"),
        ({"n_steps": 32}, "load: n_steps is no option of ppo that can change"),  # and is not meant to be n_epochs
        ({"inference_servers": "x"}, "inference_servers: expected a whole number, got 'x'"),
    ],
)
def test_what_is_given_is_not_overruled(where: dict[str, Any], said: str, central: tuple[Path, dict[str, Any]]) -> None:
    with pytest.raises(UsageError, match=said):
        hr.PPO.load(central[0] / "MlpPolicy", **where)


def test_what_a_new_place_leaves_open() -> None:
    place = TopologyConfig(topology="processes", workers="4", shards=4, inference="central", inference_servers=3)
    assert left_open(place, {}) == left_open(place, {"spares": 0}) == {}
    assert left_open(place, {"workers": "2"}) == {"shards": 0, "inference_servers": 2}
    assert moved(place, {"topology": "threads", "workers": "3"}).workers == "3"
    assert moved(place, {"topology": "auto"}).inference == "local"
    assert moved(place, {"topology": "processes"}).inference == "central"
    assert moved(place, {"inference": "auto"}).inference == "auto"
    two = moved(place, {"inference_device": "emulated:1ms+0us,emulated:2ms+0us"})
    assert moved(two, {"inference_servers": 2}).inference_device == two.inference_device
    for less in ({"inference_servers": 1}, {"inference": "auto"}, {"topology": "inline"}):
        assert moved(two, less).inference_device == "emulated:1ms+0us"


def test_a_device_of_none_is_none_given(central: tuple[Path, dict[str, Any]]) -> None:
    folder, wanted = central
    devices: dict[str, Any] = {"learner_device": None, "inference_device": None, "device": None}
    with hr.PPO.load(folder / "MlpPolicy", **devices) as model:
        model.learn(32)
        assert model.run.hashes() == wanted["MlpPolicy"]


TYPED = ("--n-envs", "4", "--n-steps", "8", "--batch-size", "16", "--n-epochs", "1", "--seed", "3", "--quiet")


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run directories of 32 steps: central inference, worker processes, and both of them never stopped: 64 steps."""
    folder = tmp_path_factory.mktemp("typed")
    workers = ("--topology", "processes", "--workers", "2", "--spares", "0")
    servers = (*workers, "--inference", "central", "--double-buffering", "on")
    lstm = ("--policy", "MlpLstmPolicy", "--lstm-hidden-size", "8")
    for name, steps, options in (
        ("central", "32", servers),
        ("local", "32", workers),
        ("whole", "64", ()),
        ("lstm", "32", (*servers, *lstm)),
        ("whole lstm", "64", lstm),
    ):
        place = options if "--topology" in options else (*options, "--topology", "inline")
        outcome = run("train", "CartPole-v1", *TYPED, "--total-timesteps", steps, *place, "--run-dir", name, cwd=folder)
        assert outcome.code == 0, outcome.err
    return {one.name: one for one in folder.iterdir()}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("central", "--topology inline"),
        ("central", "--topology=inline --inference local"),
        ("central", "--topology threads --workers 2"),
        ("central", "--inference local"),
        ("local", "--topology inline"),
        ("lstm", "--topology inline"),
    ],
)
def test_resume_elsewhere(name: str, options: str, typed: dict[str, Path], tmp_path: Path) -> None:
    """The guide's commands, on runs that had worker processes."""
    more = ("--total-timesteps", "64", "--quiet", "--run-dir", tmp_path / "out")
    resumed = run("train", "--resume", typed[name], *options.split(), *more, cwd=tmp_path)
    assert resumed.code == 0, resumed.err
    whole = "whole lstm" if name == "lstm" else "whole"
    assert result_of(tmp_path / "out")["weights_sha256"] == result_of(typed[whole])["weights_sha256"]


def test_a_config_file_of_a_run_takes_another_place(typed: dict[str, Path], tmp_path: Path) -> None:
    config = ("--config", typed["central"] / "config.json")
    outcome = run("train", *config, "--topology", "inline", "--dry-run", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert "topology     inline, 1 shard, max_lag 0, inference local" in outcome.out


# ------------------------------------------------------------------------------------------------- without their device

DEVICES = ("inference_device", "learner_device")


def on_cuda(saved: Path, target: Path, *names: str) -> Path:
    """A real checkpoint, as a machine with a GPU would have written it."""

    def change(state: dict[str, Any]) -> None:
        write_devices(state["config"], names)

    return doctor(saved, target, change)


def write_devices(config: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        config["topology" if name == "inference_device" else "algorithm"][name] = "cuda"


@pytest.mark.parametrize("missing", [*((name,) for name in DEVICES), DEVICES], ids=str)
def test_a_load_without_the_gpu_it_had(
    missing: tuple[str, ...], central: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    saved = on_cuda(central[0] / "MlpPolicy", tmp_path / "saved", *missing)
    for options in ({}, {"device": "cuda"}):
        with pytest.raises(UsageError, match=r"(inference_device|learner_device).*use (inference_)?device=cpu"):
            hr.PPO.load(saved, topology="inline", **options)
    hr.export_policy(saved, tmp_path / "policy.onnx")
    outcome = run("eval", saved, "--n-eval-episodes", "2", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    alone: dict[str, Any] = dict.fromkeys(missing, "cpu")
    for options in ({"device": "cpu"}, {"device": "auto"}, alone, {"weights_only": True}):
        with hr.PPO.load(saved, topology="inline", **options) as model:
            config = model.parts.config
            assert (config.topology.inference_device, config.algorithm.learner_device) == ("cpu", "cpu")
            model.learn(32)
            assert "weights_only" in options or model.run.hashes() == central[1]["MlpPolicy"]


def test_an_emulated_device_stays(central: tuple[Path, dict[str, Any]]) -> None:
    """It is the CPU already."""
    emulated = {"topology": "inline", "inference_device": "emulated:1us+0us"}
    with hr.PPO.load(central[0] / "MlpPolicy", device="cpu", **emulated) as model:
        snapshot = model.run.snapshot()
    for options in ({"device": "cpu"}, {"weights_only": True}):
        with hr.PPO.from_snapshot(snapshot, **options) as model:
            assert model.parts.config.topology.inference_device == "emulated:1us+0us"


@pytest.mark.parametrize(
    ("missing", "options"),
    [
        (DEVICES, "--device cpu"),
        (DEVICES, "--inference-device cpu --learner-device cpu"),
        (DEVICES[:1], "--inference-device cpu"),
    ],
)
def test_a_resume_without_the_gpu_it_had(
    missing: tuple[str, ...], options: str, typed: dict[str, Path], tmp_path: Path
) -> None:
    """In its own run directory, whose config.json had the device, too."""
    shutil.copytree(typed["local"], tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    write_devices(config, missing)
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    checkpoint = tmp_path / "out" / "checkpoints" / "step_000000000032"
    shutil.rmtree(checkpoint)
    on_cuda(typed["local"] / "checkpoints" / checkpoint.name, checkpoint, *missing)
    resume = ("train", "--resume", "out", "--total-timesteps", "64", "--quiet", "--topology", "inline")
    refused = run(*resume, cwd=tmp_path)
    assert refused.code == 2
    assert_says(refused.only_error, ["device=cpu (--", "device cpu), also to load or resume"])
    resumed = run(*resume, *options.split(), cwd=tmp_path)
    assert resumed.code == 0, resumed.err
    assert result_of(tmp_path / "out")["weights_sha256"] == result_of(typed["whole"])["weights_sha256"]
