"""The contract of algorithms: what a run may rely on when it hands over a batch and a moment, whatever learns.

    learn(batch, moment): parameters in place, completed fields filled, what was collected left as it was, record
    state() ──JSON, tensors──> restore(): the next update is the same to the last bit

Every algorithm that RunConfig knows, over a policy with the closed form and one without, is in ALGORITHMS.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headrace.build import build_algorithm
from headrace.checkpoints.form import mapping, whole
from headrace.errors import NumericsError, UsageError
from headrace.learning import config as configs
from headrace.learning.algorithm import Algorithm, Moment
from headrace.learning.batch import Batch
from headrace.learning.config import AlgorithmConfig, ImpalaConfig, PpoConfig
from headrace.memory.spaces import Space
from headrace.policies.networks import as_policy
from headrace.policies.threads import torch_threads
from headrace.weights.flat import FlatParameters
from support.ppo_rows import mixed_batch, shaken, spaces_named
from support.toy_policies import mlp_policy, own_policy

N_STEPS, N_ENVS = 12, 5
COMPLETED = ("log_prob", "value", "bootstrap_value", "last_value")


@dataclass(frozen=True)
class Case:
    """An algorithm and a policy it trains."""

    config: AlgorithmConfig
    policy: Callable[..., nn.Module] = mlp_policy
    observation: str = "vector"
    action: str = "discrete"

    @property
    def spaces(self) -> tuple[Space, Space]:
        """Of observations and actions."""
        return spaces_named(self.observation, self.action)

    def module(self, seed: int = 1) -> nn.Module:
        """The policy, away from its initialisation."""
        return shaken(self.policy(*self.spaces), seed, 0.3)


ALGORITHMS: dict[str, Case] = {
    "ppo": Case(PpoConfig(batch_size=16, n_epochs=2, learning_rate="lin_1e-2", ent_coef=0.01)),
    "ppo, continuous": Case(PpoConfig(batch_size=25, n_epochs=3, clip_range_vf=0.3), action="box"),
    "ppo, autograd": Case(PpoConfig(batch_size=16, n_epochs=2, gradients="autograd")),
    "ppo, V-trace, a user's policy": Case(
        PpoConfig(batch_size=20, n_epochs=2, late="vtrace", normalize_advantage=False), own_policy, action="box_2d"
    ),
    "ppo, rejecting": Case(PpoConfig(batch_size=64, n_epochs=2, late="reject", target_kl=0.5)),
    "impala": Case(ImpalaConfig(batch_size=16, learning_rate="lin_1e-2")),
    "impala, a user's policy": Case(ImpalaConfig(batch_size=64), own_policy, action="multi_discrete"),
}

every_algorithm = pytest.mark.parametrize("case", ALGORITHMS.values(), ids=list(ALGORITHMS))


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    with torch_threads(1):
        yield


def test_every_algorithm_is_here() -> None:
    assert {type(case.config) for case in ALGORITHMS.values()} == set(configs.ALGORITHMS.values())


def batch_of(case: Case, versions: dict[int, nn.Module], seed: int = 3) -> Batch:
    """As it was collected: rows acted by the module of their version, older versions first; not completed.

    Ends of every kind, and rows after an end that hold nothing.
    """
    numbers = sorted(versions)
    version = np.repeat(np.array(numbers)[np.arange(N_STEPS) * len(numbers) // N_STEPS][:, None], N_ENVS, 1)
    batch = mixed_batch(versions, version, case.observation, case.spaces[1], seed)
    ended = batch.terminated | batch.truncated
    rng = np.random.default_rng(seed)
    for t, env in np.ndindex(N_STEPS - 1, N_ENVS):
        if ended[t, env] and batch.valid[t, env] and rng.random() < 0.7:
            batch.valid[t + 1, env] = False
            batch.terminated[t + 1, env] = batch.truncated[t + 1, env] = ended[t + 1, env] = False
    assert not batch.valid.all()
    keep = batch.truncated.reshape(-1)[batch.final_row]
    batch = replace(batch, final_row=batch.final_row[keep], final_leaves={"obs": batch.final_obs[keep]})
    for name in COMPLETED:
        getattr(batch, name).fill(np.nan)
    return batch


def collected(batch: Batch) -> dict[str, bytes]:
    """What the algorithm was lent, and may not change."""
    arrays = {name: value for name, value in vars(batch).items() if isinstance(value, np.ndarray)}
    arrays |= {name: getattr(batch, name) for name in ("obs", "last_obs", "final_obs")}
    return {name: array.tobytes() for name, array in arrays.items() if name not in COMPLETED}


class Bench:
    """An algorithm at work on a policy."""

    def __init__(self, case: Case, seed: int = 0, **changed: Any) -> None:
        self.case = case
        self.module = case.module()
        self.flat = FlatParameters(self.module)
        self.algorithm: Algorithm = build_algorithm(replace(case.config, **changed), self.flat, seed)
        self.asked: list[int] = []
        self.actors = {0: copy.deepcopy(self.module)}

    def acted(self, version: int) -> nn.Module:
        """The policy that acted."""
        self.asked.append(version)
        return self.actors[version]

    def learn(self, batch: Batch, update: int = 0, version: int = 0, progress: float = 1.0) -> dict[str, float]:
        """One update."""
        moment = Moment(update, version, version == 0 and update == 0, progress, self.acted)
        return self.algorithm.learn(batch, moment)

    @property
    def bits(self) -> bytes:
        """The parameters."""
        return self.flat.vector.numpy().tobytes()


# ---------------------------------------------------------------------------------------------------------------- learn


@every_algorithm
def test_it_changes_the_parameters_in_place_and_nothing_else(case: Case) -> None:
    bench = Bench(case)
    batch = batch_of(case, bench.actors)
    lent, before, actor = collected(batch), bench.flat.vector.clone(), copy.deepcopy(bench.actors[0].state_dict())
    places = [parameter.data_ptr() for parameter in bench.module.parameters()]
    bench.learn(batch)
    assert [parameter.data_ptr() for parameter in bench.module.parameters()] == places
    assert all(
        not torch.equal(now, was) for now, was in zip(bench.flat.views(bench.flat.vector).values(),
                                                        bench.flat.views(before).values(), strict=True)
    )  # fmt: skip
    assert bool(torch.isfinite(bench.flat.vector).all())
    assert collected(batch) == lent
    assert all(torch.equal(actor[name], tensor) for name, tensor in bench.actors[0].state_dict().items())


@every_algorithm
def test_its_record_is_plain_numbers_under_known_names(case: Case) -> None:
    record = Bench(case).learn(batch_of(case, {0: case.module()}))
    assert all(type(value) is float and math.isfinite(value) for value in record.values())
    assert {
        "train/loss", "train/policy_gradient_loss", "train/value_loss", "train/entropy_loss", "train/grad_norm",
        "train/explained_variance", "train/learning_rate", "train/n_updates",
    } <= record.keys()  # fmt: skip
    assert {"completion", "advantages", "sgd"} == {
        name.rpartition("/")[2] for name in record if name.startswith("headrace/time/")
    }


@every_algorithm
def test_the_same_batch_gives_the_same_bits_and_another_seed_others(case: Case) -> None:
    def learned(seed: int) -> bytes:
        bench = Bench(case, seed, batch_size=16)
        bench.learn(batch_of(case, bench.actors))
        return bench.bits

    assert learned(0) == learned(0)
    assert learned(0) != learned(1), "minibatches are shuffled by the seed"


@every_algorithm
def test_another_update_shuffles_otherwise(case: Case) -> None:
    first, second = Bench(case, batch_size=16), Bench(case, batch_size=16)
    moment = Moment(5, 0, True, 1.0, second.acted)
    first.learn(batch_of(case, first.actors))
    second.algorithm.learn(batch_of(case, second.actors), moment)
    assert first.bits != second.bits


@every_algorithm
def test_it_learns(case: Case) -> None:
    """Over and over from one batch whose reward is the first action's sign: that action becomes more likely."""
    bench = Bench(case, learning_rate=5e-3)
    batch = batch_of(case, bench.actors)
    first = batch.action.reshape(N_STEPS, N_ENVS, -1)[..., 0]
    batch.reward[:] = np.where(first > np.median(first), 1.0, -1.0)
    batch.terminated[:], batch.truncated[:] = True, False
    batch.valid[:] = True
    obs = torch.from_numpy(batch.obs.reshape(N_STEPS * N_ENVS, *batch.obs.shape[2:]))
    action = torch.from_numpy(batch.action.reshape(N_STEPS * N_ENVS, *batch.action.shape[2:]))
    liked = torch.from_numpy(batch.reward.reshape(-1) > 0)

    def log_prob() -> float:
        with torch.no_grad():
            return float(as_policy(bench.module).evaluate(obs, action).log_prob[liked].mean())

    before = log_prob()
    for update in range(8):
        bench.actors[0] = copy.deepcopy(bench.module)
        bench.algorithm.learn(copy.deepcopy(batch), Moment(update, 0, True, 1.0, bench.acted))
    assert log_prob() > before + 0.02


