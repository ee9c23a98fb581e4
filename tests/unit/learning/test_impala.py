"""IMPALA's update against a slow transcription: V-trace by its definition, plain autograd, torch's Adam.

rows of three versions --act--> batch --learn--> parameters        each row alone by its own version --> the same ones
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headrace.errors import NumericsError, UsageError
from headrace.learning import impala as room
from headrace.learning.algorithm import Moment
from headrace.learning.batch import Batch
from headrace.learning.config import ImpalaConfig
from headrace.learning.impala import Impala
from headrace.learning.ppo import shuffling
from headrace.policies.networks import as_policy
from headrace.policies.policy import Evaluation
from headrace.weights.flat import FlatParameters
from support.ppo_rows import mixed_batch, shaken, slow_vtrace, spaces_named
from support.toy_policies import OwnPolicy, mlp_policy, own_policy

OLDEST, OLD, NOW, SEED = 3, 4, 5, 7
OPTIONS: dict[str, Any] = {"batch_size": 20, "learning_rate": 2e-3, "gamma": 0.97, "gae_lambda": 0.9, "ent_coef": 0.02}


def three_versions(action: str, apart: float = 0.15) -> dict[int, nn.Module]:
    module = shaken(mlp_policy(*spaces_named("vector", action), net_arch=(16, 16)), 1, 0.3)
    modules = {}
    for version in (OLDEST, OLD, NOW):
        modules[version] = module
        module = shaken(copy.deepcopy(module), version, apart)
    return modules


def batch_of(modules: dict[int, nn.Module], action: str, oldest: int = OLDEST) -> Batch:
    """[12, 9]: versions that change at different rows; some ends, some cuts, and a row that is none after some ends."""
    version = np.full((12, 9), NOW, np.int64)
    version[:9, :4], version[:5, :4], version[:, 7:] = OLD, OLDEST, OLD
    version = np.maximum(version, oldest)
    batch = mixed_batch(modules, version, "vector", spaces_named("vector", action)[1], seed=5)
    rng = np.random.default_rng(6)
    for t in range(1, batch.n_steps):
        ended = (batch.terminated | batch.truncated)[t - 1] & batch.valid[t - 1]
        batch.valid[t] = ~(ended & (rng.random(batch.n_envs) < 0.5))
    assert batch.valid.mean() < 1
    return batch


def moment(modules: dict[int, nn.Module], update: int = 0, progress: float = 1.0) -> Moment:
    return Moment(update, NOW, True, progress, lambda version: modules[version])


def algorithm_of(modules: dict[int, nn.Module], **options: Any) -> tuple[Impala, nn.Module]:
    """It trains a copy of the present version."""
    module = copy.deepcopy(modules[NOW])
    return Impala(FlatParameters(module), ImpalaConfig(**OPTIONS | options), SEED), module


def vector_of(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()]).clone()


def log_probs_and_values(batch: Batch, modules: dict[int, nn.Module]) -> tuple[np.ndarray, ...]:
    """Every row by the module of its version: log-probability, value, value of a cut, value after the last row."""
    log_prob, value, cut = (np.zeros(batch.reward.shape) for _ in range(3))
    last = np.zeros(batch.n_envs)
    finals = dict(zip(batch.final_row.tolist(), batch.final_obs, strict=True))

    def value_of(obs: np.ndarray, version: int) -> float:
        return float(as_policy(modules[version]).value(torch.from_numpy(obs[None]))[0])

    with torch.no_grad():
        for t, n in np.ndindex(*batch.reward.shape):
            version = int(batch.version[t, n])
            row = (torch.from_numpy(array[t, n : n + 1]) for array in (batch.obs, batch.action))
            seen = as_policy(modules[version]).evaluate(*row)
            log_prob[t, n], value[t, n] = float(seen.log_prob[0]), float(seen.value[0])
            if t * batch.n_envs + n in finals:
                cut[t, n] = value_of(finals[t * batch.n_envs + n], version)
        for n in range(batch.n_envs):
            last[n] = value_of(batch.last_obs[n], int(batch.version[-1, n]))
    return log_prob, value, cut, last


def slow_update(module: nn.Module, batch: Batch, modules: dict[int, nn.Module], config: ImpalaConfig) -> None:
    """-mean(A log pi) + value loss - entropy, each valid row once."""
    acted = log_probs_and_values(batch, modules)[0]
    now, value, cut, last = log_probs_and_values(batch, dict.fromkeys(modules, modules[NOW]))
    flags = (batch.terminated, batch.truncated, batch.valid)
    advantage, returns = slow_vtrace(
        batch.reward, value, cut, *flags, last, config.gamma, config.gae_lambda, now - acted, config.late_clip
    )
    n = batch.reward.size
    obs, action = (torch.from_numpy(array.reshape(n, *array.shape[2:])) for array in (batch.obs, batch.action))
    A, R = (torch.from_numpy(array.reshape(n).astype(np.float32)) for array in (advantage, returns))
    adam = torch.optim.Adam(module.parameters(), lr=float(config.learning_rate), eps=1e-5)
    order = shuffling(SEED, 0).permutation(np.flatnonzero(batch.valid))
    for start in range(0, len(order), config.batch_size):
        rows = torch.from_numpy(order[start : start + config.batch_size])
        log_prob, entropy, seen = as_policy(module).evaluate(obs[rows], action[rows])
        loss = -(A[rows] * log_prob).mean() + config.vf_coef * (seen - R[rows]).square().mean()
        loss = loss - float(config.ent_coef) * entropy.mean()
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), config.max_grad_norm)
        adam.step()


def assert_update_is_the_slow_one(action: str, options: dict[str, Any], mistaken: dict[str, Any] | None = None) -> None:
    """`mistaken` options are the algorithm's; the transcription does not have them."""
    modules = three_versions(action)
    batch = batch_of(modules, action)
    algorithm, ours = algorithm_of(modules, **options | (mistaken or {}))
    theirs = copy.deepcopy(modules[NOW])
    slow_update(theirs, batch, modules, ImpalaConfig(**OPTIONS | options))
    algorithm.learn(batch, moment(modules))
    assert float((vector_of(theirs) - vector_of(modules[NOW])).abs().max()) > 3e-3
    error = float((vector_of(ours) - vector_of(theirs)).abs().max())
    assert error < 5e-5, f"parameters differ by {error:.2e}"


