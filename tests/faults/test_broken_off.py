"""Found by trying to break it: collects broken off in mid-batch, rare publishing, rejected slabs, odd users."""

from __future__ import annotations

import json
import multiprocessing
import signal
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import headrace as hr
from headrace.build import build_run
from headrace.collecting.topology import TopologyConfig
from headrace.errors import EnvError
from headrace.learning.config import PpoConfig
from headrace.memory.lease import Taken
from headrace.memory.spaces import Box, Discrete
from headrace.run_config import RunConfig
from headrace.train import Run
from support.faulty_envs import Faulty
from support.toy_policies import own_policy

OPTIONS: dict[str, Any] = {"n_envs": 4, "n_steps": 8, "batch_size": 16, "n_epochs": 2, "seed": 3}
PER_UPDATE = 32


class Counts(gym.Env[Any, Any]):
    """Episodes of ten steps with a reward of one each; something may happen at a step of the whole process."""

    steps = 0
    at: tuple[int, str] | None = None

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self.np_random.random(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Counts.steps += 1
        if Counts.at is not None and Counts.steps == Counts.at[0]:
            what, Counts.at = Counts.at[1], None
            if what == "raise":
                raise RuntimeError("broken")
            signal.raise_signal(signal.SIGINT)
        self.count += 1
        return self.np_random.random(3, np.float32), 1.0, self.count == 10, False, {}


def model_of(**more: Any) -> hr.PPO:
    Counts.steps, Counts.at = 0, None
    return hr.PPO("MlpPolicy", Counts, topology="inline", **OPTIONS | more)


def calm(updates: int = 4, **more: Any) -> str:
    with model_of(**more) as model:
        model.learn(updates * PER_UPDATE)
        return model.run.hashes()["weights_sha256"]


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_ctrl_c_between_two_shards_of_a_batch(shards: int) -> None:
    """Shard 0 has committed, the last one is at work: the books know of neither, and the bits are the calm run's."""
    with model_of(shards=shards) as model:
        model.learn(PER_UPDATE)
        Counts.at = (Counts.steps + PER_UPDATE - 3, "signal")
        with pytest.raises(KeyboardInterrupt):
            model.learn(3 * PER_UPDATE)
        ledger = model.parts.reader.ledger
        assert (ledger.produced, ledger.consumed) == (PER_UPDATE, PER_UPDATE)
        model.learn(3 * PER_UPDATE)
        assert model.run.hashes()["weights_sha256"] == calm()


def test_ctrl_c_with_a_policy_of_ones_own_behind_a_normalizer() -> None:
    """It goes on with the module that there is, which is built upon once more: from the CPU, wherever it was."""
    hashes = []
    for is_broken_off in (False, True):
        Counts.steps, Counts.at = 0, None
        policy = own_policy(Box((3,), "float32", (-1.0,), (1.0,)), Discrete(2))
        with hr.PPO(policy, Counts, topology="inline", norm_obs=True, **OPTIONS) as model:
            model.learn(PER_UPDATE)
            if is_broken_off:
                Counts.at = (Counts.steps + 5, "signal")
                with pytest.raises(KeyboardInterrupt):
                    model.learn(PER_UPDATE)
            model.learn(PER_UPDATE)
            hashes.append(model.run.hashes())
        with hr.PPO(model.policy, Counts, topology="inline", norm_obs=True, **OPTIONS) as again:
            assert type(again.policy).__name__ == "NormalizedPolicy"
    assert hashes[0] == hashes[1]


def test_an_error_between_two_shards_leaves_a_checkpoint_that_goes_on(tmp_path: Path) -> None:
    with model_of(shards=2) as model:
        model.learn(PER_UPDATE, run_dir=tmp_path)
        Counts.at = (Counts.steps + PER_UPDATE - 3, "raise")
        with pytest.raises(EnvError, match="broken"):
            model.learn(3 * PER_UPDATE, run_dir=tmp_path)
    with hr.PPO.load(tmp_path, env=Counts) as model:
        model.learn(3 * PER_UPDATE)
        assert model.run.hashes()["weights_sha256"] == calm()


def test_resume_and_rescale_when_weights_are_published_rarely() -> None:
    """Actors go on with the version that was published, not with what the learner has made since."""
    config = RunConfig(
        hr.EnvSpec("CartPole-v1"), 3, algorithm=PpoConfig(batch_size=16, n_epochs=2),
        topology=TopologyConfig(4, 8, "threads", "2", publish_every="2"),
    )  # fmt: skip

    def hash_of(run: Run, updates: int) -> str:
        for _ in range(updates):
            run.update(10**6)
        return run.hashes()["weights_sha256"]

    elsewhere = replace(config, topology=replace(config.topology, workers="1", shards=2))
    (calm, _), (first, parts), (second, _) = built = [build_run(one) for one in (config, config, elsewhere)]
    try:
        want = hash_of(calm, 5)
        hash_of(first, 3)
        second.restore(first.snapshot())
        assert hash_of(second, 2) == want
        parts.rescale(1)
        assert hash_of(first, 2) == want
    finally:
        for run, _ in built:
            run.close()


@pytest.mark.parametrize("late", ["weight", "vtrace"])
def test_weights_that_are_published_rarely_count_as_late(late: str) -> None:
    """The rows of the second update were acted in by the published version, and the learner is one update on."""
    errors: list[float] = []
    with model_of(late=late, publish_every=4, learning_rate=1e-2) as model:
        model.learn(4 * PER_UPDATE, callback=lambda record: errors.append(record["headrace/first_ratio_error"]))
    assert max(errors) < 1e-5


def test_episodes_in_rejected_slabs_are_told_as_they_were() -> None:
    finished = []
    config = RunConfig(
        hr.EnvSpec(Counts), 3, algorithm=PpoConfig(batch_size=16, n_epochs=1),
        topology=TopologyConfig(4, 7, "inline", shards=2, max_lag=1, batch="first_come", pick_up_rows=0),
    )  # fmt: skip
    run, parts = build_run(config)
    reader = parts.reader
    calls = iter([False, True, False, False, True] * 20)

    def is_late(one: Taken) -> bool:
        """Now and then; never after a younger slab of the same shard was taken, as versions only grow."""
        return next(calls) and all(other.lease.shard != one.lease.shard for other in reader._in_hand)

    reader._is_late = is_late  # type: ignore[method-assign]
    try:
        for _ in range(12):
            finished += run.update(10**6).harvest.finished
        assert reader.ledger.rejected > 0
        reader.ledger.check()
    finally:
        run.close()
    assert {(one.length, one.total_reward) for one in finished} == {(10, 10.0)}
    assert len({(one.env_index, one.episode) for one in finished}) == len(finished) > 20


@pytest.mark.parametrize("checkpoint_every", [0, 1])
def test_episodes_in_rejected_slabs_of_a_batch_that_was_broken_off(checkpoint_every: int, tmp_path: Path) -> None:
    """They are in the books that are saved: so they are in episodes.jsonl and in the journal, once, after a resume."""
    session: dict[str, Any] = {"run_dir": tmp_path, "checkpoint_every": checkpoint_every}
    later: dict[str, Any] = {"max_lag": 1, "batch": "first_come", "pick_up_rows": 0, "shards": 2, "n_steps": 13}
    with model_of(**later) as model:
        reader = model.parts.reader
        calls, rejected = [0], []

        def is_late(one: Taken) -> bool:
            calls[0] += 1
            if calls[0] == 5:  # the first of the third batch; in the next slab comes Ctrl-C
                Counts.at = (Counts.steps + 3, "signal")
                rejected.append(one.lease.shard)
            return calls[0] == 5

        reader._is_late = is_late  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            model.learn(10**6, **session)
        assert reader.ledger.rejected == 26
        assert len(rejected) == 1
    told = episodes_in(tmp_path)
    assert len(told) == len(set(told)) == json.loads((tmp_path / "result.json").read_text())["episodes"]
    assert {env for env, _ in told} == {0, 1, 2, 3}
    with hr.PPO.load(tmp_path, env=Counts) as model:
        model.learn(4 * 52, **session)
        result = model.result
    told = episodes_in(tmp_path)
    assert result is not None
    assert len(told) == len(set(told)) == result.episodes
    kept = hr.recorded_episodes(tmp_path)
    assert {(one.env_index, one.episode) for one in kept if one.is_finished} == set(told)


def episodes_in(run_dir: Path) -> list[tuple[int, int]]:
    lines = map(json.loads, (run_dir / "episodes.jsonl").read_text().splitlines())
    return [(one["env_index"], one["episode"]) for one in lines]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "place",
    [
        {"topology": "threads", "workers": 2},
        {"topology": "processes", "workers": 2, "env_retries": 0},
        pytest.param({"topology": "processes", "workers": 2, "max_lag": 1}, marks=pytest.mark.full),
    ],
    ids=["threads", "processes", "ahead"],
)
def test_another_update_after_a_failure_says_it_again(place: dict[str, Any]) -> None:
    """Shard 0 has committed, shard 1 never will: nothing is waited for."""
    with hr.PPO(
        "MlpPolicy", "support.faulty_envs:Faulty", **OPTIONS | {"seed": Faulty.SEED, "n_envs": 2}, **place
    ) as m:
        texts = []
        for _ in range(3):
            with pytest.raises(EnvError) as caught:  # noqa: PT012  # any of them
                for _ in range(10):
                    m.run.update(1000)
            texts.append((str(caught.value), getattr(caught.value, "__notes__", None)))
    assert Faulty.PLACE in texts[0][0]
    assert texts[0] == texts[1] == texts[2]


