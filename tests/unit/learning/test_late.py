"""Rows of several versions in one batch: completion, targets and whole updates against slow transcriptions.

three modules, versions that change mid-slab --act--> batch --complete--> targets (weight, vtrace) --> update
          └── each row alone, by its own version's module ──> definitions ──> plain autograd and torch's Adam
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from headrace.learning.advantages import Targets
from headrace.learning.assembly import complete
from headrace.learning.batch import Batch
from headrace.learning.config import PpoConfig
from headrace.learning.ppo import Ppo, shuffling
from headrace.policies.networks import MlpPolicy, as_policy
from headrace.weights.flat import FlatParameters
from support.oracles import slow_gae
from support.pairwise import Cell, matrix
from support.ppo_rows import mixed_batch, shaken, slow_vtrace, spaces_named
from support.toy_policies import mlp_policy, own_policy

Array = npt.NDArray[Any]

OLDEST, OLD, NOW = 3, 4, 5
SEED = 7
COMPLETED = ("log_prob", "value", "bootstrap_value", "last_value")
GRADIENTS = ["autograd", "closed_form"]
OPTIONS = {"batch_size": 20, "n_epochs": 4, "learning_rate": 2e-3, "gamma": 0.97, "gae_lambda": 0.9, "ent_coef": 0.02}


def three_versions(action: str, apart: float = 0.15) -> dict[int, MlpPolicy]:
    """Each some way from the one before, so that ratios are well off 1."""
    module = shaken(mlp_policy(*spaces_named("vector", action), net_arch=(16, 16)), 1, 0.3)
    modules = {}
    for version in (OLDEST, OLD, NOW):
        modules[version] = module
        module = shaken(copy.deepcopy(module), version, apart)
    return modules  # type: ignore[return-value]


def mixed_versions() -> Array:
    """[12, 9]: three column groups (slabs) whose version changes at different rows; one ends with an old version."""
    version = np.full((12, 9), NOW, np.int64)
    version[:9, :4] = OLD
    version[:5, :4] = OLDEST
    version[:2, 4:7] = OLD
    version[:, 7:] = OLD
    version[:7, 7:] = OLDEST
    return version


def mixed(modules: dict[int, Any], action: str, seed: int = 5, version: Array | None = None) -> Batch:
    """Not completed: terminated, truncated, both, final observations, and after some ends a row that is none."""
    version = mixed_versions() if version is None else version
    batch = mixed_batch(modules, version, "vector", spaces_named("vector", action)[1], seed)
    rng = np.random.default_rng([seed, 2])
    batch.terminated |= batch.truncated & (rng.random(batch.truncated.shape) < 0.3)
    for t in range(1, batch.n_steps):
        ended = (batch.terminated | batch.truncated)[t - 1] & batch.valid[t - 1]
        batch.valid[t] = ~(ended & (rng.random(batch.n_envs) < 0.5))
    assert {OLDEST, OLD} < set(version.reshape(-1)[batch.final_row].tolist()) or version.min() == version.max()
    assert batch.valid.mean() < 1 or batch.n_steps < 9
    return batch


def completed(modules: dict[int, Any], action: str, learner: Ppo, version: Array | None = None) -> Batch:
    batch = mixed(modules, action, version=version)
    complete(batch, lambda number: learner._evaluators.of(modules[number]))
    return batch


def slow_completion(batch: Batch, modules: dict[int, Any]) -> dict[str, Array]:
    """Every row alone, by the module of its version."""
    wanted = {name: np.zeros(getattr(batch, name).shape) for name in COMPLETED}
    finals = dict(zip(batch.final_row.tolist(), batch.final_obs, strict=True))

    def value(obs: Array, version: int) -> float:
        return float(as_policy(modules[version]).value(torch.from_numpy(obs[None]))[0])

    with torch.no_grad():
        for n in range(batch.n_envs):
            for t in range(batch.n_steps):
                version = int(batch.version[t, n])
                row = (torch.from_numpy(array[t, n : n + 1]) for array in (batch.obs, batch.action))
                now = as_policy(modules[version]).evaluate(*row)
                wanted["log_prob"][t, n], wanted["value"][t, n] = float(now.log_prob[0]), float(now.value[0])
                if t * batch.n_envs + n in finals:
                    wanted["bootstrap_value"][t, n] = value(finals[t * batch.n_envs + n], version)
            wanted["last_value"][n] = value(batch.last_obs[n], int(batch.version[-1, n]))
    return wanted


def fields_that_differ(batch: Batch, wanted: dict[str, Array]) -> set[str]:
    return {name for name in COMPLETED if not np.allclose(getattr(batch, name), wanted[name], rtol=1e-5, atol=1e-5)}


# ----------------------------------------------------------------------------------------------------------- completion


@pytest.mark.parametrize("action", ["discrete", "box", "multi_discrete"])
@pytest.mark.parametrize("seed", range(3))
def test_every_row_is_completed_by_its_own_version(action: str, seed: int) -> None:
    modules = three_versions(action)
    batch = mixed(modules, action, seed)
    complete(batch, lambda version: modules[version])
    assert not fields_that_differ(batch, slow_completion(batch, modules))


def test_policies_of_ones_own_and_a_version_of_a_single_row() -> None:
    """Neither the MLP nor the number of a version's rows matters; each version is asked for once."""
    modules = {number: own_policy(*spaces_named("vector", "box"), seed=number) for number in (OLDEST, OLD, NOW)}
    version = mixed_versions()
    version[4, 5] = 11
    modules[11] = own_policy(*spaces_named("vector", "box"), seed=11)
    batch = mixed(modules, "box", version=version)
    asked = []
    complete(batch, lambda number: asked.append(number) or modules[number])
    assert sorted(asked) == [OLDEST, OLD, NOW, 11]
    assert not fields_that_differ(batch, slow_completion(batch, modules))


