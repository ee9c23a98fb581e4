"""A policy outside of training: SB3's calls of it, torch.jit.trace, and ONNX files held against predict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor, nn

import headrace as hr
from headrace.cli.main import main
from headrace.envs.actions import sender
from headrace.errors import HeadraceError, SchemaError, UsageError
from headrace.inference import onnx_file
from headrace.memory.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, made_up, shape_of
from headrace.policies.actor_critic import ActorCritic, as_sent
from headrace.policies.config import PolicyConfig
from headrace.policies.networks import build_policy
from support.doctored import doctor, names_env
from support.faulty_envs import Steady
from support.torch_policy import TorchPolicy

VECTOR = Box((4,), "float32", (-3.0,), (3.0,))
IMAGE = Box((48, 40, 3), "uint8", (0.0,), (255.0,))
ACTIONS: dict[str, Space] = {
    "discrete": Discrete(3, start=2),
    "choices": MultiDiscrete((3, 2), (2,), (1, 0)),
    "bits": MultiBinary((3,)),
    "box": Box((2,), "float32", (-0.5, -2.0), (0.5, 2.0)),
}
SMALL: dict[str, Any] = {"n_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 2, "seed": 1, "topology": "inline"}


class Sized(gym.Env[Any, Any]):
    """Any spaces; actions are held against theirs."""

    def __init__(self, observation: gym_spaces.Space[Any], action: gym_spaces.Space[Any]) -> None:
        self.observation_space, self.action_space, self._left = observation, action, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self._left = 6
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self._left -= 1
        return self.observation_space.sample(), 1.0, self._left == 0, False, {}


def policy(action: str, observation: Space = VECTOR) -> Any:
    """One whose actions differ from row to row."""
    module = build_policy(PolicyConfig("auto"), observation, ACTIONS[action], 0)
    with torch.no_grad():
        for head in module.actor[-1:] if isinstance(module.actor, nn.ModuleList) else [module.actor]:
            head.weight.mul_(50.0)
    return module


def rows(observation: Space, count: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(made_up(observation, np.random.default_rng(seed), count))


@pytest.mark.parametrize("observation", [VECTOR, IMAGE], ids=["vector", "image"])
@pytest.mark.parametrize("action", ACTIONS)
def test_calls_of_a_policy_as_in_sb3(action: str, observation: Space) -> None:
    """forward is sampled unless it is asked for the best actions; all calls speak of the same distribution."""
    module, obs, space = policy(action, observation), rows(observation, 64), ACTIONS[action]
    torch.manual_seed(1)
    actions, values, log_prob = module(obs)
    assert (actions.shape, values.shape, log_prob.shape) == ((64, *shape_of(space)), (64, 1), (64,))
    again, same_log_prob, entropy = module.evaluate_actions(obs, actions)
    assert torch.equal(again, values)
    assert torch.allclose(same_log_prob, log_prob)
    assert torch.equal(module.predict_values(obs), values)
    assert not torch.equal(module(obs)[0], actions)
    torch.manual_seed(1)
    assert torch.equal(module(obs)[0], actions)
    best = module(obs, deterministic=True)[0]
    assert torch.equal(best, module(obs, deterministic=True)[0])
    assert torch.equal(best, module.act(obs, None))

    sent, state = module.predict(obs.numpy(), deterministic=True)
    assert state is None
    assert np.array_equal(sent, sender(space)(best.detach().numpy().astype(space.dtype)))
    assert sent.dtype == space.dtype
    one, _ = module.predict(obs[0].numpy(), deterministic=True)
    assert one.shape == shape_of(space)
    with pytest.raises(SchemaError, match="policy: expected observations of shape"):
        module.predict(np.zeros((2, 9), np.float32))
    tensor, is_batch = module.obs_to_tensor(obs[0].numpy())
    assert (tensor.shape, is_batch) == ((1, *shape_of(observation)), False)

    drawn = module.get_distribution(obs)
    assert torch.equal(drawn.mode(), drawn.get_actions(deterministic=True))
    assert torch.allclose(drawn.log_prob(actions), log_prob)
    assert torch.allclose(drawn.entropy(), entropy)
    torchs = drawn.distribution if isinstance(drawn.distribution, list) else [drawn.distribution]
    flat = actions.reshape(64, -1)
    columns = [flat[:, index] for index in range(len(torchs))] if action in ("choices", "discrete") else [flat.float()]
    total = sum(one.log_prob(column).reshape(64, -1).sum(-1) for one, column in zip(torchs, columns, strict=True))
    assert torch.allclose(total, log_prob, atol=1e-4)
    module.set_training_mode(False)
    assert not module.training


def test_samples_of_forward_come_as_often_as_they_should() -> None:
    for action in ("discrete", "choices", "bits"):
        module = policy(action)
        obs = rows(VECTOR, 1).expand(20_000, -1)
        actions, _, log_prob = module(obs)
        for one in torch.unique(actions, dim=0):
            seen = (actions == one).reshape(len(obs), -1).all(-1)
            assert abs(seen.float().mean() - log_prob[seen][0].exp()) < 0.02
    mean, std = policy("box")(rows(VECTOR, 1).expand(20_000, -1))[0].detach().std(0), 1.0
    assert torch.allclose(mean, torch.full((2,), std), atol=0.5)


class Best(nn.Module):
    """As in SB3's guide to exports."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.policy = module

    def forward(self, obs: Tensor) -> Any:
        return self.policy(obs, deterministic=True)