def test_a_failure_and_the_death_after_it_are_noticed_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """A busy parent finds both when it looks; the death counts, but the failure that is raised has said it all."""
    place = {"topology": "processes", "workers": 2, "env_retries": 0}
    with hr.PPO(
        "MlpPolicy", "support.faulty_envs:Faulty", **OPTIONS | {"seed": Faulty.SEED, "n_envs": 2}, **place
    ) as m:
        for _ in range(2):
            with pytest.raises(EnvError, match=Faulty.PLACE):  # noqa: PT012  # any of them
                for _ in range(10):
                    m.run.update(1000)
                    wait([child.sentinel for child in m.run.source.place.workers.children.values()], 1.0)
    assert "died" not in caplog.text


class HasChildren(Counts):
    """Starts a process of its own, as some simulators do."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        process = multiprocessing.get_context("fork").Process(target=int)
        process.start()
        process.join()
        return super().reset(**options)


def test_environments_in_workers_may_start_processes() -> None:
    with hr.Collector(
        HasChildren, "MlpPolicy", n_envs=2, n_steps=4, seed=1, topology="processes", workers=1
    ) as rollouts:
        assert next(rollouts).steps == 8


@pytest.mark.parametrize("gradients", ["closed_form", "autograd"])
def test_frozen_parameters_stay_and_zero_grad_does_no_harm(gradients: str) -> None:
    with model_of(gradients=gradients) as model:
        model.policy.zero_grad()
        frozen = model.policy.actor[0].requires_grad_(False)  # type: ignore[index, union-attr, operator]
        before = {name: parameter.detach().clone() for name, parameter in model.policy.named_parameters()}
        model.learn(2 * PER_UPDATE)
        moved = {name for name, p in model.policy.named_parameters() if not bool((p == before[name]).all())}
    assert frozen.weight.requires_grad is False
    assert moved == {name for name in before if not name.startswith("actor.0.")}
