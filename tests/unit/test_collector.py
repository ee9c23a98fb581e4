"""hr.Collector as a stranger uses it: what goes wrong says so, and what is kept stays as it was."""

from __future__ import annotations

import copy
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.errors import NumericsError, SchemaError, UsageError
from support.topology_runs import processes
from support.torch_policy import TorchPolicy

SMALL: dict[str, Any] = {"n_envs": 4, "n_steps": 16, "seed": 0, "topology": "inline"}


def test_a_batch_is_kept_by_its_copy_and_not_by_accident() -> None:
    """The next rollout is filled into the same memory: what was given back says so instead of showing it."""
    with hr.Collector("CartPole-v1", **SMALL) as rollouts:
        batches, copies = [], []
        for batch in islice(rollouts, 3):
            batches.append(batch)
            copies.append(batch.copy())
        assert batches[2].obs is not None, "the last one is still lent"
        for use in (lambda one: one.obs, lambda one: one.reward, lambda one: one.steps, lambda one: one.copy()):
            with pytest.raises(UsageError, match=r"batch\.\w+: this batch was given back .* keep batch\.copy\(\)"):
                use(batches[0])
        assert "given back" in repr(batches[0])
    assert batches[2].reward.sum() == 64, "after the end nothing fills it any more"
    with hr.Collector("CartPole-v1", **SMALL) as again:
        for kept, batch in zip(copies, again, strict=False):
            for name in ("obs", "action", "log_prob", "bootstrap_value", "final_obs", "version"):
                np.testing.assert_array_equal(getattr(kept, name), getattr(batch, name))


def test_weights_that_do_not_fit_are_refused_and_change_nothing() -> None:
    """Not even those of their layers that would fit."""
    policy, wrong = TorchPolicy(), TorchPolicy(seed=5)
    wrong.critic[-1] = torch.nn.Linear(32, 3)
    broken = TorchPolicy(seed=5)
    with torch.no_grad():
        broken.critic[0].weight[0, 0] = float("nan")
    with hr.Collector("CartPole-v1", policy, **SMALL) as rollouts:
        next(rollouts)
        for given, kind, says in (
            (wrong, SchemaError, r"publish: .* critic\.2\.weight: \(1, 32\), got \(3, 32\)"),
            (torch.nn.Linear(2, 2), SchemaError, r"publish: .* actor\.0\.weight: \(32, 4\), got none"),
            (broken, NumericsError, r"publish: critic\.0\.weight holds NaN or infinity; the weights have diverged"),
        ):
            with pytest.raises(kind, match=says):
                rollouts.publish(given)
            for name, tensor in rollouts.policy.state_dict().items():
                assert torch.equal(tensor, policy.state_dict()[name]), name
        with pytest.raises(UsageError, match=r"publish: expected a torch.nn.Module or its state_dict\(\), got list"):
            rollouts.publish(list(policy.parameters()))  # type: ignore[arg-type]
        version = rollouts.publish(TorchPolicy(seed=5).state_dict())
        assert version == next(rollouts).version.max() == 1
    with pytest.raises(UsageError, match="this collector was closed"):
        rollouts.publish(policy)


def test_a_policy_by_its_class_or_with_options() -> None:
    with pytest.raises(UsageError, match=r"got the class TorchPolicy; pass TorchPolicy\(\)"):
        hr.Collector("CartPole-v1", TorchPolicy, **SMALL)  # type: ignore[arg-type]
    with hr.Collector("CartPole-v1", policy_kwargs={"net_arch": [8]}, **SMALL) as rollouts:
        assert rollouts.policy.actor[0].weight.shape == (8, 4)  # type: ignore[index, union-attr]


def test_the_published_weights_are_evaluated() -> None:
    policy = TorchPolicy()
    with hr.Collector("CartPole-v1", policy, **SMALL) as rollouts:
        before = hr.evaluate_policy(rollouts, n_eval_episodes=3, return_episode_rewards=True)
        with torch.no_grad():
            policy.actor[-1].bias.copy_(torch.tensor([-1000.0, 1000.0]))
        assert hr.evaluate_policy(rollouts, n_eval_episodes=3, return_episode_rewards=True) == before
        rollouts.publish(policy)
        returns, _ = hr.evaluate_policy(rollouts, n_eval_episodes=3, return_episode_rewards=True)
        assert max(returns) < 12, "it only pushes to the right"


@pytest.mark.parametrize("place", [{"topology": "inline"}, processes(1)], ids=["inline", "processes"])
def test_an_exception_in_the_loop_comes_out_as_it_was(place: dict[str, Any]) -> None:
    """With workers that run ahead; nothing is left behind (the fixture looks)."""
    seen = []
    with (  # noqa: PT012  # all of it is the user's loop
        pytest.raises(ZeroDivisionError),
        hr.Collector("Pendulum-v1", "MlpPolicy", **{**SMALL, **place, "max_lag": 1}) as rollouts,
    ):
        policy = copy.deepcopy(rollouts.policy)
        for batch in rollouts:
            seen.append(int(batch.version.min()))
            rollouts.publish(policy)
            if len(seen) == 3:
                raise ZeroDivisionError
    assert all(number - version <= 1 for number, version in enumerate(seen)), "max_lag holds"
    assert rollouts.ledger["consumed"] == 3 * 64
