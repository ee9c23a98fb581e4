"""Normalisation of observations and rewards: what VecNormalize computes, from raw rollouts; saved statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import headrace as hr
from headrace.cli.main import main
from headrace.errors import CheckpointError, UsageError
from headrace.inference.local import LocalInference
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.normalization import EPSILON, NormalizedMlpAct, NormalizedPolicy, merged, normalizers
from support.dict_envs import Signpost
from support.doctored import doctor
from support.ppo_rows import spaces_named
from support.recurrent_policies import counting
from support.toy_policies import own_policy

SMALL: dict[str, Any] = {"n_envs": 3, "n_steps": 16, "batch_size": 24, "n_epochs": 2, "seed": 1, "topology": "inline"}


class Steps:
    """Keeps copies of the batches that a run learned from, as the slabs hold them."""

    def __init__(self, model: hr.PPO) -> None:
        self.batches: list[Any] = []
        collect = model.run.source.collect

        def kept() -> Any:
            batch = collect()
            self.batches.append(batch.copy())
            return batch

        model.run.source.collect = kept  # type: ignore[method-assign]


class Patchy(gym.Env[Any, Any]):
    """Rewards of every size, episodes of different lengths, both kinds of end."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self._t = 0

    def _obs(self) -> Any:
        return self.np_random.normal([5.0, -300.0, 0.0], [0.1, 50.0, 0.0])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        reward = float(self.np_random.normal(3.0, 20.0))
        return self._obs(), reward, bool(self.np_random.random() < 0.1), self._t >= 12, {}


def test_statistics_are_those_of_all_rows_seen() -> None:
    """Against numpy over everything at once; raw slabs; version 0 acts with mean 0 and variance 1."""
    with hr.PPO("MlpPolicy", Patchy, **SMALL, norm_obs=True) as model:
        steps = Steps(model)
        (one,) = normalizers(model.policy)
        assert [tensor.tolist() for tensor in one.statistics("obs")] == [[0.0] * 3, [1.0] * 3]
        for _ in range(3):
            model.run.update(10**6)
        rows = np.concatenate([batch.obs[batch.valid] for batch in steps.batches])
        mean, var = (tensor.numpy() for tensor in one.statistics("obs"))
        assert rows[:, 1].mean() < -200, "rollouts hold raw observations"
        np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(var, rows.var(0), rtol=1e-4, atol=1e-6)
        assert int(one.count) == len(rows) == model.num_timesteps
        raw = torch.from_numpy(rows)
        want = np.clip((rows - mean) / np.sqrt(var + EPSILON), -10, 10)
        np.testing.assert_allclose(one(raw).numpy(), want, rtol=1e-4, atol=1e-4)


def test_a_critic_with_an_extractor_of_its_own_sees_normalised_observations() -> None:
    kwargs = {"share_features_extractor": False}
    with hr.PPO("MultiInputPolicy", Signpost, **SMALL, norm_obs=True, policy_kwargs=kwargs) as model:
        assert model.run.update(10**6).record["headrace/first_ratio_error"] < 1e-5
        assert len(normalizers(model.policy)) == 2
        obs = {"position": torch.rand(5, 2), "goal": torch.zeros(5, 1, Signpost.CELLS, 1, dtype=torch.uint8)}
        policy: Any = model.policy
        torch.testing.assert_close(policy.encode_vf(obs), policy.encode(obs))
        assert "goal flat 7, position flat 2; one extractor each" in model.plan()


def test_a_policy_of_the_users_own_that_remembers() -> None:
    env = {"observation": "vector", "action": "discrete"}
    policy = counting(*spaces_named("vector", "discrete"))
    with hr.PPO(policy, "support.bit_envs:Probe", env_kwargs=env, **SMALL, norm_obs=True) as model:
        for _ in range(2):
            assert model.run.update(10**6).record["headrace/first_ratio_error"] < 1e-5
        assert np.isfinite(hr.evaluate_policy(model, n_eval_episodes=2)).all()