@pytest.mark.parametrize("observation", [VECTOR, IMAGE], ids=["vector", "image"])
@pytest.mark.parametrize("activation", ["tanh", "elu"])
def test_a_traced_policy(activation: Any, observation: Space) -> None:
    """For other numbers of rows than it was traced with."""
    config = PolicyConfig("auto", net_arch=(33,), activation=activation)
    module = build_policy(config, observation, ACTIONS["discrete"], 0)
    with pytest.warns(DeprecationWarning, match="torch.jit.trace"):
        traced = torch.jit.trace(Best(module).eval(), rows(observation, 5))  # type: ignore[no-untyped-call]
    for count in (1, 9, 64):
        obs = rows(observation, count, seed=count)
        for got, want in zip(traced(obs), module(obs, deterministic=True), strict=True):
            assert torch.allclose(got.float(), want.float(), atol=1e-5)


# ---------------------------------------------------------------------------------------------------------------- ONNX


MODELS: dict[str, tuple[gym_spaces.Space[Any], gym_spaces.Space[Any], dict[str, Any]]] = {
    "discrete": (gym_spaces.Box(-3, 3, (4,)), gym_spaces.Discrete(3, start=2), {}),
    "choices": (gym_spaces.Discrete(5), gym_spaces.MultiDiscrete([3, 2]), {"activation_fn": nn.GELU}),
    "box": (
        gym_spaces.MultiDiscrete([3, 2]),
        gym_spaces.Box(-0.01, 0.01, (2, 2)),
        {"net_arch": {"pi": [9], "vf": [5]}},
    ),
    "image": (gym_spaces.Box(0, 255, (40, 48, 3), np.uint8), gym_spaces.Discrete(4), {"net_arch": [20]}),
}


