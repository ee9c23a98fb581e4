"""What is logged of a batch's collection, from its account."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.collecting.accounts import SPENT, Account
from headrace.collecting.record import record_of


def account(is_inline: bool = False, **numbers: Any) -> Account:
    spent_ns = np.array([[1e9, 2e9, 3e9, 4e9, 5e9], [2e9, 0.0, 0.0, 0.0, 1e9]])
    assert spent_ns.shape[1] == len(SPENT)
    seen = {"version": 7, "versions": [(3, np.array([7, 6])), (1, np.array([5, 5]))], "shares": np.array([3.0, 1.0])}
    return Account(spent_ns, np.array([3e3, 9e3, 1e3, 2e3]), is_inline, **(seen | numbers))


def test_seconds_are_those_of_workers_and_of_all() -> None:
    record = record_of(account(wait_s=0.5))
    assert record["headrace/actors/env_s"] == 3.0
    assert [record[f"headrace/worker_{worker}/cpu_s"] for worker in range(2)] == [5.0, 1.0]
    assert (record["headrace/time/env"], record["headrace/time/wait"]) == (0.0, 0.5), "the learner did not step"


def test_inline_the_learner_spends_the_time_of_hosts_and_does_not_wait() -> None:
    record = record_of(account(is_inline=True, wait_s=0.5))
    assert (record["headrace/time/env"], record["headrace/time/wait"]) == (3.0, 0.0)
    assert not [name for name in record if name.startswith("headrace/worker_")]


def test_lag_is_that_of_the_oldest_row_and_its_mean_that_of_environments() -> None:
    record = record_of(account())
    assert (record["headrace/lag"], record["headrace/lag_mean"]) == (2.0, pytest.approx((3 * 0.5 + 1 * 2.0) / 4))
    assert record["headrace/least_share"] == 0.5


def test_the_slowest_environment_is_named_once_all_are_known() -> None:
    one = account()
    record = record_of(one)
    names = ("slowest", "slowest_s", "median_s")
    assert [record[f"headrace/envs/{name}"] for name in names] == [1.0, pytest.approx(9e-6), pytest.approx(2e-6)]
    one.step_ns[2] = 0.0
    assert not [name for name in record_of(one) if name.startswith("headrace/envs/")]


def test_returns_are_there_once_an_episode_has_ended() -> None:
    assert "rollout/ep_rew_mean" not in record_of(account())
    record = record_of(
        account(recent=[(10.0, 2), (14.0, 4)], ledger={"produced": 4}, counted={"headrace/clamped": 1.0})
    )
    assert (record["rollout/ep_rew_mean"], record["rollout/ep_len_mean"]) == (12.0, 3.0)
    assert (record["headrace/ledger/produced"], record["headrace/clamped"]) == (4.0, 1.0)


def test_the_next_account_is_empty_but_for_how_long_steps_take() -> None:
    one = account(wait_s=1.0, age_s=2.0)
    after = one.next()
    assert (after.spent_ns.any(), after.wait_s, after.age_s) == (False, 0.0, 0.0)
    assert after.step_ns.tolist() == one.step_ns.tolist()
    after.step_ns[0] = 1.0
    assert one.step_ns[0] == 3e3, "what was handed over does not change any more"
