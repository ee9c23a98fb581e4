"""Asynchronous runs can be had again: their schedule says which version acted in which row, and what was consumed when.

    learn with workers -> run_dir/schedule.jsonl + config.json --from_config(schedule=...)--> inline, the same bits

Where actors look for weights between slabs only (pick_up_rows=0), the pace alone decides, and no schedule is needed.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import headrace as hr
from headrace.errors import HeadraceError, UsageError
from headrace.run_config import decode
from support.pairwise import Cell, matrix
from support.topology_runs import CASES, INLINE, Case, processes, threads

SEED = 31
UPDATES = 12
OPTIONS: dict[str, Any] = {
    "n_envs": 8,
    "n_steps": 16,
    "batch_size": 16,
    "n_epochs": 6,
    "topology": "processes",
    "workers": 4,
    "max_lag": 1,
    "pick_up_rows": 2,
    "seed": SEED,
}
TOTAL = UPDATES * OPTIONS["n_envs"] * OPTIONS["n_steps"]
EVEN: dict[str, Any] = {"delay_s": 4e-4}
# With one slab of every shard, the slower last one sets the pace: the others are a whole version ahead of it, and it
# gets new weights in the middle of its slabs, as soon as the one before is learned from, on any machine.
SLOWER_LAST: dict[str, Any] = {"delay_s": 2e-4, "slow": [6, 7], "slow_s": 4e-3, "seed": SEED}
ONE_SLOW: dict[str, Any] = {"delay_s": 1e-4, "slow": [6, 7], "slow_s": 8e-3, "seed": SEED}  # the last shard's


@dataclass(frozen=True)
class Recorded:
    """What a recording run left in its directory, and its records."""

    folder: Path
    records: list[dict[str, float]]

    @property
    def schedule(self) -> list[list[Any]]:
        """The updates' lines."""
        return [json.loads(line)["slabs"] for line in (self.folder / "schedule.jsonl").read_text().splitlines()]

    @property
    def versions(self) -> list[int]:
        """The latest version at each update."""
        return [json.loads(line)["version"] for line in (self.folder / "schedule.jsonl").read_text().splitlines()]

    @property
    def result(self) -> dict[str, Any]:
        """How it ended."""
        result: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return result

    @property
    def lag(self) -> float:
        """Mean lag of all rows."""
        return sum(record["headrace/lag_mean"] for record in self.records) / len(self.records)

    def changes(self) -> int:
        """Slabs in which the weights changed."""
        return sum(len(runs) > 1 for line in self.schedule for _, _, runs in line)


@pytest.fixture(autouse=True)
def no_report() -> Iterator[None]:
    """It takes longer than these runs."""
    with mock.patch("headrace.views.report.write_report"):
        yield


def record(folder: Path, env_kwargs: dict[str, Any], policy: str = "MlpPolicy", **options: Any) -> Recorded:
    """A run that keeps its schedule."""
    records: list[dict[str, float]] = []
    env = "support.worker_envs:dawdling"
    with hr.PPO(policy, env, env_kwargs=env_kwargs, **{**OPTIONS, **options}) as model:
        model.learn(TOTAL, records.append, run_dir=folder)
    return Recorded(folder, records)


def replay(recorded: Recorded, path: Path | None = None) -> tuple[dict[str, str], dict[str, Any]]:
    """The same run again, inline: its hashes and ledger."""
    config = decode(json.loads((recorded.folder / "config.json").read_text()))
    with hr.PPO.from_config(config, schedule=path or recorded.folder / "schedule.jsonl") as model:
        assert model.parts.topology.topology == "inline"
        model.learn(TOTAL)
        return model.run.hashes(), model.run.totals().ledger


def assert_replays(recorded: Recorded) -> None:
    """The recording run's bits."""
    hashes, ledger = replay(recorded)
    assert hashes == {name: recorded.result[name] for name in hashes}
    assert ledger == recorded.result["ledger"]


@pytest.mark.parametrize(
    "cell",
    matrix({"late": ("reject", "weight", "vtrace"), "max_lag": (1, 2), "batch": ("every_shard", "first_come")}),
)
def test_a_recorded_run_is_replayed_inline(cell: Cell, tmp_path: Path) -> None:
    """4 processes; rows of more than half a version of lag on average, and weights that change inside of slabs."""
    is_even = cell["batch"] == "every_shard"
    recorded = record(tmp_path / "run", SLOWER_LAST if is_even else EVEN, n_epochs=2 if is_even else 6, **cell)
    assert recorded.lag > (0.5 if is_even else 0.0)
    assert recorded.changes() > 0 or not is_even
    assert len(recorded.schedule) == UPDATES
    assert_replays(recorded)


