"""Learning from sequences, held against a slow transcription: one environment, one row, one version at a time."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.learning.algorithm import Moment
from headrace.learning.assembly import complete
from headrace.learning.batch import Batch
from headrace.learning.config import ImpalaConfig, PpoConfig
from headrace.learning.ppo_loss import Coefficients, Rows, ppo_loss
from headrace.learning.recurrent_impala import RecurrentImpala
from headrace.learning.recurrent_ppo import RecurrentPpo
from headrace.learning.sequences import complete_sequences
from headrace.policies.policy import Evaluation
from headrace.weights.flat import FlatParameters
from support.pairwise import Cell, matrix
from support.ppo_rows import slow_vtrace, spaces_named
from support.recurrent_policies import counting, recurrent_batch, recurrent_policy

T, N = 14, 5
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("MlpLstmPolicy", {}),
    "gru": ("MlpGruPolicy", {"n_lstm_layers": 2}),
    "shared": ("MlpLstmPolicy", {"shared_lstm": True, "enable_critic_lstm": False}),
    "critic without": ("MlpLstmPolicy", {"enable_critic_lstm": False}),
    "own": ("own", {}),
    "own, of actions": ("doing", {}),
    "masked": ("MlpLstmPolicy", {"action_masks": True}),
}
OBSERVATIONS = ("vector", "discrete")
VERSIONS = {
    "one": lambda: np.zeros((T, N), np.int64),
    "per slab": lambda: np.broadcast_to(np.array([0, 0, 1, 1, 2]), (T, N)).copy(),
    "within slabs": lambda: np.stack([np.r_[np.zeros(t), np.ones(T - t)] for t in (3, 3, 9, 14, 1)], 1).astype(int),
}


def row(leaf: Any, *index: int) -> Any:
    if isinstance(leaf, dict):
        return {name: row(one, *index) for name, one in leaf.items()}
    return torch.from_numpy(leaf[index][None].copy())


def walked(batch: Batch, modules: dict[int, Any], states: np.ndarray | None = None) -> dict[str, Any]:
    """What a policy says of a batch by definition: the state goes from row to row, and is 0 after an end."""
    assert batch.state is not None
    said: dict[tuple[int, int], Evaluation] = {}
    last, bootstrap = np.zeros(N), np.zeros((T, N))
    finals = {int(at): i for i, at in enumerate(batch.final_row)}
    for env in range(N):
        state = row(batch.state, env)
        for t in range(T):
            module = modules[int(batch.version[t, env])]
            if t and (batch.terminated | batch.truncated | ~batch.valid)[t - 1, env]:
                state = torch.zeros_like(state)
            if states is not None:
                states[t, env] = state.detach()
            said[t, env], state = module.evaluate(row(batch.obs, t, env), row(batch.action, t, env), state)
            if t * N + env in finals:
                final = row(batch.final_obs, finals[t * N + env])
                bootstrap[t, env] = float(module.value(final, state).detach())
        last[env] = float(module.value(row(batch.last_obs, env), state).detach())
    return {"said": said, "last": last, "bootstrap": bootstrap}


@pytest.mark.parametrize(
    "cell", matrix({"policy": tuple(POLICIES), "observation": OBSERVATIONS, "versions": tuple(VERSIONS)})
)
def test_every_row_is_completed_with_the_state_and_the_version_that_acted(cell: Cell) -> None:
    name, options = POLICIES[cell["policy"]]
    modules = {i: recurrent_policy(name, cell["observation"], "discrete", 3 + i, **options) for i in range(3)}
    action = spaces_named(cell["observation"], "discrete")[1]
    batch = recurrent_batch(modules, VERSIONS[cell["versions"]](), cell["observation"], action, seed=4)
    assert (~batch.valid).any()
    assert len(batch.final_row)
    if cell["versions"] != "one":
        batch.chunk_state = np.full((3, N, modules[0].state_size), np.nan, np.float32)
    replica = copy.deepcopy(modules[0])  # as the store's: one module, loaded with one version after the other

    def policy_of(version: int) -> Any:
        replica.load_state_dict(modules[version].state_dict())
        return replica

    complete(batch, policy_of)
    states = np.zeros((T, N, modules[0].state_size))
    with torch.no_grad():
        want = walked(batch, modules, states)
    for (t, env), said in want["said"].items():
        assert batch.log_prob[t, env] == pytest.approx(float(said.log_prob), abs=1e-5)
        assert batch.value[t, env] == pytest.approx(float(said.value), abs=1e-5)
    np.testing.assert_allclose(batch.last_value, want["last"], atol=1e-5)
    np.testing.assert_allclose(batch.bootstrap_value, want["bootstrap"], atol=1e-5)
    if batch.chunk_state is not None:
        ended = (batch.terminated | batch.truncated | ~batch.valid)[[4, 9]]
        np.testing.assert_allclose(batch.chunk_state[0], states[0], atol=1e-5)
        np.testing.assert_allclose(np.where(ended[..., None], 0.0, batch.chunk_state[1:]), states[[5, 10]], atol=1e-5)


def loss_by_definition(ppo: RecurrentPpo, batch: Batch, module: Any, targets: Any, chunk: int, c: Coefficients) -> Any:
    """The whole batch as one minibatch, each chunk of each environment walked row by row."""
    assert batch.chunk_state is not None
    said, columns = [], []
    ends = batch.terminated | batch.truncated | ~batch.valid
    for env in range(N):
        for t in range(T):
            if t % chunk == 0:
                state = torch.from_numpy(batch.chunk_state[t // chunk, env][None])
            if t and ends[t - 1, env]:
                state = torch.zeros_like(state)
            evaluation, state = module.evaluate(row(batch.obs, t, env), row(batch.action, t, env), state)
            if batch.valid[t, env]:
                said.append(evaluation)
                columns.append((targets.log_prob, batch.value, targets.advantage, targets.returns, targets.weight))
                columns[-1] = tuple(float(column[t, env]) for column in columns[-1])
    numbers = [torch.tensor(column, dtype=torch.float32) for column in zip(*columns, strict=True)]
    rows = Rows(torch.zeros(0), torch.zeros(0), *numbers)
    advantage = (rows.advantage - rows.advantage.mean()) / (rows.advantage.std() + 1e-8) * rows.weight
    now = Evaluation(*(torch.cat(field) for field in zip(*said, strict=True)))
    return ppo_loss(now, rows, advantage, len(advantage), c)


@pytest.mark.parametrize("cell", matrix({"policy": tuple(POLICIES), "chunk": (T, 5), "action": ("discrete", "box")}))
def test_the_loss_and_its_gradients_are_those_of_a_walk(cell: Cell) -> None:
    name, options = POLICIES[cell["policy"]]
    if cell["policy"].startswith(("own", "masked")) and cell["action"] == "box":
        pytest.skip("masks, and the user's policy of these tests, are for choices")
    module = recurrent_policy(name, "vector", cell["action"], 3, **options)
    action = spaces_named("vector", cell["action"])[1]
    batch = recurrent_batch({0: module}, np.zeros((T, N), np.int64), "vector", action, seed=4)
    flat = FlatParameters(module)
    ppo = RecurrentPpo(flat, PpoConfig(batch_size=T * N if cell["chunk"] == T else 6), 0)
    batch.chunk_state = np.zeros((-(-T // cell["chunk"]), N, module.state_size), np.float32)
    complete_sequences(batch, lambda _: module)
    rng = np.random.default_rng(1)
    batch.log_prob += rng.normal(0, 0.2, batch.log_prob.shape).astype(np.float32)  # after some minibatches
    targets = ppo.targets(batch, 0)
    targets = targets._replace(weight=rng.uniform(0.5, 1.0, (T, N)).astype(np.float32))
    c = Coefficients(0.2, 0.3, 0.01, 0.5, True)
    chunks, units, _ = ppo._picked_from(batch, targets, ppo._config.batch_size, flat.vector.device)
    minibatch = ppo._gradients.minibatch(chunks, torch.from_numpy(units), c)
    got = torch.empty_like(flat.gradient)
    terms = ppo._gradients(minibatch, 0, len(units), got)
    half, rest = torch.empty_like(got), torch.empty_like(got)
    ppo._gradients(minibatch, 0, 2, half)
    ppo._gradients(minibatch, 2, len(units), rest)
    flat.attach_gradients(flat.gradient)
    flat.gradient.zero_()
    loss, want = loss_by_definition(ppo, batch, module, targets, cell["chunk"], c)
    loss.backward()
    np.testing.assert_allclose(terms, want, rtol=1e-4, atol=1e-5)
    assert float(flat.gradient.abs().max()) > 1e-2
    torch.testing.assert_close(got, flat.gradient, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(half + rest, got, rtol=1e-4, atol=1e-5)
    if cell["policy"] == "masked":  # the last choice is never allowed
        parts = flat.views(got)
        head = max(name for name in parts if name.startswith("policy.actor."))
        for part in (parts[head], parts[head.replace("weight", "bias")]):
            assert (part[-1] == 0).all()
            assert (part[:-1] != 0).any()


@pytest.mark.parametrize("name", ["lstm", "gru", "masked"])
def test_impalas_gradients_are_those_of_a_walk(name: str) -> None:
    """V-trace by its definition, from what the version that acted and the present one say along each episode."""
    policy, options = POLICIES[name]
    modules = {i: recurrent_policy(policy, "vector", "discrete", 3 + i, **options) for i in range(2)}
    action = spaces_named("vector", "discrete")[1]
    batch = recurrent_batch(modules, VERSIONS["within slabs"](), "vector", action, seed=4)
    config = ImpalaConfig(batch_size=T * N, gamma=0.97, gae_lambda=0.9, ent_coef=0.02)
    flat = FlatParameters(copy.deepcopy(modules[1]))
    RecurrentImpala(flat, config, 0).learn(batch, Moment(0, 1, True, 1.0, lambda version: modules[version]))
    with torch.no_grad():
        acted = walked(batch, modules)["said"]
    now = walked(replace(batch, version=np.ones((T, N), np.int64)), modules)
    log_ratio, value = np.zeros((T, N)), np.zeros((T, N))
    for (t, env), said in now["said"].items():
        log_ratio[t, env] = float(said.log_prob.detach()) - float(acted[t, env].log_prob)
        value[t, env] = float(said.value.detach())
    flags = batch.terminated, batch.truncated, batch.valid
    advantage, returns = slow_vtrace(
        batch.reward, value, now["bootstrap"], *flags, now["last"], config.gamma, config.gae_lambda, log_ratio,
        config.late_clip,
    )  # fmt: skip
    rows = [(t, env) for t, env in now["said"] if batch.valid[t, env]]
    log_prob, entropy, values = (torch.cat(field) for field in zip(*(now["said"][at] for at in rows), strict=True))
    gains, targets = (torch.tensor([column[at] for at in rows], dtype=torch.float32) for column in (advantage, returns))
    loss = -(gains * log_prob).mean() + config.vf_coef * (targets - values).square().mean()
    (loss - float(config.ent_coef) * entropy.mean()).backward()
    want = torch.cat([parameter.grad.reshape(-1) for parameter in modules[1].parameters()])
    assert float(want.abs().max()) > 1e-2
    torch.testing.assert_close(flat.gradient, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("what", ["state", "starts", "bootstrap"])
def test_what_the_walk_would_notice(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that is not handed on, ends that are not looked at, or the reset state in a bootstrap: off by far."""
    module = recurrent_policy("MlpLstmPolicy", "vector", "discrete", 3)
    action = spaces_named("vector", "discrete")[1]
    batch = recurrent_batch({0: module}, np.zeros((T, N), np.int64), "vector", action, seed=4)
    with torch.no_grad():
        want = walked(batch, {0: module})
    given = batch
    if what == "state":
        assert batch.state is not None
        given = replace(batch, state=np.zeros_like(batch.state))
    elif what == "starts":
        monkeypatch.setattr("headrace.learning.sequences.starts_of", lambda batch: np.zeros_like(batch.valid))
    else:
        monkeypatch.setattr(type(module), "follow", lambda *_: torch.zeros(T, N, module.state_size))
    complete_sequences(given, lambda _: module)
    logs = np.array([[float(want["said"][t, env].log_prob) for env in range(N)] for t in range(T)])
    off = max(np.abs(given.log_prob - logs).max(), np.abs(given.bootstrap_value - want["bootstrap"]).max())
    assert off > 1e-2