def test_rewards_as_vec_normalize_scales_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain loop over environments and steps; users see raw returns."""
    with hr.PPO("MlpPolicy", Patchy, **SMALL, norm_reward=True, gamma=0.9, clip_reward=0.8) as model:
        steps, learned, returns = Steps(model), [], []
        learn = model.run.algorithm._algorithm.learn
        monkeypatch.setattr(
            model.run.algorithm._algorithm, "learn",
            lambda batch, moment: learned.append(batch.reward.copy()) or learn(batch, moment),
        )  # fmt: skip
        for _ in range(4):
            returns += [one.total_reward for one in model.run.update(10**6).harvest.finished]
    running, seen = [0.0] * 3, []
    for batch, got in zip(steps.batches, learned, strict=True):
        for t in range(batch.n_steps):
            for env in range(3):
                running[env] = running[env] * 0.9 + float(batch.reward[t, env])
                seen.append(running[env])
                if batch.terminated[t, env] or batch.truncated[t, env]:
                    running[env] = 0.0
        want = np.clip(batch.reward / np.sqrt(np.var(seen) + EPSILON), -0.8, 0.8)
        np.testing.assert_allclose(got, want, rtol=1e-5)
        assert (np.abs(got) == np.float32(0.8)).any()
    assert returns
    assert np.abs(returns).max() > 20


def test_merging_is_like_one_set() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(7, 2, (n, 4)) for n in (1, 30, 500)]
    mean, var, count = np.zeros(4), np.ones(4), 0
    for part in parts:
        mean, var = merged(mean, var, count, part.mean(0), part.var(0), len(part))
        count += len(part)
    whole = np.concatenate(parts)
    np.testing.assert_allclose(mean, whole.mean(0))
    np.testing.assert_allclose(var, whole.var(0))


def test_the_plain_mlp_keeps_its_compiled_actor_and_its_closed_form() -> None:
    with hr.PPO("MlpPolicy", "Pendulum-v1", **SMALL, norm_obs=True) as model:
        model.learn(96)
        assert "closed form" in model.plan()
        policy, parts = model.policy, model.parts
        assert isinstance(policy, ActorCritic)
        acting = LocalInference(policy, parts.observation, parts.action, parts.tile)
        assert type(acting.plain) is NormalizedMlpAct
        obs = np.random.default_rng(0).normal(0, 30, (9, 3)).astype(np.float32)
        noise = np.random.default_rng(1).normal(size=(9, 1)).astype(np.float32)
        out = np.empty((9, 1), np.float32)
        acting.act({"obs": obs}, noise, out)
        with torch.no_grad():
            want = policy.act(torch.from_numpy(obs), torch.from_numpy(noise)).numpy()
        np.testing.assert_allclose(out, want, atol=1e-5)
        acting.act({"obs": obs[:2] * 0 + 1e9}, noise[:2] * 0, out[:2])
        far = np.concatenate([out[:2]])
        acting.act({"obs": obs[:2] * 0 + 1e6}, noise[:2] * 0, out[:2])
        assert (far == out[:2]).all(), "clipped"


@pytest.mark.parametrize("own", [False, True])
def test_saved_statistics_are_used_and_evaluation_leaves_them(own: bool, tmp_path: Path) -> None:
    """predict, evaluate_policy, load (whole and weights_only), ONNX; also with a policy of the user's own."""
    onnxruntime = pytest.importorskip("onnxruntime")
    with hr.PPO("MlpPolicy", "Pendulum-v1", **SMALL) as plain:
        spaces = plain.parts.observation, plain.parts.action
    policy = own_policy(*spaces) if own else "MlpPolicy"
    obs = np.random.default_rng(0).normal(0, 3, (5, 3)).astype(np.float32)
    with hr.PPO(policy, "Pendulum-v1", **SMALL, norm_obs=True, norm_reward=True) as model:
        assert isinstance(model.policy, NormalizedPolicy) == own
        model.learn(200)
        state = {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}
        reward = hr.evaluate_policy(model, n_eval_episodes=2)
        actions, _ = model.predict(obs, deterministic=True)
        assert all(torch.equal(tensor, state[name]) for name, tensor in model.policy.state_dict().items())
        model.save(tmp_path / "saved")
        one = normalizers(model.policy)[0]
        one.take({"obs": obs[None] + 50}, np.ones((1, 5), bool))  # actions depend on the statistics
        assert not np.array_equal(model.predict(obs, deterministic=True)[0], actions)
    again = own_policy(*spaces) if own else None
    for weights_only in (False, True):
        with hr.PPO.load(tmp_path / "saved", policy=again, weights_only=weights_only) as model:
            assert np.array_equal(model.predict(obs, deterministic=True)[0], actions)
            assert hr.evaluate_policy(model, n_eval_episodes=2) == reward
    hr.export_policy(tmp_path / "saved", tmp_path / "policy.onnx", again)
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"observation": obs})[0], actions, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("env", "options", "said"),
    [
        ("FrozenLake-v1", {"norm_obs": True}, "norm_obs: expected a Box of numbers, got Discrete"),
        ("support.bit_envs:Pixels", {"norm_obs": True}, "norm_obs: expected a Box of numbers, got Box.*images are"),
        (
            "Pendulum-v1",
            {"norm_obs": True, "norm_obs_keys": ["speed"]},
            "norm_obs_keys: expected some of obs, got 'speed",
        ),
        ("Pendulum-v1", {"norm_obs_keys": ["obs"]}, "norm_obs_keys: set norm_obs"),
        ("Pendulum-v1", {"norm_obs": True, "norm_obs_keys": []}, "norm_obs_keys: expected at least one name"),
        ("Pendulum-v1", {"clip_obs": 5.0}, "clip_obs=5.0 has no effect without norm_obs"),
        ("Pendulum-v1", {"clip_reward": 5.0}, "clip_reward=5.0 has no effect without norm_reward"),
        ("Pendulum-v1", {"norm_obs": 1}, "norm_obs"),
        ("Pendulum-v1", {"norm_obs": True, "clip_obs": 0.0}, "clip_obs: expected more than 0"),
        ("Pendulum-v1", {"norm_reward": True, "clip_reward": -1.0}, "clip_reward: expected more than 0"),
        ("Pendulum-v1", {"norm_reward": True, "batch": "first_come", "max_lag": 1}, "norm_reward: .*every_shard"),
        ("Pendulum-v1", {"policy_kwargs": {"norm_obs": True}}, "policy_kwargs: norm_obs is an option of its own"),
    ],
)
def test_what_is_refused(env: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        hr.PPO("MlpPolicy", env, **SMALL, **options)


def test_from_the_command_line_and_with_impala(tmp_path: Path) -> None:
    """Options, config.json, and a run that goes on from its directory."""
    arguments = ["Pendulum-v1", "--n-envs", "2", "--topology", "inline", "--seed", "1", "--norm-obs", "--norm-reward"]
    assert (
        main(["train", *arguments, "--total-timesteps", "256", "--n-steps", "64", "--run-dir", str(tmp_path / "a")])
        == 0
    )
    with hr.PPO.load(tmp_path / "a") as model:
        config = model.parts.config
        assert (config.policy.norm_obs, config.algorithm.norm_reward) == (True, True)
        assert len(normalizers(model.policy)) == 1
    with hr.IMPALA("MlpPolicy", "Pendulum-v1", n_envs=2, n_steps=16, seed=1, norm_obs=True, norm_reward=True) as model:
        model.learn(64)
        assert int(normalizers(model.policy)[0].count) == 64


@pytest.mark.parametrize("forgotten", ["", "rewards.running", "rewards.statistics", "encode.normalize.mean_0"])
def test_a_resumed_run_needs_all_statistics(forgotten: str) -> None:
    """Goes on bit for bit; with one of them set back, it does not."""
    with hr.PPO("MlpPolicy", Patchy, **SMALL, norm_obs=True, norm_reward=True) as model:
        model.learn(96)
        snapshot = model.run.snapshot()
        model.learn(96)
        want = model.run.hashes()
    for tensors in (snapshot.optimizer, snapshot.weights):
        if forgotten in tensors:
            tensors[forgotten] = torch.ones_like(tensors[forgotten])
    with hr.PPO.from_snapshot(snapshot, env=Patchy) as model:
        model.learn(96)
        assert (model.run.hashes() == want) == (not forgotten)


@pytest.mark.parametrize("norm_obs", [False, True])
@pytest.mark.parametrize("norm_reward", [False, True])
def test_normalised_rewards_stay_what_they_were(norm_reward: bool, norm_obs: bool, tmp_path: Path) -> None:
    """A run that goes on does not lose the statistics, nor does it begin some; one that takes the weights alone may."""
    norm = {"norm_reward": norm_reward, "norm_obs": norm_obs}
    with hr.PPO("MlpPolicy", Patchy, **SMALL, **norm) as model:
        model.learn(48).save(tmp_path / "saved")
    other = not norm_reward
    with pytest.raises(UsageError, match=f"load: norm_reward was {norm_reward}, .*weights_only=True"):
        hr.PPO.load(tmp_path / "saved", env=Patchy, norm_reward=other)
    hr.PPO.load(tmp_path / "saved", env=Patchy, norm_reward=norm_reward).close()
    with hr.PPO.load(tmp_path / "saved", env=Patchy, norm_reward=other, weights_only=True) as model:
        assert model.parts.config.algorithm.norm_reward == other
        model.learn(48)


@pytest.mark.parametrize("statistic", ["count", "var_0"])
def test_statistics_of_a_file_that_can_not_be(statistic: str, tmp_path: Path) -> None:
    with hr.PPO("MlpPolicy", Patchy, **SMALL, norm_obs=True) as model:
        model.learn(48).save(tmp_path / "saved")

    def spoil(arrays: Any) -> None:
        name = f"encode.normalize.{statistic}"
        arrays["weights"][name] = np.asarray(-arrays["weights"][name])

    other = doctor(tmp_path / "saved", tmp_path / "other", arrays=spoil)
    with pytest.raises(CheckpointError, match="statistics of observations: expected a count and variances of at least"):
        hr.PPO.load(other, env=Patchy)
    with pytest.raises(CheckpointError, match="statistics of observations"):
        hr.export_policy(other, tmp_path / "policy.onnx")
