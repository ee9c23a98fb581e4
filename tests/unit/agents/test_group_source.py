"""Groups as a source of a run: W per update, none twice and none skipped, across failures, restarts and crashes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.agents.engines.batching import Batched
from headrace.agents.engines.scripted import scripted
from headrace.agents.limits import Limits
from headrace.agents.records import Group, fingerprint
from headrace.collecting.groups import GroupSource
from headrace.collecting.source import Source
from headrace.errors import HeadraceError, UsageError
from support.agent_envs import Counting, Garbage, Raising, spec

WAYS = [("sequential", 1), ("threading", 2)]
PER_UPDATE = 3


@pytest.fixture
def engine() -> Iterator[Batched]:
    one = scripted()
    yield one
    one.close()


def made(engine: Any, backend: str = "threading", n_jobs: int = 2, env: Any = None, **options: Any) -> GroupSource:
    paced = {"max_lag": 0, "groups_per_update": PER_UPDATE, "group_size": 2, "limits": Limits(publish_s=20.0)}
    return GroupSource(hr.AgentRollouts([env or spec(Counting)], engine, n_jobs, backend, **(paced | options)))


def learned(source: Source, engine: Batched, updates: int) -> list[list[Group]]:
    """A run without a learner: collect, give back, publish, go on."""
    batches = []
    for _ in range(updates):
        batches.append(list(source.collect()))
        source.give_back()
        engine.publish(None)
        source.run_ahead()
    return batches


def numbers(batches: list[list[Group]]) -> list[int]:
    return [group.number for batch in batches for group in batch]


def versions(batch: list[Group]) -> set[int]:
    rows = [row for group in batch for one in group.episodes for row in one.rows]
    return {int(version) for row in rows for version in row.versions[row.loss_mask > 0]}


@pytest.mark.parametrize(("backend", "n_jobs"), WAYS)
def test_an_update_has_its_groups_in_order_and_their_version_is_the_engines(
    engine: Batched, backend: str, n_jobs: int
) -> None:
    source = made(engine, backend, n_jobs)
    batches = learned(source, engine, 4)
    source.close()
    assert numbers(batches) == list(range(4 * PER_UPDATE)), "max_lag 0: nothing runs ahead, so the order is known"
    assert [versions(batch) for batch in batches] == [{0}, {1}, {2}, {3}]
    ledger = source.totals().ledger
    assert ledger["consumed"] == 4 * PER_UPDATE
    assert ledger["produced"] == ledger["consumed"] + sum(ledger["discarded"].values())


def test_what_comes_back_is_counted(engine: Batched) -> None:
    source = made(engine)
    assert source.totals().mean_return is None
    batch = source.collect()
    harvest = source.give_back()
    episodes = [one for group in batch for one in group.episodes]
    assert harvest.steps == sum(len(one.turns) for one in episodes)
    assert [one.total_reward for one in harvest.finished] == [one.reward for one in episodes]
    assert harvest.record["Counting/groups"] == PER_UPDATE
    assert source.totals().episodes == 2 * PER_UPDATE
    assert source.totals().mean_return == pytest.approx(sum(one.reward for one in episodes) / len(episodes))
    source.close()
    source.close()


def test_a_batch_is_lent(engine: Batched) -> None:
    source = made(engine)
    source.collect()
    with pytest.raises(HeadraceError, match="not given back"):
        source.collect()
    source.close()


@pytest.mark.parametrize(("backend", "n_jobs"), WAYS)
def test_failed_groups_are_passed_over_and_counted(engine: Batched, backend: str, n_jobs: int) -> None:
    source = made(engine, backend, n_jobs, spec(Raising), limits=Limits(attempts=1, publish_s=20.0))
    batches = learned(source, engine, 3)
    source.close()
    assert [len(batch) for batch in batches] == [PER_UPDATE] * 3
    assert all(group.seed % 2 == 0 for batch in batches for group in batch), "seeds with an odd number raise"
    ledger = source.totals().ledger
    assert ledger["consumed"] == 3 * PER_UPDATE
    assert ledger["discarded"]["env"] == len(set(range(max(numbers(batches)))) - set(numbers(batches)))


def test_groups_that_all_fail_end_the_run(engine: Batched) -> None:
    source = made(engine, env=spec(Garbage, what="none"), limits=Limits(attempts=1))
    with pytest.raises(HeadraceError, match=r"12 groups in a row can't be learned from.*expected a Step"):
        source.collect()
    source.close()


@pytest.mark.parametrize("lost", [0, 2], ids=["ended", "crashed"])
@pytest.mark.parametrize("max_lag", [0, 2])
def test_a_run_that_goes_on_repeats_nothing_and_skips_nothing(
    engine: Batched, max_lag: int, lost: int, tmp_path: Path
) -> None:
    """Three updates, a snapshot, `lost` updates that it does not know of, then another program."""
    source = made(engine, run_dir=tmp_path, max_lag=max_lag)
    before = learned(source, engine, 3)
    state, arrays = source.snapshot()
    told = json.dumps(state)
    after = learned(source, engine, lost)
    source.close()

    resumed = scripted()
    resumed.publish(None, version=3)
    source = made(resumed, run_dir=tmp_path, max_lag=max_lag)
    source.restore(json.loads(told), arrays)
    assert source.totals().episodes == 3 * PER_UPDATE * 2
    again = learned(source, resumed, 4)
    source.close()
    resumed.close()

    got = numbers(before + again)
    assert len(got) == len(set(got)), "nothing is repeated"
    known = {group.number: group for batch in after for group in batch}
    for batch in again:
        for group in batch:
            if group.number in known:
                assert fingerprint([group]) == fingerprint([known[group.number]]), "from the log, not played again"
    if max_lag == 0:
        assert got == list(range(7 * PER_UPDATE)), "nothing is skipped"
    assert set(known) <= set(got)
    ledger = source.totals().ledger
    settled = ledger["consumed"] + ledger["rejected"] + sum(ledger["discarded"].values())
    assert ledger["produced"] == settled
    assert ledger["consumed"] == 7 * PER_UPDATE


def test_rollouts_without_a_pace_are_refused(engine: Batched) -> None:
    with hr.AgentRollouts(["Bandit"], engine) as rollouts, pytest.raises(UsageError, match="groups_per_update"):
        GroupSource(rollouts)