FIRST_RATIO = {
    "place": ("inline", "threads", "late", "processes", "central"),
    "policy": tuple(name for name in POLICIES if name != "own, of actions"),
    "n_steps": (8, 40),
    "norm": (False, True),
}
PLACES: dict[str, dict[str, Any]] = {
    "late": {"topology": "threads", "max_lag": 1, "pick_up_rows": 2},
    "processes": {"topology": "processes", "workers": 2, "spares": 0},
    "central": {"topology": "processes", "workers": 2, "spares": 0, "inference": "central"},
}


@pytest.mark.parametrize("cell", matrix(FIRST_RATIO))
def test_first_ratio_is_one(cell: Cell) -> None:
    """Of the first minibatch of every update, in chunks or whole rollouts; also if what is late is weighted.

    With normalisation, actors saw the statistics of their version, which the learner must use, too.
    """
    name, options = POLICIES[cell["policy"]]
    policy: Any = name
    if name == "own":
        policy = counting(*spaces_named("vector", "discrete"))
    env: dict[str, Any] = {"env": "support.bit_envs:Cards", "action_masks": True}
    if cell["policy"] != "masked":
        kwargs = {"observation": "vector", "action": "discrete"}
        env = {"env": "support.bit_envs:Probe", "env_kwargs": kwargs}
        env["policy_kwargs"] = {} if name == "own" else {"lstm_hidden_size": 8, **options}
    place = PLACES.get(cell["place"], {"topology": cell["place"]})
    norm = {"norm_obs": cell["norm"], "norm_reward": cell["norm"]}
    with hr.PPO(
        policy, **env, n_envs=6, n_steps=cell["n_steps"], batch_size=24, n_epochs=2, learning_rate=3e-3, seed=5,
        **place, **norm,
    ) as model:  # fmt: skip
        before = model.run.hashes()
        errors = [model.run.update(10**6).record["headrace/first_ratio_error"] for _ in range(4)]
        assert model.run.hashes() != before
    assert max(errors) < 1e-5
