"""Short runs give what was recorded on an earlier commit, to the last bit: see support/golden.py for the runs.

Other tests compare one way to run with another, so a change that bends all ways alike stays green there. It turns red
here. Where nothing is recorded for this machine and its library versions, the first test skips and says so; the others,
which show that the comparison can fail, run everywhere.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from support.golden import CARTPOLE, NOISY, PENDULUM, RUNS, SHORT, played
from support.golden_agents import Guess, Numbers, agents_scripted
from support.golden_file import HOW_TO_RECORD, Golden, Parts, Refused, differences, flat, tag_of
from support.golden_schedules import RECORDINGS, schedule_file, seen_in
from support.golden_training import OwnGaussian, collect, replay, train


@pytest.mark.parametrize("name", RUNS)
def test_a_run_gives_what_was_recorded(name: str) -> None:
    tag = tag_of(RUNS[name].packages)
    recorded = Golden().runs(tag)
    if recorded is None:
        pytest.skip(
            f"nothing is recorded for this machine ({tag}); to record it from a commit you trust: {HOW_TO_RECORD}"
        )
    assert name in recorded, f"{name} is new: {HOW_TO_RECORD}"
    lines = differences(recorded[name], played(name))
    assert not lines, "\n".join(
        [f"{name} is no longer what was recorded; it may change only with a decision record (--replace)", *lines]
    )


def test_what_is_recorded_is_played() -> None:
    """A run that was renamed or dropped would be forgotten otherwise."""
    recorded = {name for entry in Golden().tags.values() for name in entry["runs"]}
    assert recorded == {*RUNS}


@pytest.mark.parametrize("name", RECORDINGS)
def test_recorded_schedules_show_lag(name: str) -> None:
    seen = seen_in(schedule_file(name))
    assert seen.late >= 4, "slabs of older versions"
    assert seen.changes >= 4, "weights that change in the middle of slabs"
    lines = [json.loads(line)["slabs"] for line in schedule_file(name).read_text().splitlines()]
    assert any(len(line) > 4 for line in lines) == (name == "reject"), "a slab was passed over"


# ------------------------------------------------------------------------------------------------- it can fail: by runs


TINY = 1e-5  # far below what anybody would see in a return, and above what float32 rounds away


class Tampered(gym.Wrapper[Any, Any, Any, Any]):
    """Does one wrong thing in step 3 of every episode of one environment: `how` says what."""

    def __init__(self, env: gym.Env[Any, Any], how: str, is_hit: bool) -> None:
        super().__init__(env)
        self._how = how if is_hit else ""
        self._steps = 0
        self._held = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._steps = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._how == "action" and self._steps == 3:
            action = (action + 1) % 3
        obs, reward, terminated, truncated, facts = super().step(action)
        if self._how == "swapped rewards" and self._steps in (3, 4):
            reward, self._held = (self._held, reward) if self._steps == 4 else (reward, reward)
        if self._steps == 3:
            if self._how == "reward":
                reward += TINY
            if self._how == "observation":
                obs = obs + np.float32(TINY)
            if self._how == "flags":
                terminated, truncated = truncated, True
        return obs, reward, terminated, truncated, facts


def tampering(how: str) -> Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]:
    """A wrapper that dresses the fourth environment only."""
    made: Iterator[int] = iter(range(1 << 20))
    return lambda env: Tampered(env, how, next(made) % 13 == 3)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    return train(tmp_path_factory.mktemp("calm") / "run", NOISY, wrappers=(tampering(""),))


def test_a_calm_run_has_no_differences(calm: Parts, tmp_path: Path) -> None:
    """What the mutations below are measured against; the wrapper itself changes nothing."""
    assert not differences(calm, train(tmp_path / "run", NOISY))


@pytest.mark.parametrize("how", ["reward", "swapped rewards", "observation", "action", "flags"])
def test_a_tampered_environment_is_seen(how: str, calm: Parts, tmp_path: Path) -> None:
    """One environment of 13, one step of an episode; rewards and observations by hardly anything."""
    lines = differences(calm, train(tmp_path / "run", NOISY, wrappers=(tampering(how),)))
    seen = {line.partition(":")[0] for line in lines}
    assert {"weights_sha256", "optimizer_sha256"} <= seen
    assert any(name.startswith("losses.train/") for name in seen)


class OneNoiseWord(OwnGaussian):
    """Takes large noise words a little too large."""

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        if noise is not None:
            noise = torch.where(noise > 2.0, noise + TINY, noise)
        return super().act(obs, noise)


def seeded(kind: type[OwnGaussian]) -> OwnGaussian:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return kind()


def test_a_tampered_noise_word_is_seen(tmp_path: Path) -> None:
    want, same, other = (
        train(tmp_path / name, PENDULUM, lambda kind=kind: seeded(kind), env_kwargs=SHORT)
        for name, kind in (("a", OwnGaussian), ("b", OwnGaussian), ("c", OneNoiseWord))
    )
    assert not differences(want, same)
    assert any(line.startswith("weights_sha256") for line in differences(want, other))


def test_a_tampered_batch_is_seen(tmp_path: Path) -> None:
    want = collect(tmp_path, CARTPOLE, "MlpPolicy")
    assert not differences(want, collect(tmp_path, CARTPOLE, "MlpPolicy", shards=4))
    lines = differences(want, collect(tmp_path, CARTPOLE, "MlpPolicy", wrappers=(tampering("observation"),)))
    seen = {line.partition(":")[0] for line in lines}
    assert {"batches.obs", "batches.value"} <= seen
    assert "batches.valid" not in seen


def test_a_tampered_schedule_is_seen(tmp_path: Path) -> None:
    """One slab whose weights were not picked up in the middle."""
    lines = [json.loads(line) for line in schedule_file("weight").read_text().splitlines()]
    slab = next(slab for line in lines[4:] for slab in line["slabs"] if len(slab[2]) > 1)
    del slab[2][1:]
    changed = tmp_path / "changed.jsonl"
    changed.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    want, got = replay("weight", tmp_path / "a"), replay("weight", tmp_path / "b", changed)
    assert any(line.startswith("weights_sha256") for line in differences(want, got))


class Dearer(Numbers):
    """The same environment, a reward of which differs by its last bit."""

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        text, reward, is_done, facts = super().step(action)
        return text, float(np.nextafter(reward, np.inf)) if self._turns == 2 else reward, is_done, facts


def test_a_tampered_text_environment_is_seen(tmp_path: Path) -> None:
    want = agents_scripted(tmp_path)
    assert not differences(want, agents_scripted(tmp_path))
    lines = differences(want, agents_scripted(tmp_path, {"Guess": Guess, "Numbers": Dearer}))
    seen = {line.partition(":")[0] for line in lines}
    assert "rewards" in seen
    assert "groups" not in seen


# --------------------------------------------------------------------------------------------- it can fail: by the file


def test_every_recorded_value_is_compared() -> None:
    """Each one changed, or gone, is named; what is new beside them is not."""
    for entry in Golden().tags.values():
        for parts in entry["runs"].values():
            for name in flat(parts):
                changed, gone = copy.deepcopy(parts), copy.deepcopy(parts)
                place, leaf = _place(changed, name)
                place[leaf] = "changed"
                place, leaf = _place(gone, name)
                del place[leaf]
                assert [line.partition(":")[0] for line in differences(parts, changed)] == [name]
                assert [line.partition(":")[0] for line in differences(parts, gone)] == [name]
            assert not differences(parts, copy.deepcopy(parts) | {"new": 1})


def _place(parts: Any, name: str) -> tuple[dict[str, Any], str]:
    *path, leaf = name.split(".")
    for key in path:
        parts = parts[key]
    return parts, leaf


def test_recorded_results_are_replaced_with_a_decision_record_only(tmp_path: Path) -> None:
    file, decisions = tmp_path / "golden.json", tmp_path / "decisions"
    decisions.mkdir()
    (decisions / "0099-other-bits.md").write_text("why")
    assert Golden(file, decisions).record("here", {"a": {"x": 1}, "b": {"x": 2}}, "c0ffee") == ["a", "b"]
    assert Golden(file, decisions).record("here", {"a": {"x": 1}, "c": {"x": 3}}, "c0ffef") == ["c"]
    assert Golden(file, decisions).record("elsewhere", {"a": {"x": 4}}, "c0ffef") == ["a"]
    before = file.read_bytes()
    for decision in ("", "it is better so", "docs/decisions/0098-none.md: why", "docs/decisions/0099-other-bits.md:"):
        with pytest.raises(Refused, match="decision"):
            Golden(file, decisions).record("here", {"a": {"x": 5}, "d": {"x": 6}}, "c0fff0", decision)
    assert file.read_bytes() == before
    why = "docs/decisions/0099-other-bits.md: another order of sums"
    assert Golden(file, decisions).record("here", {"a": {"x": 5}, "b": {"x": 2}}, "c0fff0", why) == ["a"]
    golden = Golden(file, decisions)
    assert golden.runs("here") == {"a": {"x": 5}, "b": {"x": 2}, "c": {"x": 3}}
    assert golden.tags["here"]["recorded"][-1] == {"commit": "c0fff0", "decision": why, "runs": ["a"]}
    assert golden.runs("nowhere") is None
