"""Recurrent policies from the user's side: predict with a state, evaluation, saving, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import headrace as hr
from headrace.errors import CheckpointError, SchemaError, UsageError
from headrace.inference.devices import TorchDevice
from support.dict_envs import Signpost
from support.doctored import rehash
from support.memory_envs import Recall
from support.ppo_rows import spaces_named
from support.recurrent_policies import Counting, counting

SMALL: dict[str, Any] = {"n_envs": 4, "n_steps": 16, "batch_size": 32, "seed": 1, "topology": "inline"}
CENTRAL: dict[str, Any] = {"topology": "processes", "workers": 2, "inference": "central", "spares": 0}
NARROW = {"lstm_hidden_size": 8, "net_arch": [8]}


@pytest.fixture(scope="module")
def model() -> Any:
    with hr.PPO("MlpLstmPolicy", Recall, policy_kwargs=NARROW, **SMALL) as model:
        model.learn(128)
        yield model


def played(model: Any, *seeds: int) -> list[list[int]]:
    """The actions of a loop as sb3-contrib's documentation has it."""
    env, acted = Recall(), []
    state, starts = None, np.ones(1, bool)
    for seed in seeds:
        obs, _ = env.reset(seed=seed)
        acted.append([])
        is_over = False
        while not is_over:
            action, state = model.predict(obs[None], state=state, episode_start=starts, deterministic=True)
            acted[-1].append(int(action[0]))
            obs, _, terminated, truncated, _ = env.step(action[0])
            is_over = terminated or truncated
            starts = np.array([is_over])
    return acted


def test_predict_remembers_within_an_episode_and_forgets_at_its_start(model: Any) -> None:
    obs = np.eye(3, dtype=np.float32)[[0, 1]]
    first, after = model.predict(obs, deterministic=True)
    assert after.shape == (2, model.policy.state_size)
    assert after.any()
    _, again = model.predict(obs, state=after, deterministic=True)
    assert (again != after).any(1).all()
    _, fresh = model.predict(obs, state=again, episode_start=np.array([True, False]), deterministic=True)
    assert (fresh[0] == after[0]).all()
    assert (fresh[1] != after[1]).any()
    by_policy, of_policy = model.policy.predict(obs, state=again, episode_start=[True, False], deterministic=True)
    np.testing.assert_allclose(of_policy, fresh, atol=1e-6)
    assert played(model, 0, 1)[1] == played(model, 1)[0]
    assert len(by_policy) == len(first) == 2
    one, state = model.predict(obs[0], deterministic=True)
    assert one == first[0]
    assert (state[0] == after[0]).all()