# ----------------------------------------------------------------------------------------------------------- completion


@every_algorithm
def test_completion_fills_every_field_with_the_policy_that_acted(case: Case) -> None:
    bench = Bench(case)
    bench.actors = {0: case.module(1), 1: case.module(2), 2: case.module(3)}
    batch = batch_of(case, bench.actors)
    bench.learn(batch, update=2, version=2)
    assert set(bench.asked) == {0, 1, 2}
    for version, module in bench.actors.items():
        policy, rows = as_policy(module), batch.version == version
        with torch.no_grad():
            now = policy.evaluate(torch.from_numpy(batch.obs[rows]), torch.from_numpy(batch.action[rows]))
        np.testing.assert_allclose(batch.log_prob[rows], now.log_prob.numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(batch.value[rows], now.value.numpy(), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        last = as_policy(bench.actors[2]).value(torch.from_numpy(batch.last_obs)).numpy()
    np.testing.assert_allclose(batch.last_value, last, rtol=1e-4, atol=1e-5)
    cut = np.zeros(N_STEPS * N_ENVS, bool)
    cut[batch.final_row] = True
    bootstrap = batch.bootstrap_value.reshape(-1)
    assert (bootstrap[~cut] == 0).all()
    for row, obs in zip(batch.final_row, batch.final_obs, strict=True):
        policy = as_policy(bench.actors[int(batch.version.reshape(-1)[row])])
        with torch.no_grad():
            value = float(policy.value(torch.from_numpy(obs[None].copy()))[0])
        assert bootstrap[row] == pytest.approx(value, rel=1e-4, abs=1e-5)
    assert len(batch.final_row) > 0


@every_algorithm
def test_a_batch_of_several_versions_is_learned_from(case: Case) -> None:
    """And the version that acted matters: the same rows, said to be one policy's, teach something else."""
    moved = []
    for is_mixed in (True, False):
        bench = Bench(case)
        bench.actors = {0: case.module(2), 1: copy.deepcopy(bench.module)}
        batch = batch_of(case, bench.actors)
        if not is_mixed:
            batch = replace(batch, version=np.ones_like(batch.version))
        moment = Moment(1, 1, True, 1.0, bench.acted)
        before = bench.flat.vector.clone()
        record = bench.algorithm.learn(batch, moment)
        assert all(math.isfinite(value) for value in record.values())
        assert not torch.equal(before, bench.flat.vector)
        moved.append(bench.bits)
    assert moved[0] != moved[1]


# --------------------------------------------------------------------------------------------------------- invalid rows


@every_algorithm
def test_rows_that_hold_no_step_have_no_influence(case: Case) -> None:
    """Whatever lies in them: another observation, action and reward give the same parameters and the same record."""
    told = []
    for garbage in (False, True):
        bench = Bench(case)
        batch = batch_of(case, bench.actors)
        if garbage:
            other = batch_of(case, bench.actors, seed=99)
            for name in ("obs", "action", "reward"):
                getattr(batch, name)[~batch.valid] = getattr(other, name)[~batch.valid]
            batch.reward[~batch.valid] = 1e6
        record = bench.learn(batch)
        told.append((bench.bits, {name: value for name, value in record.items() if "/time/" not in name}))
    assert told[0] == told[1]


@every_algorithm
def test_a_valid_row_has_influence(case: Case) -> None:
    """The comparison above can fail."""
    bits = []
    for reward in (0.0, 1.0):
        bench = Bench(case)
        batch = batch_of(case, bench.actors)
        t, env = np.argwhere(batch.valid)[3]
        batch.reward[t, env] += reward
        bench.learn(batch)
        bits.append(bench.bits)
    assert bits[0] != bits[1]


@every_algorithm
def test_a_batch_without_a_step_is_refused(case: Case) -> None:
    bench = Bench(case)
    batch, before = batch_of(case, bench.actors), bench.bits
    batch.valid[:] = False
    with pytest.raises(UsageError, match="no row of the rollout holds a step"):
        bench.learn(batch)
    assert bench.bits == before


# ---------------------------------------------------------------------------------------------------- state and restore


@every_algorithm
def test_it_goes_on_from_its_state_bit_for_bit(case: Case) -> None:
    first = Bench(case)
    for update in range(2):
        first.learn(batch_of(case, first.actors, seed=update), update, progress=1 - update / 4)
    state, tensors = first.algorithm.state()
    state, tensors = json.loads(json.dumps(state, allow_nan=False)), {n: t.clone() for n, t in tensors.items()}
    vector = first.flat.vector.clone()
    wanted = [first.learn(batch_of(case, first.actors, seed=7), 2, progress=0.5), first.bits]

    for is_restored in (True, False):
        second = Bench(case)
        second.actors = first.actors
        with torch.no_grad():
            second.flat.vector.copy_(vector)
        if is_restored:
            second.algorithm.restore(state, tensors)
        got = [second.learn(batch_of(case, second.actors, seed=7), 2, progress=0.5), second.bits]
        assert (got[1] == wanted[1]) == is_restored, "without its state it would go elsewhere"
        if is_restored:
            assert untimed(got[0]) == untimed(wanted[0])
            after = second.algorithm.state()
            assert after[0] == first.algorithm.state()[0]
            assert all(torch.equal(after[1][name], tensor) for name, tensor in first.algorithm.state()[1].items())


def untimed(record: Any) -> dict[str, float]:
    return {name: value for name, value in record.items() if "/time/" not in name}


@every_algorithm
def test_a_fresh_state_can_be_restored(case: Case) -> None:
    first, second = Bench(case), Bench(case)
    second.algorithm.restore(*first.algorithm.state())
    first.learn(batch_of(case, first.actors))
    second.learn(batch_of(case, second.actors))
    assert first.bits == second.bits


@every_algorithm
def test_it_goes_back_to_its_beginning(case: Case) -> None:
    """Restored to a fresh state, one that has learned is as if it never had."""
    used, fresh = Bench(case), Bench(case)
    state, tensors = used.algorithm.state()
    used.learn(batch_of(case, used.actors, seed=5))
    with torch.no_grad():
        used.flat.vector.copy_(fresh.flat.vector)
    used.algorithm.restore(state, tensors)
    for bench in (used, fresh):
        bench.learn(batch_of(case, bench.actors))
    assert used.bits == fresh.bits


@every_algorithm
def test_its_state_is_what_a_checkpoint_holds(case: Case) -> None:
    """Counts by name; all other numbers are tensors. A checkpoint with anything else could not be read again."""
    bench = Bench(case)
    bench.learn(batch_of(case, bench.actors))
    state, tensors = bench.algorithm.state()
    mapping(whole())(state, "algorithm")
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())


# ------------------------------------------------------------------------------------------------------------- numerics


@every_algorithm
@pytest.mark.parametrize("what", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_is_refused_with_the_parameters_untouched(case: Case, what: float) -> None:
    bench = Bench(case, batch_size=N_STEPS * N_ENVS)
    bench.learn(batch_of(case, bench.actors, seed=1))
    batch, before = batch_of(case, bench.actors), bench.bits
    state, tensors = copy.deepcopy(bench.algorithm.state())
    t, env = np.argwhere(batch.valid)[0]
    batch.reward[t, env] = what
    with pytest.raises(NumericsError, match=r"the gradient is not finite .* the parameters are untouched"):
        bench.learn(batch, update=1)
    assert bench.bits == before
    assert bench.algorithm.state()[0] == state
    assert all(torch.equal(tensors[name], tensor) for name, tensor in bench.algorithm.state()[1].items())


@every_algorithm
def test_weights_that_have_diverged_are_named(case: Case) -> None:
    bench = Bench(case)
    batch = batch_of(case, bench.actors)
    with torch.no_grad():
        next(iter(bench.actors[0].parameters())).fill_(float("nan"))
    before = bench.bits
    with pytest.raises(NumericsError, match="the weights have diverged"):
        bench.learn(batch)
    assert bench.bits == before


# ------------------------------------------------------------------------------------------------------- options, words


@every_algorithm
def test_a_schedule_follows_the_progress(case: Case) -> None:
    rates = {}
    for progress in (1.0, 0.25, 0.0):
        bench = Bench(case, learning_rate="lin_1e-2")
        before = bench.bits
        rates[progress] = bench.learn(batch_of(case, bench.actors), progress=progress)["train/learning_rate"]
        assert (bench.bits == before) == (progress == 0), "a learning rate of 0 changes nothing"
    assert rates == {1.0: pytest.approx(1e-2), 0.25: pytest.approx(2.5e-3), 0.0: 0.0}


@every_algorithm
def test_frozen_parameters_stay_and_zero_grad_does_no_harm(case: Case) -> None:
    bench, calm = Bench(case), Bench(case)
    name, frozen = next(iter(bench.module.named_parameters()))
    frozen.requires_grad_(False)
    bench.module.zero_grad()
    kept = frozen.detach().clone()
    bench.learn(batch_of(case, bench.actors))
    calm.learn(batch_of(case, calm.actors))
    assert torch.equal(dict(bench.module.named_parameters())[name], kept)
    assert not torch.equal(dict(calm.module.named_parameters())[name], kept), "it would have moved"
    assert bench.bits != calm.bits


@every_algorithm
def test_it_says_in_a_few_words_how_it_learns_and_with_how_many_threads(case: Case) -> None:
    algorithm = Bench(case, learner_threads=3).algorithm
    assert algorithm.threads == 3
    assert str(case.config.batch_size) in algorithm.summary
    assert "gradients" in algorithm.summary
    assert "\n" not in algorithm.summary
    assert len(algorithm.summary) < 100