def test_a_row_completed_by_another_version_is_caught() -> None:
    modules = three_versions("discrete")
    batch = mixed(modules, "discrete")
    wanted = slow_completion(batch, modules)
    complete(batch, lambda version: modules[NOW])
    assert fields_that_differ(batch, wanted) == set(COMPLETED)
    shifted = replace(batch, version=np.concatenate([batch.version[:1], batch.version[:-1]]))  # one row too late
    complete(shifted, lambda version: modules[version])
    assert {"log_prob", "value"} <= fields_that_differ(batch, wanted)
    edge = batch.version.copy()
    edge[-1] = edge[0]
    complete(replace(batch, version=edge), lambda version: modules[version])
    assert "last_value" in fields_that_differ(batch, wanted)
    complete(replace(batch, final_row=np.roll(batch.final_row, 1)), lambda version: modules[version])
    assert "bootstrap_value" in fields_that_differ(batch, wanted)


# -------------------------------------------------------------------------------------------------- slow transcriptions


def slow_targets(batch: Batch, modules: dict[int, Any], config: PpoConfig) -> Targets:
    """What late rows teach, from single rows and definitions; nothing of the batch's completed fields is looked at."""
    acted, now = slow_completion(batch, modules), slow_completion(batch, dict.fromkeys(modules, modules[NOW]))
    flags, discounts = (batch.terminated, batch.truncated, batch.valid), (config.gamma, config.gae_lambda)
    log_ratio = now["log_prob"] - acted["log_prob"]
    if config.late == "weight":
        seen, weight = acted, np.minimum(config.late_clip, np.exp(log_ratio))
        numbers = (batch.reward, seen["value"], seen["bootstrap_value"], *flags, seen["last_value"], *discounts)
        return Targets(*slow_gae(*numbers), now["log_prob"], weight, now["value"])
    numbers = (batch.reward, now["value"], now["bootstrap_value"], *flags, now["last_value"], *discounts)
    estimates = slow_vtrace(*numbers, log_ratio, config.late_clip)
    return Targets(*estimates, now["log_prob"], np.ones(log_ratio.shape), now["value"])


def slow_update(module: nn.Module, batch: Batch, targets: Targets, config: PpoConfig) -> None:
    """-mean(w min(A r, A clip(r))) + value loss (clipped around the present) - entropy; autograd, torch's Adam."""
    n = batch.n_steps * batch.n_envs
    obs, action = (torch.from_numpy(array.reshape(n, *array.shape[2:])) for array in (batch.obs, batch.action))
    advantage, returns, proximal, w, old_value = (
        torch.from_numpy(array.reshape(n).astype(np.float32)) for array in targets
    )
    adam = torch.optim.Adam(module.parameters(), lr=float(config.learning_rate), eps=1e-5)
    generator = shuffling(SEED, 0)
    for _ in range(config.n_epochs):
        order = generator.permutation(np.flatnonzero(batch.valid))
        for start in range(0, len(order), config.batch_size):
            rows = torch.from_numpy(order[start : start + config.batch_size])
            A = advantage[rows]
            if config.normalize_advantage:
                A = (A - A.mean()) / (A.std() + 1e-8)
            log_prob, entropy, value = as_policy(module).evaluate(obs[rows], action[rows])
            r = (log_prob - proximal[rows]).exp()
            gain = w[rows] * torch.min(A * r, A * r.clamp(0.8, 1.2))
            if config.clip_range_vf is not None:
                moved = (value - old_value[rows]).clamp(-config.clip_range_vf, config.clip_range_vf)
                value = old_value[rows] + moved
            loss = -gain.mean() + config.vf_coef * (value - returns[rows]).square().mean()
            loss = loss - float(config.ent_coef) * entropy.mean()
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), config.max_grad_norm)
            adam.step()