@pytest.mark.parametrize("name", MODELS)
def test_an_onnx_file_does_what_predict_does(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a model, and from its checkpoint by the command line, for any number of observations."""
    observation, action, kwargs = MODELS[name]
    env = hr.EnvSpec(lambda: Sized(observation, action))
    with hr.PPO("auto", env, policy_kwargs=kwargs, learning_rate=0.05, **SMALL) as model:
        model.learn(64)
        model.save(tmp_path / "saved")
        assert hr.export_policy(model, tmp_path / "a.onnx") == tmp_path / "a.onnx"
        assert main(["export", str(tmp_path / "saved"), "--to", str(tmp_path / "b.onnx")]) == 0
        assert "checked with onnxruntime" in capsys.readouterr().out
        for file in ("a.onnx", "b.onnx"):
            session = onnxruntime.InferenceSession(tmp_path / file)
            for count in (1, 7, 100):
                obs = np.stack([observation.sample() for _ in range(count)])
                want, _ = model.predict(obs, deterministic=True)
                got = session.run(None, {"observation": obs})[0]
                assert (got.shape, got.dtype) == (want.shape, want.dtype)
                assert np.allclose(got, want, atol=1e-5)
            noted = json.loads(session.get_modelmeta().custom_metadata_map["headrace"])
            assert noted["steps"] == 64
    assert not list(tmp_path.glob("*.part"))


def test_nothing_that_a_checkpoint_names_is_imported(tmp_path: Path) -> None:
    """Not its environment either: a checkpoint from elsewhere needs no consent, and gets none."""
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        model.save(tmp_path / "saved")
    doctored = doctor(tmp_path / "saved", tmp_path / "doctored", names_env(env="no_such_module:Env"))
    hr.export_policy(doctored, tmp_path / "policy.onnx")
    bad = doctor(
        tmp_path / "saved", tmp_path / "bad", lambda state: state["config"]["policy"].update(net_arch=[10**6, 10**6])
    )
    with pytest.raises(HeadraceError, match=r"config.policy.net_arch: expected layers of"):
        hr.export_policy(bad, tmp_path / "bad.onnx")
    assert not (tmp_path / "bad.onnx").exists()


def test_a_policy_of_ones_own(tmp_path: Path) -> None:
    with hr.PPO(TorchPolicy(), "CartPole-v1", **SMALL) as model:
        model.learn(32)
        model.save(tmp_path / "saved")
        want, _ = model.predict(rows(VECTOR, 50).numpy(), deterministic=True)
    with pytest.raises(UsageError, match=r"a module of its own \(TorchPolicy\); pass policy=..., or --policy"):
        hr.export_policy(tmp_path / "saved", tmp_path / "policy.onnx")
    name = "support.torch_policy:TorchPolicy"
    assert main(["export", str(tmp_path / "saved"), "--to", str(tmp_path / "policy.onnx"), "--policy", name]) == 0
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    assert np.array_equal(session.run(None, {"observation": rows(VECTOR, 50).numpy()})[0], want)
    with pytest.raises(HeadraceError, match="do not fit this policy"):
        hr.export_policy(tmp_path / "saved", tmp_path / "policy.onnx", policy=policy("box"))


def test_what_can_not_be_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hr.PPO("MlpPolicy", Steady, **SMALL) as model:
        with pytest.raises(UsageError, match=r"ends in .onnx, got '.*policy.pt'"):
            hr.export_policy(model, tmp_path / "policy.pt")
        with pytest.raises(UsageError, match="in an existing directory"):
            hr.export_policy(model, tmp_path / "none" / "policy.onnx")
    assert main(["export", str(tmp_path / "none"), "--to", "policy.onnx"]) != 0
    assert "Traceback" not in capsys.readouterr().err
    assert main(["export", str(tmp_path), "--to", "p.onnx", "--policy", "support:Nothing"]) == 2
    assert "--policy support:Nothing: expected module:attribute" in capsys.readouterr().err


def test_a_file_that_does_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, wide = policy("box"), Box((2,), "float32", (-99.0,), (99.0,))

    def another(acting: nn.Module, obs: Tensor) -> Any:
        changed = onnx_file.Acting(policy("box"), wide)
        changed.policy.actor[0].weight.data.mul_(1.5)  # type: ignore[union-attr, index, operator]
        return exported(changed, obs)

    exported = onnx_file._exported
    monkeypatch.setattr(onnx_file, "_exported", another)
    with pytest.raises(HeadraceError, match="other actions than the policy; the file is not written"):
        onnx_file.write_onnx(module, VECTOR, wide, tmp_path / "policy.onnx", {})
    assert not list(tmp_path.iterdir())


def test_actions_are_sent_as_training_sends_them() -> None:
    rng = np.random.default_rng(0)
    for space in ACTIONS.values():
        drawn = made_up(space, rng, 50, from_zero=True) if not isinstance(space, Box) else rng.normal(0, 2, (50, 2))
        drawn = drawn.astype(space.dtype)
        sent = as_sent(space, torch.from_numpy(drawn)).numpy()
        assert np.array_equal(sent, sender(space)(drawn))
        assert sent.dtype == space.dtype
    assert issubclass(type(policy("box")), ActorCritic)