@pytest.mark.parametrize(
    ("state", "starts", "said"),
    [
        (np.zeros((3, 5), np.float32), None, "expected the state that the last predict returned, 2 x 32"),
        ("no", None, "expected the state that the last predict returned"),
        (np.zeros((2, 32), np.float32), [True], "expected 2 flags as episode_start"),
    ],
)
def test_states_that_are_none(model: Any, state: Any, starts: Any, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        model.predict(np.zeros((2, 3), np.float32), state=state, episode_start=starts)


def test_sb3_calls_of_the_policy(model: Any) -> None:
    obs = torch.rand(4, 3)
    actions, values, log_prob, state = model.policy(obs, None, None, deterministic=True)
    again = model.policy.evaluate_actions(obs, actions)
    torch.testing.assert_close((again[0], again[1]), (values, log_prob))
    torch.testing.assert_close(model.policy.predict_values(obs, state, [True] * 4), values)
    distribution, after = model.policy.get_distribution(obs)
    torch.testing.assert_close((distribution.log_prob(actions), after), (log_prob, state))


def test_save_and_load_go_on_to_the_same_bits(model: Any, tmp_path: Path) -> None:
    model.save(tmp_path / "saved")
    with hr.PPO.load(tmp_path / "saved", trust=True, env=Recall) as loaded:
        assert played(loaded, 3, 4) == played(model, 3, 4)
        loaded.learn(128)
        with hr.PPO("MlpLstmPolicy", Recall, policy_kwargs=NARROW, **SMALL) as other:
            other.learn(256)
            assert other.run.hashes() == loaded.run.hashes()


def test_a_checkpoint_with_another_memory_is_refused(tmp_path: Path) -> None:
    with hr.PPO("MlpGruPolicy", Recall, policy_kwargs=NARROW, **SMALL) as model:
        model.learn(64)
        model.save(tmp_path / "saved")
    path = tmp_path / "saved" / "episodes.safetensors"
    arrays = load_file(path)
    arrays["last_/state"] = arrays["last_/state"][:, :1].copy()
    save_file(arrays, path)
    rehash(tmp_path / "saved")
    with pytest.raises((SchemaError, CheckpointError), match="what the policy remembers"):
        hr.PPO.load(tmp_path / "saved", trust=True, env=Recall)


def images() -> gym.Env[Any, Any]:
    space = gym.spaces.Box(0, 255, (40, 40, 1), np.uint8)
    return gym.wrappers.TransformObservation(Recall(), lambda obs: np.full(space.shape, 9, np.uint8), space)


@pytest.mark.parametrize(
    ("policy", "env"), [("CnnLstmPolicy", images), ("CnnGruPolicy", images), ("MultiInputLstmPolicy", Signpost)]
)
def test_every_extractor(policy: str, env: Any) -> None:
    with hr.PPO(policy, env, policy_kwargs={"lstm_hidden_size": 8}, **SMALL | {"n_envs": 2}) as model:
        assert model.run.update(64).record["headrace/first_ratio_error"] < 1e-5
        mean, _ = hr.evaluate_policy(model, n_eval_episodes=2)
        assert np.isfinite(mean)


@pytest.mark.parametrize(
    ("policy", "env", "options", "said"),
    [
        ("CnnLstmPolicy", Recall, {}, "CnnLstmPolicy: expected observations of uint8 images.*use MlpLstmPolicy"),
        ("MlpGruPolicy", Signpost, {}, "MlpGruPolicy: expected observations of one array.*use MultiInputGruPolicy"),
        ("MlpLstmPolicy", Recall, {"shared_lstm": True}, "shared_lstm=True: .*enable_critic_lstm=False"),
        ("MlpLstmPolicy", Recall, {"lstm_hidden_size": 0}, "lstm_hidden_size: expected a whole number of at least 1"),
        ("MlpLstmPolicy", Recall, {"lstm_kwargs": {"dropout": 0.5}}, "lstm_kwargs"),
        ("MlpLstmPolcy", Recall, {}, "did you mean MlpLstmPolicy"),
    ],
)
def test_what_is_refused(policy: str, env: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        hr.PPO(policy, env, policy_kwargs=options, **SMALL)


def test_export_and_the_closed_form_are_refused_by_name(model: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gradients=closed_form: expected MlpPolicy .*got MlpLstmPolicy; use auto"):
        hr.PPO("MlpLstmPolicy", Recall, gradients="closed_form", **SMALL)
    with pytest.raises(UsageError, match="export: expected a policy without a memory"):
        hr.export_policy(model, tmp_path / "policy.onnx")


class Forgetful(Counting):
    def act(self, obs: Any, noise: Any, state: Any) -> Any:
        return super().act(obs, noise, state)[0]


class Shrinking(Counting):
    def evaluate(self, obs: Any, actions: Any, state: Any) -> Any:
        said, after = super().evaluate(obs, actions, state)
        return said, after[:, :3]


class Idle(Counting):
    """Acting leaves out what the critic alone needs."""

    def act(self, obs: Any, noise: Any, state: Any) -> Any:
        actions, after = super().act(obs, noise, state)
        return actions, torch.cat([after[:, :8], state[:, 8:]], -1)


class Dishonest(Counting):
    def act(self, obs: Any, noise: Any, state: Any) -> Any:
        return super().act(obs, None, state)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Forgetful, "Forgetful.act raised TypeError: act: expected two results"),
        (Shrinking, r"Shrinking.evaluate raised TypeError: evaluate: expected a state of float32 and shape \(8, 16\)"),
        (Idle, "Idle: act and evaluate remember different things.*the states that they return differ by up to"),
        (Dishonest, "Dishonest: act and evaluate do not belong together"),
    ],
)
def test_a_policy_of_the_users_own_that_is_none(kind: type[Counting], said: str) -> None:
    spaces = spaces_named("vector", "discrete")
    env = {"observation": "vector", "action": "discrete"}
    with pytest.raises(UsageError, match=said):
        hr.PPO(kind(*spaces), "support.bit_envs:Probe", env_kwargs=env, **SMALL)
    with hr.PPO(counting(*spaces), "support.bit_envs:Probe", env_kwargs=env, **SMALL) as model:
        model.learn(64)


def test_a_collector_gives_completed_rollouts_with_the_state_before_them() -> None:
    with hr.Collector(Recall, "MlpLstmPolicy", n_envs=3, n_steps=7, seed=1, policy_kwargs=NARROW) as rollouts:
        first, second = next(rollouts).copy(), next(rollouts).copy()
    assert first.state is not None
    assert second.state is not None
    assert not first.state.any()
    assert (second.state.any(1) == ~first.terminated[-1]).all()
    assert np.isfinite(first.log_prob).all()


@pytest.mark.parametrize("place", [{"topology": "inline"}, CENTRAL], ids=["local", "central"])
def test_inference_on_a_device(place: dict[str, Any], model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the way to a CUDA device, with the CPU in its place; and on an emulated one, whose bits are the CPU's."""
    options: dict[str, Any] = {**SMALL, **place, "policy_kwargs": NARROW}
    with hr.PPO("MlpLstmPolicy", Recall, **options, inference_device="emulated:1us+0us") as other:
        other.learn(128)
        assert other.run.hashes() == model.run.hashes()
    monkeypatch.setattr("headrace.build.open_devices", lambda *_: (TorchDevice("cpu"),))
    with hr.PPO("MlpLstmPolicy", Recall, **options, inference_device="cuda") as other:
        assert other.run.update(128).record["headrace/first_ratio_error"] < 1e-5
        assert other.run.update(128).record["headrace/first_ratio_error"] < 1e-5


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"inference_device=cuda: torch finds no CUDA.*use .*device=cpu"):
        hr.Collector("CartPole-v1", "MlpLstmPolicy", n_envs=2, n_steps=4, topology="inline", inference_device="cuda")
