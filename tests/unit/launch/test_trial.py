"""What decides where the policy runs, measured on real parts: orders of magnitude only, beside a busy machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.collecting.forecast import Forecast, words
from headrace.collecting.topology import TopologyConfig
from headrace.envs.spec import EnvSpec
from headrace.launch import trial
from headrace.launch.auto import survey
from headrace.launch.placement import BUFFERED, CENTRAL, LOCAL, Layout
from headrace.memory.spaces import Box, Discrete
from headrace.policies.config import PolicyConfig
from headrace.policies.networks import build_policy

PLACE: dict[str, Any] = {"topology": "processes", "workers": 4, "inference": "auto", "spares": 0}
SLOW: dict[str, Any] = {"inference_device": "emulated:20ms+0us"}


def test_a_device_that_decides_is_measured_and_the_outcome_is_reported() -> None:
    """20 ms a batch: four workers wait for four batches, a server for one, and for two with double buffering."""
    with hr.PPO("MlpPolicy", "CartPole-v1", n_envs=8, n_steps=8, batch_size=32, seed=1, **PLACE, **SLOW) as model:
        topology, (reason, *_) = model.parts.topology, model.parts.topology.reasons
        assert (topology.inference, topology.turns, len(topology.shards)) == ("central", 1, 4)
        promised = topology.promised
        assert list(promised) == [CENTRAL, LOCAL, BUFFERED]
        assert promised[CENTRAL] > 2 * promised[LOCAL]
        assert promised[CENTRAL] > 1.4 * promised[BUFFERED]
        assert all(f"{speed:,.0f}" in reason for speed in promised.values())
        assert model.plan().count("inference central on emulated:20ms+0us") == 1
        model.learn(192)
        seen = model.result.placement
    assert seen["placement"] == CENTRAL
    assert seen["predicted_sps"] == dict(promised)
    assert 0 < seen["collect_sps"] < 400, "8 environments in 20 ms, at the most"


@pytest.mark.parametrize(
    ("said", "kinds"),
    [
        ({"inference": "central"}, {CENTRAL, BUFFERED}),
        ({"double_buffering": "off"}, {LOCAL, CENTRAL}),
        ({"inference_servers": 5}, {LOCAL, BUFFERED}),  # more than the shards of central inference
        ({"inference": "central", "double_buffering": "off"}, set()),
        ({"inference": "local"}, set()),
    ],
)
def test_only_what_is_open_is_measured(said: dict[str, Any], kinds: set[str]) -> None:
    """With episodes that are cut after 3 steps: many end in each of the trial's rollouts."""
    env: dict[str, Any] = {"env": "CartPole-v1", "env_kwargs": {"max_episode_steps": 3}}
    with hr.Collector(**env, n_envs=8, n_steps=8, seed=1, **PLACE | said, **SLOW) as collector:
        assert set(collector.parts.topology.promised) == kinds


def test_a_policy_that_remembers_is_measured() -> None:
    """Its state travels with the observations."""
    with hr.Collector("CartPole-v1", "MlpLstmPolicy", n_envs=8, n_steps=8, seed=1, **PLACE, **SLOW) as collector:
        assert collector.parts.topology.inference == "central"


STACKS = ['gymnasium.wrappers:FrameStackObservation {"stack_size": 4}']


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("support.dict_envs:Signpost", {}),
        ("support.dict_envs:Nested", {}),  # Dict and Tuple, each kind of leaf, float64
        ("support.bit_envs:Probe", {"env_kwargs": {"observation": "nested", "action": "multi_discrete_2d"}}),
        ("support.bit_envs:Cards", {"action_masks": True}),  # by info
        ("support.bit_envs:Hand", {"action_masks": True, "env_kwargs": {"pairs": True}}),  # by a method
        ("support.trial_envs:Switches", {"action_masks": True}),  # by a key of its Dict, MultiBinary actions
        ("support.bit_envs:Hand", {"action_masks": True, "policy": "MlpLstmPolicy"}),
        ("support.dict_envs:Signpost", {"policy": "MultiInputGruPolicy"}),
        ("support.bit_envs:Frames", {"wrappers": STACKS}),
    ],
)
def test_every_kind_of_environment_is_measured(env: str, options: dict[str, Any]) -> None:
    """Also where action 0 is forbidden, and where one network for a single array would not do."""
    options = {"policy": "auto", **options}
    with hr.Collector(env, n_envs=8, n_steps=8, seed=1, **options, **PLACE | {"workers": 2}, **SLOW) as collector:
        assert set(collector.parts.topology.promised) == {LOCAL, CENTRAL, BUFFERED}, collector.parts.topology.reasons