def vector_of(module: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()]).clone()


def learner_of(modules: dict[int, Any], **options: Any) -> tuple[Ppo, nn.Module]:
    """A learner that trains a copy of the present version."""
    module = copy.deepcopy(modules[NOW])
    return Ppo(FlatParameters(module), PpoConfig(**OPTIONS | options), SEED), module


def assert_update_is_the_slow_one(
    action: str,
    options: dict[str, Any],
    tamper: Callable[[Targets, Batch], Targets] = lambda targets, batch: targets,
    learner_options: dict[str, Any] | None = None,
) -> None:
    """`tamper` and `learner_options` are mistakes of the learner's that the transcription does not make."""
    modules = three_versions(action)
    learner, ours = learner_of(modules, **options | (learner_options or {}))
    batch = completed(modules, action, learner)
    theirs, config = copy.deepcopy(modules[NOW]), PpoConfig(**OPTIONS | options)
    slow_update(theirs, batch, slow_targets(batch, modules, config), config)
    record = learner.epochs(batch, tamper(learner.targets(batch, NOW), batch), 0, 1.0)
    assert record["headrace/first_ratio_error"] < 1e-5, "ratios are to the present policy"
    assert float((vector_of(theirs) - vector_of(modules[NOW])).abs().max()) > 1e-2
    error = float((vector_of(ours) - vector_of(theirs)).abs().max())
    assert error < 5e-5, f"parameters differ by {error:.2e}"


# -------------------------------------------------------------------------------------------------------------- targets


CHOICES: dict[str, Any] = {"late": ["weight", "vtrace"], "action": ["discrete", "box"], "gradients": GRADIENTS}


@pytest.mark.parametrize("cell", matrix(CHOICES | {"late_clip": [0.8, 1.0, 1.25]}))
def test_targets_are_their_definitions(cell: Cell) -> None:
    """weight: GAE as acted, the present log-probability, min(late_clip, pi / mu). vtrace: its own, weights of 1."""
    late, action, gradients, late_clip = cell.values()
    modules = three_versions(action, apart=0.4)
    options = {"late": late, "late_clip": late_clip, "gradients": gradients}
    learner, module = learner_of(modules, **options)
    batch = completed(modules, action, learner)
    before = {name: getattr(batch, name).tobytes() for name in (*COMPLETED, "version")}
    got, wanted = learner.targets(batch, NOW), slow_targets(batch, modules, PpoConfig(**OPTIONS | options))
    for name, array in wanted._asdict().items():
        mine = getattr(got, name)
        assert mine.dtype == np.float32
        np.testing.assert_allclose(mine[batch.valid], array[batch.valid], rtol=2e-5, atol=2e-5, err_msg=name)
    if late == "weight":
        capped = wanted.weight >= late_clip
        assert 3 < capped[batch.version < NOW].sum() < (batch.version < NOW).sum() - 3, "truncation has to bite"
    assert {name: getattr(batch, name).tobytes() for name in before} == before, "slabs keep what acted"
    assert torch.equal(vector_of(module), vector_of(modules[NOW]))


UPDATES: dict[str, dict[str, Any]] = {
    "default": {},
    "other": {"late_clip": 1.8, "normalize_advantage": False},
    "clipped values": {"clip_range_vf": 0.1},
}


@pytest.mark.parametrize("cell", matrix(CHOICES | {"options": list(UPDATES)}))
def test_an_update_with_late_rows_is_the_slow_one(cell: Cell) -> None:
    late, action, gradients, options = cell.values()
    assert_update_is_the_slow_one(action, {"late": late, "gradients": gradients} | UPDATES[options])


def without_weights(targets: Targets, batch: Batch) -> Targets:
    return targets._replace(weight=np.ones_like(targets.weight))


def inverse_weights(targets: Targets, batch: Batch) -> Targets:
    return targets._replace(weight=np.exp(np.minimum(0, batch.log_prob - targets.log_prob)))