@pytest.mark.parametrize("action", ["discrete", "box", "multi_discrete"])
@pytest.mark.parametrize(
    "options",
    [{}, {"late_clip": 1.8, "gae_lambda": 1.0}, {"late_clip": 0.5, "vf_coef": 1.5, "max_grad_norm": 0.05}],
    ids=["default", "above 1", "below 1"],
)
def test_an_update_is_the_slow_one(action: str, options: dict[str, Any]) -> None:
    assert_update_is_the_slow_one(action, options)


@pytest.mark.parametrize(
    "mistaken",
    [{"late_clip": 2.0}, {"gae_lambda": 1.0}, {"ent_coef": 0.0}, {"vf_coef": 1.0}, {"max_grad_norm": 0.1}],
    ids=str,
)
def test_a_wrong_option_is_caught(mistaken: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="parameters differ"):
        assert_update_is_the_slow_one("box", {}, mistaken)


def test_vtrace_without_ratios_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = room.vtrace
    monkeypatch.setattr(room, "vtrace", lambda *given: real(*given[:-2], np.zeros_like(given[-2]), given[-1]))
    with pytest.raises(AssertionError, match="parameters differ"):
        assert_update_is_the_slow_one("box", {})


def test_targets_of_the_policy_that_acted_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The present weights value the states, not those that acted."""
    monkeypatch.setattr(room, "seen_by", lambda batch, *others: batch)
    with pytest.raises(AssertionError, match="parameters differ"):
        assert_update_is_the_slow_one("box", {})


class CountingPolicy(OwnPolicy):
    """Remembers which rows it was trained on: an observation's first entry is its number."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen: list[int] = []

    def evaluate(self, obs: Tensor, actions: Tensor) -> Evaluation:
        if self.training and torch.is_grad_enabled():
            self.seen += obs[:, 0].to(torch.int64).tolist()
        return super().evaluate(obs, actions)


