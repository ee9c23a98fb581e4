"""The learner's epochs against SB3's, what it refuses to apply, and which rows it looks at."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import headrace as hr
from headrace.errors import NumericsError, UsageError
from headrace.learning.batch import Batch
from headrace.learning.config import PpoConfig, schedule
from headrace.learning.ppo import Ppo, minibatches, shuffling
from headrace.learning.ppo_loss import Coefficients, Rows
from headrace.policies.policy import Evaluation
from headrace.weights.flat import FlatParameters
from support.pairwise import Cell, matrix
from support.ppo_rows import completed_batch, sb3_train, shaken, spaces_named
from support.toy_policies import OwnPolicy, mlp_policy, own_policy

SEED = 7


def learn(
    module: nn.Module, batch: Batch, update: int = 0, progress_remaining: float = 1.0, **options: Any
) -> tuple[Ppo, dict[str, float]]:
    """One update of the module, in place."""
    learner = Ppo(FlatParameters(module), PpoConfig(**options), SEED)
    return learner, learner.epochs(batch, learner.targets(batch, 0), update, progress_remaining)


def vector_of(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()]).clone()


def batch_for(module: nn.Module, action: str, invalid: float = 0.0, n_steps: int = 8, n_envs: int = 9) -> Batch:
    return completed_batch(module, "vector", spaces_named("vector", action)[1], n_steps, n_envs, 5, invalid)


@pytest.mark.parametrize(
    ("action", "options"),
    [
        ("discrete", {}),
        ("box", {"clip_range_vf": 0.1, "ent_coef": 0.02, "normalize_advantage": False}),
        ("multi_discrete", {"max_grad_norm": 0.05, "vf_coef": 1.5}),
        ("multi_binary", {"batch_size": 1000}),
        ("discrete_from_3", {"target_kl": 0.004, "learning_rate": 0.02}),
        ("box_2d", {"target_kl": 1e-5}),
    ],
)
@pytest.mark.parametrize("gradients", ["auto", "autograd"])
def test_an_update_is_sb3s(action: str, options: dict[str, Any], gradients: str) -> None:
    """The same minibatches in the same order through a slow transcription: the same parameters."""
    ours = shaken(mlp_policy(*spaces_named("vector", action)), 1, 0.3)
    theirs = copy.deepcopy(ours)
    batch = batch_for(ours, action, invalid=0.15)
    options = {"batch_size": 20, "n_epochs": 5, "learning_rate": 2e-3, "gradients": gradients} | options
    learner, record = learn(ours, batch, **options)
    config = PpoConfig(**options)
    targets = learner.targets(batch, 0)
    n = batch.reward.size
    rows = Rows(
        *(
            torch.from_numpy(array.reshape(n, *array.shape[2:]))
            for array in (batch.obs, batch.action, batch.log_prob, batch.value, targets.advantage, targets.returns)
        ),
        torch.ones(n),
    )
    c = Coefficients(0.2, config.clip_range_vf, float(config.ent_coef), config.vf_coef, config.normalize_advantage)
    looked_at = sb3_train(
        theirs, rows, np.flatnonzero(batch.valid), config, c, float(config.learning_rate), shuffling(SEED, 0)
    )
    assert float((vector_of(ours) - vector_of(theirs)).abs().max()) < 5e-5
    every = config.n_epochs * -(-batch.steps // config.batch_size)
    stopped = config.target_kl is not None
    assert record["train/n_updates"] == (len(looked_at) - 1 if stopped else every)
    if stopped:
        assert 1 < len(looked_at) < every, "target_kl has to bite in the middle, or it shows nothing"


@pytest.mark.parametrize(
    "cell",
    matrix({"gradients": ["auto", "autograd"], "poison": ["reward", "log_prob", "obs"], "bad": [np.nan, np.inf]}),
)
def test_what_is_not_finite_is_never_applied(cell: Cell) -> None:
    gradients, poison, bad = cell.values()
    module = mlp_policy(*spaces_named("vector", "box"))
    batch = batch_for(module, "box")
    getattr(batch, poison)[...] = -bad if poison == "log_prob" else bad
    before = vector_of(module)
    with np.errstate(all="ignore"), pytest.raises(NumericsError, match=r"gradient is not finite.*untouched"):
        learn(module, batch, gradients=gradients)
    assert torch.equal(vector_of(module), before)


@pytest.mark.parametrize("gradients", ["auto", "autograd"])
def test_parameters_stay_finite_when_one_row_is_not(gradients: str) -> None:
    module = mlp_policy(*spaces_named("vector", "discrete"))
    batch = batch_for(module, "discrete")
    learner = Ppo(FlatParameters(module), PpoConfig(batch_size=4, gradients=gradients), SEED)
    targets = learner.targets(batch, 0)
    targets.returns[3, 3] = np.nan
    with np.errstate(all="ignore"), pytest.raises(NumericsError):
        learner.epochs(batch, targets, 0, 1.0)
    assert torch.isfinite(vector_of(module)).all()
    assert all(torch.isfinite(tensor).all() for tensor in learner.state()[1].values())


@pytest.mark.parametrize("max_grad_norm", [1e-3, 0.1, 1e6])
def test_long_gradients_are_shortened(max_grad_norm: float) -> None:
    """Adam's first moment after one step is a tenth of the gradient it was given."""
    module = shaken(mlp_policy(*spaces_named("vector", "discrete")), 2)
    learner, record = learn(
        module, batch_for(module, "discrete"), batch_size=1000, n_epochs=1, max_grad_norm=max_grad_norm
    )
    given_norm = 10 * float(torch.linalg.vector_norm(learner.state()[1]["exp_avg"]))
    assert record["train/grad_norm"] > 0.1, "of the gradient as it was"
    assert given_norm == pytest.approx(min(max_grad_norm, record["train/grad_norm"]), rel=1e-3)