@pytest.mark.parametrize("late", ["reject", "weight", "vtrace"])
def test_a_recorded_run_of_a_policy_with_a_memory_is_replayed_inline(late: str, tmp_path: Path) -> None:
    """Its state goes from one version of the weights to the next within a slab, in the learner as in the actor."""
    options: dict[str, Any] = {"policy": "MlpLstmPolicy", "policy_kwargs": {"lstm_hidden_size": 8}, "late": late}
    recorded = record(tmp_path / "run", SLOWER_LAST, n_epochs=2, **options)
    assert recorded.changes() > 0
    if late != "reject":  # there the ratios are those to the policy that acted
        assert max(one["headrace/first_ratio_error"] for one in recorded.records) < 1e-5
    assert_replays(recorded)


@pytest.mark.parametrize("late", ["reject", pytest.param("weight", marks=pytest.mark.full), "vtrace"])
def test_rejected_slabs_are_part_of_the_schedule(late: str, tmp_path: Path) -> None:
    """One shard is so slow that others' batches go by: what it acted is too old, or its weights are even gone."""
    for slow_s in (ONE_SLOW["slow_s"], 0.04, 0.2):  # on a busy machine the others are slow too
        env = ONE_SLOW | {"slow_s": slow_s}
        recorded = record(tmp_path / f"run {slow_s}", env, batch="first_come", late=late, pick_up_rows=16)
        if recorded.result["ledger"]["rejected"] > 0:
            break
    result, slabs = recorded.result, [len(line) for line in recorded.schedule]
    assert result["ledger"]["rejected"] > 0
    assert max(slabs) > 4, "a line holds what was rejected too"
    assert sum(slabs) * 2 * 16 == result["ledger"]["produced"]
    assert result["ledger"]["consumed"] == result["steps"] == TOTAL
    assert_replays(recorded)


def test_a_slow_shard_does_not_end_the_run_when_weights_change_between_slabs_only(tmp_path: Path) -> None:
    """pick_up_rows=0: a lease that waited for a slow worker names a version that is gone by the time it is filled."""
    recorded = record(tmp_path / "run", ONE_SLOW, batch="first_come", pick_up_rows=0)
    assert recorded.changes() == 0
    assert_replays(recorded)