@pytest.mark.parametrize("batch_size", [1, 16, 500])
def test_every_valid_row_is_learned_from_once(batch_size: int) -> None:
    module = CountingPolicy(*spaces_named("vector", "discrete"))
    modules: dict[int, nn.Module] = dict.fromkeys((OLDEST, OLD, NOW), module.eval())
    batch = batch_of(modules, "discrete", oldest=NOW)
    batch.obs[..., 0] = np.arange(108).reshape(12, 9)
    module.seen.clear()
    config = ImpalaConfig(batch_size=batch_size, learning_rate=1e-6)
    record = Impala(FlatParameters(module), config, SEED).learn(batch, moment(modules))
    valid = np.flatnonzero(batch.valid).tolist()
    assert Counter(module.seen) == dict.fromkeys(valid, 1)
    assert record["train/n_updates"] == -(-len(valid) // batch_size)


def test_a_policy_of_ones_own_and_schedules() -> None:
    """Any policy; the learning rate of the progress that is left decides how far parameters move."""
    moved = []
    for progress in (1.0, 0.5, 0.0):
        module = own_policy(*spaces_named("vector", "box"), seed=3)
        modules: dict[int, nn.Module] = dict.fromkeys((OLDEST, OLD, NOW), copy.deepcopy(module))
        before = vector_of(module)
        config = ImpalaConfig(batch_size=500, learning_rate="lin_0.01", ent_coef="lin_0.1")
        batch = batch_of(modules, "box", oldest=NOW)
        record = Impala(FlatParameters(module), config, SEED).learn(batch, moment(modules, 0, progress))
        assert record["train/learning_rate"] == pytest.approx(0.01 * progress)
        assert record["train/ent_coef"] == pytest.approx(0.1 * progress)
        moved.append(float((vector_of(module) - before).abs().max()))
    assert moved == pytest.approx([0.01, 0.005, 0.0], rel=0.01)  # Adam's first step has this length


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_never_applied(bad: float) -> None:
    modules = three_versions("box")
    batch = batch_of(modules, "box")
    batch.reward[...] = bad
    algorithm, module = algorithm_of(modules)
    with np.errstate(all="ignore"), pytest.raises(NumericsError, match=r"gradient is not finite.*untouched"):
        algorithm.learn(batch, moment(modules))
    assert torch.equal(vector_of(module), vector_of(modules[NOW]))


def test_frozen_parameters_stay() -> None:
    modules = three_versions("box")
    algorithm, module = algorithm_of(modules)
    module.actor[0].requires_grad_(False)  # type: ignore[index, union-attr, operator]
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    algorithm.learn(batch_of(modules, "box"), moment(modules))
    moved = {name for name, parameter in module.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == {name for name in before if not name.startswith("actor.0.")}


def test_its_state_goes_on() -> None:
    """Moments, step and the count of minibatches; restored, it goes on as it would have."""
    results = []
    for is_restored in (False, True):
        modules = three_versions("discrete")
        batch = batch_of(modules, "discrete")
        algorithm, module = algorithm_of(modules)
        algorithm.learn(batch, moment(modules))
        if is_restored:
            state, tensors = algorithm.state()
            fresh = Impala(FlatParameters(module), ImpalaConfig(**OPTIONS), SEED)
            fresh.restore(state, {name: tensor.clone() for name, tensor in tensors.items()})
            algorithm = fresh
        record = algorithm.learn(batch, moment(modules, 1, 0.5))
        times = {name for name in record if name.startswith("headrace/time/")}
        results.append((vector_of(module).tolist(), {name: record[name] for name in record.keys() - times}))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("batch_size", 0),
        ("batch_size", 2.5),
        ("gamma", 1.1),
        ("gae_lambda", -0.1),
        ("max_grad_norm", 0.0),
        ("late_clip", 0.0),
        ("late_clip", float("nan")),
        ("max_grad_norm", float("nan")),
        ("vf_coef", float("nan")),
        ("vf_coef", -0.5),
        ("learning_rate", "fast"),
        ("learning_rate", -1.0),
        ("ent_coef", "nan"),
        ("vf_coef", "much"),
        ("learner_threads", 0),
    ],
)
def test_bad_options_are_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"^{option}: expected"):
        ImpalaConfig(**{option: value})