class CountingPolicy(OwnPolicy):
    """Remembers which rows it was trained on: an observation's first entry is its number."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen: list[list[int]] = []

    def evaluate(self, obs: Tensor, actions: Tensor) -> Evaluation:
        if self.training:
            self.seen.append(obs[:, 0].to(torch.int64).tolist())
        return super().evaluate(obs, actions)


@pytest.mark.parametrize(("batch_size", "invalid"), [(16, 0.0), (16, 0.3), (72, 0.0), (71, 0.0), (500, 0.2), (1, 0.9)])
def test_every_valid_row_is_trained_once_an_epoch_and_no_other(batch_size: int, invalid: float) -> None:
    """A partial last minibatch is trained, as SB3 does."""
    module = CountingPolicy(*spaces_named("vector", "discrete"))
    module.eval()
    batch = batch_for(module, "discrete", invalid)
    batch.obs[..., 0] = np.arange(72).reshape(8, 9)
    learn(module, batch, batch_size=batch_size, n_epochs=3, learning_rate=1e-6)
    valid = np.flatnonzero(batch.valid).tolist()
    per_epoch = -(-len(valid) // batch_size)
    sizes = [len(rows) for rows in module.seen]
    assert len(sizes) == 3 * per_epoch
    assert sizes[:per_epoch] == [batch_size] * (per_epoch - 1) + [len(valid) - batch_size * (per_epoch - 1)]
    assert Counter(row for rows in module.seen for row in rows) == dict.fromkeys(valid, 3)
    assert module.seen[:per_epoch] != module.seen[per_epoch : 2 * per_epoch], "epochs are shuffled"


@pytest.mark.parametrize("gradients", ["auto", "autograd"])
def test_invalid_rows_have_no_influence(gradients: str) -> None:
    """Whatever lies in them: NaN, poison, another action."""
    results = []
    for junk in (0.0, np.nan):
        module = mlp_policy(*spaces_named("vector", "discrete"))
        batch = batch_for(module, "discrete", invalid=0.3)
        for name in ("obs", "reward", "log_prob", "value"):
            getattr(batch, name)[~batch.valid] = junk
        # The row after an end is the invalid one; GAE is cut there.
        batch.terminated[:-1][~batch.valid[1:]] = True
        learn(module, batch, batch_size=16, gradients=gradients)
        results.append(vector_of(module))
    assert torch.isfinite(results[0]).all()
    assert torch.equal(*results)


@settings(deadline=None)
@given(n=st.integers(1, 300), batch_size=st.integers(1, 310), seed=st.integers(0, 2**32 - 1))
def test_minibatches_are_a_permutation(n: int, batch_size: int, seed: int) -> None:
    rows = np.arange(n) * 3 + 1
    parts = list(minibatches(rows, batch_size, 1, np.random.default_rng(seed)))
    assert sorted(np.concatenate(parts).tolist()) == rows.tolist()
    assert all(len(part) == batch_size for part in parts[:-1])
    again = list(minibatches(rows, batch_size, 3, np.random.default_rng(seed)))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again[: len(parts)], strict=True))
    for epoch in range(3):
        one = again[epoch * len(parts) : (epoch + 1) * len(parts)]
        assert sorted(np.concatenate(one).tolist()) == rows.tolist(), "each epoch is a permutation of its own"
    assert len(again) == 3 * len(parts)


# ------------------------------------------------------------------------------------------------------------ schedules


@pytest.mark.parametrize(
    ("value", "at_start", "in_the_middle", "at_the_end"),
    [
        (0.25, 0.25, 0.25, 0.25),
        ("0.25", 0.25, 0.25, 0.25),
        ("lin_0.25", 0.25, 0.125, 0.0),
        (lambda progress: 0.1 + progress**2, 1.1, 0.35, 0.1),
        (0, 0.0, 0.0, 0.0),
    ],
)
def test_schedules(value: Any, at_start: float, in_the_middle: float, at_the_end: float) -> None:
    at = schedule("learning_rate", value)
    assert [at(1.0), at(0.5), at(0.0)] == pytest.approx([at_start, in_the_middle, at_the_end])


@pytest.mark.parametrize(
    "value", ["fast", "lin_", "lin_x", "lin_-1", "lin_nan", "lin_inf", -0.1, "nan", float("inf"), ""]
)
def test_bad_schedules_are_refused(value: Any) -> None:
    for name in ("learning_rate", "clip_range", "ent_coef"):
        with pytest.raises(UsageError, match=f"^{name}: expected"):
            PpoConfig(**{name: value})


@pytest.mark.parametrize("gradients", ["auto", "autograd"])
def test_schedules_reach_the_update(gradients: str) -> None:
    """In a run, from the progress that is left; the learning rate decides how far the parameters move."""
    total, steps = 10 * 64, 64
    with hr.PPO(
        "MlpPolicy",
        "CartPole-v1",
        learning_rate="lin_0.01",
        clip_range="lin_0.4",
        ent_coef=lambda progress: 0.5 - progress / 4,
        n_envs=4,
        n_steps=16,
        batch_size=64,
        n_epochs=1,
        gradients=gradients,
        seed=1,
    ) as model:
        moved = []
        for update in range(11):
            before = vector_of(model.policy)
            record = model.run.update(total).record
            left = max(0.0, 1 - update * steps / total)
            assert record["train/learning_rate"] == pytest.approx(0.01 * left)
            assert record["train/clip_range"] == pytest.approx(0.4 * left)
            assert record["train/ent_coef"] == pytest.approx(0.5 - left / 4)
            moved.append(float((vector_of(model.policy) - before).abs().max()))
    assert moved[0] == pytest.approx(0.01, rel=0.01)  # Adam's first step has this length
    assert moved[-1] == 0.0
    assert moved[8] < 0.5 * moved[1]


def test_clip_range_and_entropy_coefficient_matter() -> None:
    """A schedule that was reported but not used would not change the parameters."""
    after = set()
    for options in ({}, {"clip_range": "lin_0.4"}, {"ent_coef": "lin_0.5"}, {"learning_rate": "lin_0.1"}):
        module = own_policy(*spaces_named("vector", "discrete"))
        learn(module, batch_for(module, "discrete"), 0, 0.25, **{"batch_size": 16, "learning_rate": 0.03} | options)
        after.add(vector_of(module).numpy().tobytes())
    assert len(after) == 4


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("batch_size", 0),
        ("n_epochs", 2.5),
        ("gamma", 1.1),
        ("gae_lambda", -0.1),
        ("max_grad_norm", 0.0),
        ("clip_range_vf", 0.0),
        ("target_kl", -1.0),
        ("target_kl", float("nan")),
        ("gradients", "numeric"),
        ("learner_threads", 0),
        ("late", "never"),
        ("late_clip", 0.0),
        ("late_clip", float("nan")),
        ("max_grad_norm", float("nan")),
        ("vf_coef", float("nan")),
        ("vf_coef", -0.5),
    ],
)
def test_bad_options_are_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"^{option}: expected"):
        PpoConfig(**{option: value})


def test_optimizer_state_round_trip() -> None:
    """Moments, step and the count of minibatches; a restored learner goes on as the old one would have."""
    results = []
    for restore in (False, True):
        module = mlp_policy(*spaces_named("vector", "discrete"))
        batch = batch_for(module, "discrete")
        learner, _ = learn(module, batch, batch_size=16)
        if restore:
            fresh = Ppo(FlatParameters(module), PpoConfig(batch_size=16), SEED)
            state, tensors = learner.state()
            assert state == {"minibatches_done": 50}
            fresh.restore(state, {name: tensor.clone() for name, tensor in tensors.items()})
            learner = fresh
        record = learner.epochs(batch, learner.targets(batch, 0), 1, 0.5)
        results.append((vector_of(module).tolist(), record))
    assert results[0] == results[1]
