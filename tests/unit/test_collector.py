"""hr.Collector as a stranger uses it: what goes wrong says so, and what is kept stays as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import islice
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import headrace as hr
from headrace.errors import EnvError, HeadraceError, NumericsError, SchemaError, UsageError
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
        with pytest.raises(UsageError, match=r"publish: expected .* got the class TorchPolicy"):
            rollouts.publish(TorchPolicy)  # type: ignore[arg-type]
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


def test_max_lag_holds_however_often_weights_are_published() -> None:
    """What ran ahead of two new versions is passed over, and counted."""
    ahead = {"topology": "threads", "workers": 1, "max_lag": 1, "pick_up_rows": 0}
    with hr.Collector("CartPole-v1", **SMALL | ahead) as rollouts:
        latest, lags = 0, []
        for batch in islice(rollouts, 5):
            lags.append(latest - int(batch.version.min()))
            for _ in range(2):
                latest = rollouts.publish(rollouts.policy)
    assert max(lags) <= 1
    ledger = rollouts.ledger
    assert ledger["rejected"] > 0
    assert ledger["produced"] == ledger["consumed"] + ledger["rejected"]


class WouldNotClose(gym.Wrapper[Any, Any, Any, Any]):
    """As a simulator whose connection was lost on the way."""

    is_lost = False

    def step(self, action: Any) -> Any:
        self.is_lost = True
        return super().step(action)

    def close(self) -> None:
        if self.is_lost:
            raise RuntimeError("the connection is gone")


def test_an_environment_that_can_not_be_closed_does_not_hide_what_went_wrong(caplog: pytest.LogCaptureFixture) -> None:
    """Without an error of the user's own, it is the error."""
    dressed: dict[str, Any] = {**SMALL, "wrappers": [WouldNotClose]}
    with pytest.raises(ZeroDivisionError), hr.Collector("CartPole-v1", **dressed) as rollouts:  # noqa: PT012
        next(rollouts)
        raise ZeroDivisionError
    assert "not all could be closed: env 0: could not be closed" in caplog.text
    with pytest.raises(EnvError, match="could not be closed"), hr.Collector("CartPole-v1", **dressed) as rollouts:
        next(rollouts)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_batch_is_the_learners_to_write_in(shards: int) -> None:
    """What a learner leaves out of `valid`, or scales in place, is counted and collected as it happened."""
    seen = []
    for is_changed in (False, True):
        with hr.Collector("CartPole-v1", TorchPolicy(), shards=shards, **SMALL) as rollouts:
            for batch in islice(rollouts, 3):
                last = batch.copy()
                if is_changed:
                    batch.valid[5:] = False
                    for name in ("obs", "last_obs", "action", "reward", "terminated", "truncated", "episode", "step"):
                        getattr(batch, name)[...] = 0
        assert rollouts.harvest is not None
        seen.append((last.obs.tobytes(), rollouts.harvest.finished, rollouts.ledger))
    assert seen[0] == seen[1]
    assert seen[0][2] == {"produced": 192, "consumed": 192, "rejected": 0, "discarded": {}}


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        (lambda tensor: tensor.numpy(), UsageError, "expected a tensor, got ndarray; pass a module or its state_dict"),
        (lambda tensor: None, UsageError, "expected a tensor, got NoneType"),
        (lambda tensor: tensor.double() * 1e300, NumericsError, "holds NaN or infinity"),
    ],
    ids=["numpy", "none", "beyond float32"],
)
def test_weights_that_are_no_tensors_or_too_large_are_refused(
    given: Callable[[torch.Tensor], Any], kind: type[HeadraceError], says: str
) -> None:
    policy = TorchPolicy()
    with hr.Collector("CartPole-v1", policy, **SMALL) as rollouts:
        with pytest.raises(kind, match=rf"^publish: actor\.0\.weight:? {says}"):
            rollouts.publish({name: given(tensor) for name, tensor in policy.state_dict().items()})
        assert next(rollouts).version.max() == 0