@pytest.mark.parametrize("place", ["threads", pytest.param("processes", marks=pytest.mark.full)])
def test_publishing_every_other_update(place: str, tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", EVEN, publish_every=2, topology=place, workers=2, late="weight")
    versions = {version for line in recorded.schedule for *_, runs in line for _, version in runs}
    assert max(versions) <= UPDATES // 2
    assert len(versions) > 3
    assert_replays(recorded)


def test_publishing_by_the_clock(tmp_path: Path) -> None:
    """When weights were published is in the schedule: the clock that said so is not asked again."""
    for pause_s in (0.05, 0.2, 1.0, 5.0):  # an update takes longer on a busy machine
        recorded = record(tmp_path / f"run {pause_s}", EVEN, publish_every=f"{pause_s}s", late="weight")
        if 0 < recorded.versions[-1] < UPDATES - 1:
            break
    assert 0 < recorded.versions[-1] < UPDATES - 1, "some updates published and some did not"
    assert_replays(recorded)
    lines = [json.loads(line) for line in (recorded.folder / "schedule.jsonl").read_text().splitlines()]
    place = next(at for at in range(2, len(lines)) if lines[at]["version"] == lines[at - 1]["version"])
    lines[place]["version"] += 1  # the comparison can fail: a version is published an update too early
    changed = tmp_path / "changed.jsonl"
    changed.write_text("".join(json.dumps(line) + "\n" for line in lines))
    try:
        hashes, _ = replay(recorded, changed)
    except HeadraceError:
        return  # or a version is asked for that is not there
    assert hashes["weights_sha256"] != recorded.result["weights_sha256"]


def test_a_run_that_was_resumed_is_replayed_as_one(tmp_path: Path) -> None:
    """What waited for a batch when it stopped was made again, and only that is in the schedule."""
    folder = tmp_path / "run"
    with hr.PPO("MlpPolicy", "support.worker_envs:dawdling", env_kwargs=EVEN, **OPTIONS) as model:
        model.learn(TOTAL // 2, run_dir=folder)
    with hr.PPO.load(folder) as model:
        model.learn(TOTAL // 2, run_dir=folder)
    assert_replays(Recorded(folder, []))


def test_a_killed_worker_of_a_recorded_run(tmp_path: Path) -> None:
    """Its rollouts were made by another one, perhaps with other weights: the schedule says which."""
    folder = tmp_path / "run"
    records: list[dict[str, float]] = []

    def strike(one: dict[str, float]) -> None:
        records.append(one)
        if len(records) in (3, 8):
            os.kill(random.Random(len(records)).choice(model.run.source.place.workers.pids), signal.SIGKILL)

    with hr.PPO("MlpPolicy", "support.worker_envs:dawdling", env_kwargs=EVEN, **OPTIONS) as model:
        model.learn(TOTAL, strike, run_dir=folder)
    recorded = Recorded(folder, records)
    assert recorded.result["restarts"] == 2
    assert_replays(recorded)


def older(runs: list[list[int]]) -> list[list[int]]:
    """The first version one older, or newer where there is none."""
    (row, version), *rest = runs
    return [[row, version - 1], *rest] if version else [[0, 0], [1, 1]]


def same_throughout(runs: list[list[int]]) -> list[list[int]]:
    """As if the weights had not been picked up in the middle."""
    return runs[:1]


@pytest.mark.parametrize("mutate", [older, same_throughout])
def test_one_wrong_version_changes_the_bits(mutate: Callable[[Any], Any], tmp_path: Path) -> None:
    """The comparison above can fail: one slab's versions are changed in the file."""
    recorded = record(tmp_path / "run", SLOWER_LAST, late="weight", n_epochs=2)
    lines = recorded.schedule
    place = next(
        (update, at)
        for update, line in enumerate(lines)
        for at, (_, _, runs) in enumerate(line)
        if update > 3 and len(runs) > 1
    )
    slab = lines[place[0]][place[1]]
    slab[2] = mutate(slab[2])
    changed = tmp_path / "changed.jsonl"
    pairs = zip(recorded.versions, lines, strict=True)
    changed.write_text("".join(json.dumps({"version": one, "shards": 4, "slabs": line}) + "\n" for one, line in pairs))
    hashes, _ = replay(recorded, changed)
    assert hashes["weights_sha256"] != recorded.result["weights_sha256"]


def test_a_schedule_that_ends_too_early_is_told(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", EVEN)
    short = tmp_path / "short.jsonl"
    short.write_text("".join((recorded.folder / "schedule.jsonl").read_text().splitlines(keepends=True)[:4]))
    with pytest.raises(HeadraceError, match=r"no rollout is ordered.* a replay has no more than its schedule"):
        replay(recorded, short)
    short.write_text("nonsense\n")
    with pytest.raises(UsageError, match=r"expected the schedule\.jsonl of an asynchronous run"):
        replay(recorded, short)


@pytest.mark.parametrize(
    ("late", "max_lag"),
    [
        ("reject", 1),
        ("vtrace", 2),
        *(pytest.param(*one, marks=pytest.mark.full) for one in (("reject", 2), ("vtrace", 1), ("weight", 1))),
    ],
)
def test_between_slabs_only_needs_no_schedule(late: str, max_lag: int) -> None:
    """pick_up_rows=0: a lease names the version, so the pace alone decides, wherever actors run."""
    noisy = CASES["noisy"]
    case = Case("lagging", noisy.env, 8, 8, ppo={"late": late})
    how: dict[str, Any] = {"max_lag": max_lag, "pick_up_rows": 0}
    want = case.play(**INLINE, **how)
    for place in (processes(1), processes(2), threads(2), processes(2, shards=5)):
        assert case.play(**place, **how) == want, place
    assert want.weights_sha256 != case.play(**INLINE).weights_sha256, "lag is to be seen in the bits"


@pytest.mark.parametrize("place", [INLINE, threads(2), processes(2)], ids=["inline", "threads", "processes"])
def test_publishing_every_other_update_needs_no_schedule(place: dict[str, Any]) -> None:
    case = Case("seldom", CASES["noisy"].env, 8, 8, ppo={"late": "weight"})
    how: dict[str, Any] = {"max_lag": 1, "pick_up_rows": 0, "publish_every": "2"}
    assert case.play(**place, **how) == case.play(**INLINE, **how)