def untouched(targets: Targets, batch: Batch) -> Targets:
    return targets


@pytest.mark.parametrize("gradients", GRADIENTS)
@pytest.mark.parametrize(
    ("late", "tamper", "learner_options"),
    [
        ("weight", without_weights, {}),
        ("weight", inverse_weights, {}),
        ("weight", untouched, {"late_clip": 1.2}),
        ("weight", untouched, {"late": "vtrace"}),
        ("vtrace", untouched, {"late_clip": 1.2}),
        ("vtrace", untouched, {"late": "weight"}),
    ],
)
def test_a_wrong_correction_is_caught(
    late: str, tamper: Callable[[Targets, Batch], Targets], learner_options: dict[str, Any], gradients: str
) -> None:
    with pytest.raises(AssertionError, match="parameters differ"):
        assert_update_is_the_slow_one("box", {"late": late, "gradients": gradients}, tamper, learner_options)


@pytest.mark.parametrize("late", ["weight", "vtrace"])
@pytest.mark.parametrize("gradients", GRADIENTS)
def test_clipping_against_the_policy_that_acted_is_caught(late: str, gradients: str) -> None:
    with pytest.raises(AssertionError, match="ratios are to the present policy"):
        assert_update_is_the_slow_one(
            "box", {"late": late, "gradients": gradients}, lambda targets, b: targets._replace(log_prob=b.log_prob)
        )


@pytest.mark.parametrize("gradients", GRADIENTS)
def test_vtrace_without_rho_is_caught(gradients: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.learning import late as room

    real = room.vtrace
    monkeypatch.setattr(room, "vtrace", lambda *given: real(*given[:-2], np.zeros_like(given[-2]), given[-1]))
    with pytest.raises(AssertionError, match="parameters differ"):
        assert_update_is_the_slow_one("box", {"late": "vtrace", "gradients": gradients})


# ---------------------------------------------------------------------------------------------------- data in good time


@pytest.mark.parametrize("gradients", GRADIENTS)
@pytest.mark.parametrize("newest", [NOW, NOW + 1])
def test_without_late_rows_the_correction_does_not_show(gradients: str, newest: int) -> None:
    """Bit for bit, and with the log-probabilities that completion gave."""
    modules = three_versions("box")
    after, records = set(), set()
    for late in ("reject", "weight", "vtrace"):
        learner, module = learner_of(modules, late=late, gradients=gradients, late_clip=0.5)
        batch = completed({newest: modules[NOW]}, "box", learner, np.full((12, 9), newest, np.int64))
        targets = learner.targets(batch, NOW)
        assert (targets.weight == 1).all()
        assert targets.log_prob.tobytes() == batch.log_prob.tobytes()
        record = learner.epochs(batch, targets, 0, 1.0)
        assert record["headrace/down_weighted"] == 0
        after.add(vector_of(module).numpy().tobytes())
        records.add(str(record))
    assert len(after) == len(records) == 1


def test_late_rows_make_the_three_ways_differ() -> None:
    """The comparison above can fail; and reject trains on what came as it came."""
    modules, after = three_versions("box"), set()
    for late in ("reject", "weight", "vtrace"):
        learner, module = learner_of(modules, late=late)
        batch = completed(modules, "box", learner)
        targets = learner.targets(batch, NOW)
        assert (targets.log_prob.tobytes() == batch.log_prob.tobytes()) == (late == "reject")
        learner.epochs(batch, targets, 0, 1.0)
        after.add(vector_of(module).numpy().tobytes())
    assert len(after) == 3


@pytest.mark.parametrize("gradients", GRADIENTS)
@pytest.mark.parametrize("late_clip", [0.7, 1.0, 2.5])
def test_down_weighted_counts_valid_rows_that_count_less(gradients: str, late_clip: float) -> None:
    modules = three_versions("box")
    options = {"late": "weight", "late_clip": late_clip, "gradients": gradients}
    learner, _ = learner_of(modules, **options)
    batch = completed(modules, "box", learner)
    weight = slow_targets(batch, modules, PpoConfig(**OPTIONS | options)).weight
    is_less = (weight < 1 - 1e-5) & batch.valid
    assert 10 < is_less.sum() < weight.size or late_clip < 1
    record = learner.epochs(batch, learner.targets(batch, NOW), 0, 1.0)
    assert record["headrace/down_weighted"] == is_less.sum()
    if late_clip >= 1:
        assert not is_less[batch.version == NOW].any(), "the present version's rows count whole"