@pytest.mark.parametrize(
    ("said", "where"),
    [
        ({}, "inference=local: each worker runs the policy itself"),
        ({"inference": "central"}, "double_buffering=off: workers step all of their environments at once"),
    ],
)
def test_what_fails_is_named_and_left_to_those_that_report_it(said: dict[str, Any], where: str) -> None:
    """Of an environment whose steps raise: the simplest placement, and its whole error comes from a worker."""
    with hr.Collector("support.faulty_envs:Faulty", n_envs=8, n_steps=8, seed=7, **PLACE | said) as collector:
        topology = collector.parts.topology
        assert (topology.inference, dict(topology.promised)) == (said.get("inference", "local"), {})
        assert topology.reasons[0].startswith(f"{where}; what is faster could not be measured: env ")
        assert topology.reasons[0].endswith("the environment raised RuntimeError: the simulator fell over")


@pytest.mark.parametrize(
    ("steps", "more", "why"),
    [
        (19_999, {}, "19,999 steps are too few to measure what is faster"),
        (None, {"inference_servers": 5, "shards": 4}, "inference_servers=5 are more than there are shards"),
    ],
)
def test_what_is_not_worth_measuring_is_named(steps: int | None, more: dict[str, Any], why: str) -> None:
    config = TopologyConfig(8, 8, "processes", "4", "auto", **more)
    topology = survey(EnvSpec("CartPole-v1"), 1, config, steps=steps, policy_of=unasked).topology
    assert topology.reasons[0] == f"inference=local: each worker runs the policy itself; {why}"


@pytest.mark.parametrize(("said", "has_one_queue"), [("cpu", False), ("cpu,cpu", False), ("emulated:1ms+0us", True)])
def test_servers_on_the_cpu_are_in_no_queue(said: str, has_one_queue: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = dict.fromkeys(("step", "row", "round_trip", "slot"), (0.0, 0.0)) | {"cpu_s": 0.0}
    monkeypatch.setattr(trial, "_answered", lambda *_: seen)
    monkeypatch.setattr(trial, "_acting", lambda *_: {})
    config = TopologyConfig(8, 8, "processes", "2", "central", inference_device=said, inference_servers=2)
    spaces = Box((4,), "float32", (-1.0,), (1.0,)), Discrete(2)
    policy = build_policy(PolicyConfig(), *spaces, 0)
    costs = trial.measure(EnvSpec("CartPole-v1"), 1, config, Layout(8, 8, 2, 2), policy, spaces, 0, set())
    assert costs.has_one_queue == has_one_queue  # type: ignore[union-attr]


def unasked(*spaces: Any) -> Any:
    raise AssertionError("a policy was made")


def test_environments_that_take_long_are_stepped_a_few_times_only(tmp_path: Path) -> None:
    """0.11 s a step: two short rollouts of 4 rows, with 1 environment and with 2, and no third one."""
    steps = tmp_path / "steps"
    env: dict[str, Any] = {"env": "support.worker_envs:slow_and_counted", "env_kwargs": {"file": str(steps)}}
    with hr.Collector(**env, n_envs=8, n_steps=8, seed=1, **PLACE) as collector:
        assert collector.parts.topology.promised
    assert len(steps.read_bytes()) == 2 * 4 * (1 + 2)


def test_predicted_and_reached_in_words() -> None:
    """Two lanes, each busy for half of the seconds; the first batch is not counted."""
    forecast = Forecast({CENTRAL: 6100.0, LOCAL: 1980.0}, lanes=2)
    assert words(forecast.encode()) == "central: 6,100 steps/s predicted while collecting; local: 1,980 predicted"
    for steps, busy_s in ((100, 99.0), (300, 0.1), (300, 0.1)):
        forecast.add(steps, {"headrace/actors/env_s": busy_s})
    said = "central: 6,100 steps/s predicted while collecting, 6,000 reached (-2%); local: 1,980 predicted"
    assert words(forecast.encode()) == said
    assert words({}) == ""
