"""The Python API as an SB3 user meets it: PPO, evaluate_policy, Collector."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import headrace as hr
from headrace.errors import EnvError, SchemaError, UsageError
from headrace.policies.threads import torch_threads
from support.command import result_of
from support.faulty_envs import Steady
from support.torch_policy import TorchPolicy

SMALL: dict[str, Any] = {"n_envs": 4, "n_steps": 16, "batch_size": 32, "n_epochs": 2, "seed": 1}
ROLLOUT = 64


@pytest.fixture(scope="module")
def trained() -> Iterator[hr.PPO]:
    """A CartPole model that has learned a little. Tests look at it, and do not change it."""
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        yield model.learn(10 * ROLLOUT)


def weights_of(model: hr.PPO) -> str:
    return model.run.hashes()["weights_sha256"]


# ------------------------------------------------------------------------------------------------ the README's example


def test_the_example_of_the_conventions_runs(tmp_path: Path) -> None:
    model = hr.PPO("MlpPolicy", "CartPole-v1", n_envs=64, n_steps=8, seed=1)
    assert "CartPole-v1 x 64" in model.plan()
    assert "why " in model.plan()
    model.learn(total_timesteps=1_000)
    mean, std = hr.evaluate_policy(model, n_eval_episodes=20)
    assert isinstance(mean, float)
    assert isinstance(std, float)
    model.save(tmp_path / "cartpole")
    model.close()
    model = hr.PPO.load(tmp_path / "cartpole")
    assert hr.evaluate_policy(model, n_eval_episodes=20) == (mean, std)
    model.close()

    my_torch_module = TorchPolicy()
    with hr.Collector("CartPole-v1", policy=my_torch_module, n_envs=64, n_steps=128) as rollouts:
        for batch in rollouts:
            assert batch.obs.shape == (128, 64, 4)
            assert batch.actions.shape == (128, 64)
            assert np.shares_memory(batch.actions, batch.action)
            rollouts.publish(my_torch_module)
            break


def test_ppo_takes_sb3s_arguments_with_sb3s_defaults() -> None:
    """Positional arguments in the same order, up to where SB3 goes its own way (use_sde)."""
    sb3 = {
        "learning_rate": 3e-4,
        "n_steps": 2048,
        "batch_size": 64,
        "n_epochs": 10,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "clip_range": 0.2,
        "clip_range_vf": None,
        "normalize_advantage": True,
        "ent_coef": 0.0,
        "vf_coef": 0.5,
        "max_grad_norm": 0.5,
    }
    ours = inspect.signature(hr.PPO).parameters
    assert list(ours)[:14] == ["policy", "env", *sb3]
    assert {name: ours[name].default for name in sb3} == sb3
    assert {"target_kl", "policy_kwargs", "verbose", "seed"} <= set(ours)


def test_evaluate_policy_has_sb3s_signature() -> None:
    parameters = inspect.signature(hr.evaluate_policy).parameters
    assert {name: parameter.default for name, parameter in parameters.items()} == {
        "model": inspect.Parameter.empty,
        "env": None,  # required in SB3; ours knows its own
        "n_eval_episodes": 10,
        "deterministic": True,
        "render": False,
        "callback": None,
        "reward_threshold": None,
        "return_episode_rewards": False,
        "warn": True,
    }
    assert list(parameters)[:4] == ["model", "env", "n_eval_episodes", "deterministic"]


# --------------------------------------------------------------------------------------------------------------- learn


def test_learning_twice_goes_on() -> None:
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as once, hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as twice:
        once.learn(4 * ROLLOUT)
        assert twice.learn(1 * ROLLOUT) is twice
        assert twice.num_timesteps == ROLLOUT
        twice.learn(3 * ROLLOUT)
        assert twice.num_timesteps == once.num_timesteps == 4 * ROLLOUT
        assert weights_of(twice) == weights_of(once)


def test_the_last_update_is_finished() -> None:
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        assert model.learn(ROLLOUT + 1).num_timesteps == 2 * ROLLOUT


def test_a_callback_sees_every_record_and_stops_training() -> None:
    seen: list[float] = []

    def callback(record: dict[str, float]) -> bool:
        seen.append(record["time/total_timesteps"])
        return len(seen) < 3

    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        model.learn(100 * ROLLOUT, callback=callback)
        assert seen == [ROLLOUT, 2 * ROLLOUT, 3 * ROLLOUT]
        assert model.result is not None
        assert (model.result.exit_reason, model.result.exit_code) == ("stopped by callback", 0)
        model.learn(ROLLOUT, callback=lambda record: None)  # None goes on, as a callback that returns nothing does
        assert model.num_timesteps == 4 * ROLLOUT


def test_a_run_directory_takes_several_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.views.report.write_report", lambda run_dir: None)
    options: dict[str, Any] = {"run_dir": tmp_path / "run", "eval_every": ROLLOUT}
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        model.learn(ROLLOUT, n_eval_episodes=2, **options)
        model.learn(ROLLOUT, n_eval_episodes=3, **options)
        assert result_of(tmp_path / "run")["weights_sha256"] == weights_of(model)
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 2
    with np.load(tmp_path / "run" / "evaluations.npz") as kept:
        assert kept["results"].shape == (1, 3), "an array of returns is rectangular: the newest kind is kept"
    with (
        hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as other,
        pytest.raises(UsageError, match="already holds a run"),
    ):
        other.learn(ROLLOUT).learn(ROLLOUT, **options)
    with hr.PPO.load(tmp_path / "run") as loaded:
        assert loaded.learn(ROLLOUT, **options).num_timesteps == 3 * ROLLOUT


def test_verbose_and_progress_bar_show_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        model.learn(ROLLOUT)
        assert capsys.readouterr().out == ""
        model.learn(ROLLOUT, progress_bar=True)
        assert f"step {2 * ROLLOUT}/{2 * ROLLOUT}" in capsys.readouterr().out
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL, verbose=1) as model:
        model.learn(ROLLOUT)
        assert f"step {ROLLOUT}/{ROLLOUT}" in capsys.readouterr().out


def test_schedules_are_followed() -> None:
    rates: dict[str, list[float]] = {}
    schedules: dict[str, Any] = {"constant": 1e-3, "linear": "lin_1e-3", "function": lambda left: 1e-3 * left**2}
    for name, schedule in schedules.items():
        with hr.PPO("MlpPolicy", "CartPole-v1", learning_rate=schedule, **SMALL) as model:
            seen = rates.setdefault(name, [])
            model.learn(4 * ROLLOUT, callback=lambda record, seen=seen: seen.append(record["train/learning_rate"]))  # type: ignore[misc]
    left = np.array([1.0, 0.75, 0.5, 0.25])
    assert rates["constant"] == [1e-3] * 4
    np.testing.assert_allclose(rates["linear"], 1e-3 * left)
    np.testing.assert_allclose(rates["function"], 1e-3 * left**2)


# ------------------------------------------------------------------------------------------------------------- predict


def test_predict_takes_one_or_many(trained: hr.PPO) -> None:
    many = np.random.default_rng(0).uniform(-1, 1, (37, 4)).astype(np.float32)
    actions, state = trained.predict(many, deterministic=True)
    assert state is None
    assert actions.shape == (37,)
    assert set(actions.tolist()) == {0, 1}
    singles = [trained.predict(obs, deterministic=True)[0] for obs in many]
    assert singles == actions.tolist()
    assert all(trained.parts.config.env.make().action_space.contains(action) for action in singles)
    assert trained.predict(many[0].tolist(), deterministic=True)[0] == singles[0], "a list will do"
    assert trained.predict(many[0].astype(np.float64), deterministic=True)[0] == singles[0]


def test_predict_samples_unless_told_otherwise(trained: hr.PPO) -> None:
    undecided = np.zeros((200, 4), np.float32)
    assert len(set(trained.predict(undecided, deterministic=True)[0].tolist())) == 1
    first, second = (trained.predict(undecided)[0].tolist() for _ in range(2))
    assert set(first) == {0, 1}
    assert first != second


@pytest.mark.parametrize("wrong", [np.zeros(3), np.zeros((2, 3)), np.zeros((2, 2, 4)), 1.0, {"obs": 1}], ids=np.shape)
def test_predict_says_what_shape_it_expects(trained: hr.PPO, wrong: Any) -> None:
    with pytest.raises(SchemaError, match=r"predict: expected observations of shape \(4,\) or \[n, \.\.\.\], got"):
        trained.predict(wrong)


def test_predict_says_what_dtype_it_expects(trained: hr.PPO) -> None:
    with pytest.raises(SchemaError, match="predict: expected dtype float32, got complex128"):
        trained.predict(np.zeros(4, np.complex128))


def test_continuous_actions_are_within_bounds() -> None:
    with hr.PPO("MlpPolicy", "Pendulum-v1", policy_kwargs={"log_std_init": 3.0}, **SMALL) as model:
        actions, _ = model.predict(np.zeros((50, 3), np.float32))
        assert actions.shape == (50, 1)
        assert np.abs(actions).max() == 2.0


# ------------------------------------------------------------------------------------------------------- save and load


def test_a_saved_model_predicts_and_goes_on_the_same(tmp_path: Path) -> None:
    observations = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        model.learn(3 * ROLLOUT).save(tmp_path / "model")
        with hr.PPO.load(tmp_path / "model") as loaded:
            assert loaded.num_timesteps == 3 * ROLLOUT
            for deterministic in (True, False):
                ours, theirs = (one.predict(observations, deterministic=deterministic)[0] for one in (model, loaded))
                assert (ours == theirs).all()
            assert weights_of(loaded.learn(2 * ROLLOUT)) == weights_of(model.learn(2 * ROLLOUT))


def test_saving_again_replaces(tmp_path: Path) -> None:
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        for _ in range(2):
            model.learn(ROLLOUT).save(tmp_path / "model")
        assert [path.name for path in tmp_path.iterdir()] == ["model"]
        with hr.PPO.load(tmp_path / "model", weights_only=True) as loaded:
            assert weights_of(loaded) == weights_of(model)
            assert loaded.num_timesteps == 0, "weights alone: learning starts anew"


def test_what_was_a_function_is_asked_for_again(tmp_path: Path) -> None:
    wrappers = [gym.wrappers.FlattenObservation]
    with hr.PPO(TorchPolicy(), "CartPole-v1", learning_rate=lambda left: 1e-3, wrappers=wrappers, **SMALL) as model:
        model.learn(ROLLOUT).save(tmp_path / "model")
        expected = weights_of(model.learn(ROLLOUT))
    spec = hr.EnvSpec("CartPole-v1", wrappers=tuple(wrappers))
    with pytest.raises(UsageError, match=r"FlattenObservation.*pass env="):
        hr.PPO.load(tmp_path / "model", policy=TorchPolicy(), learning_rate=1e-3)
    with pytest.raises(UsageError, match=r"wrappers \(FlattenObservation\).*EnvSpec"):
        hr.PPO.load(tmp_path / "model", env="CartPole-v1", policy=TorchPolicy(), learning_rate=1e-3)
    with pytest.raises(UsageError, match="learning_rate was a function"):
        hr.PPO.load(tmp_path / "model", env=spec, policy=TorchPolicy())
    with pytest.raises(UsageError, match=r"module of its own \(TorchPolicy\).*policy="):
        hr.PPO.load(tmp_path / "model", env=spec, learning_rate=1e-3)
    with hr.PPO.load(tmp_path / "model", env=spec, policy=TorchPolicy(3), learning_rate=1e-3) as loaded:
        assert weights_of(loaded.learn(ROLLOUT)) == expected


# ----------------------------------------------------------------------------------------------------- evaluate_policy


def test_an_evaluation_is_repeatable_and_does_not_touch_the_model(trained: hr.PPO) -> None:
    before = trained.run.hashes()
    first = hr.evaluate_policy(trained, n_eval_episodes=5)
    assert first == hr.evaluate_policy(trained, n_eval_episodes=5)
    assert first != hr.evaluate_policy(trained, n_eval_episodes=5, deterministic=False)
    assert trained.run.hashes() == before


def test_the_returns_themselves(trained: hr.PPO) -> None:
    returns, lengths = hr.evaluate_policy(trained, n_eval_episodes=7, return_episode_rewards=True)
    assert isinstance(returns, list)
    assert isinstance(lengths, list)
    assert len(returns) == len(lengths) == 7
    assert returns == [float(length) for length in lengths], "a CartPole step is worth 1"
    mean, std = hr.evaluate_policy(trained, n_eval_episodes=7)
    assert (mean, std) == (np.mean(returns), np.std(returns))


def test_a_threshold_is_an_assertion_as_in_sb3(trained: hr.PPO) -> None:
    hr.evaluate_policy(trained, n_eval_episodes=3, reward_threshold=1.0)
    with pytest.raises(AssertionError, match=r"below threshold: .* < 501"):
        hr.evaluate_policy(trained, n_eval_episodes=3, reward_threshold=501)


def test_a_callback_after_every_episode(trained: hr.PPO) -> None:
    seen: list[int] = []
    hr.evaluate_policy(trained, n_eval_episodes=4, callback=lambda so_far, _: seen.append(so_far["episodes"]))
    assert seen == [1, 2, 3, 4]


def test_an_environment_of_ones_own(trained: hr.PPO) -> None:
    """An instance is borrowed: played, and not closed. A function is called as often as needed."""

    class Short(gym.Wrapper[Any, Any, Any, Any]):
        is_closed = False

        def close(self) -> None:
            self.is_closed = True
            super().close()

    env = Short(gym.make("CartPole-v1", max_episode_steps=6))
    assert hr.evaluate_policy(trained, env, n_eval_episodes=3) == (6.0, 0.0)
    assert not env.is_closed
    env.reset()
    env.close()
    made: list[Short] = []

    def make() -> Short:
        made.append(Short(gym.make("CartPole-v1", max_episode_steps=7)))
        return made[-1]

    assert hr.evaluate_policy(trained, make, n_eval_episodes=3) == (7.0, 0.0)
    assert made
    assert all(one.is_closed for one in made)


def test_an_evaluation_of_nothing_is_refused(trained: hr.PPO) -> None:
    with pytest.raises(UsageError, match="n_eval_episodes: expected a whole number of at least 1, got 0"):
        hr.evaluate_policy(trained, n_eval_episodes=0)


# ----------------------------------------------------------------------------------------------------------- Collector


def test_batches_are_the_slabs_own_memory() -> None:
    """[T, B] views of the one block, completed; nothing is copied."""
    with hr.Collector("CartPole-v1", policy=TorchPolicy(), n_envs=3, n_steps=16, seed=0, topology="inline") as rollouts:
        block = np.frombuffer(rollouts._parts.reader.ring.segment.buffer, np.uint8)
        for batch in islice(rollouts, 3):
            for name in ("obs", "action", "reward", "terminated", "truncated", "log_prob", "value", "episode", "step"):
                array = getattr(batch, name)
                assert array.shape[:2] == (16, 3), name
                assert np.shares_memory(array, block), name
            assert batch.last_obs.shape == (3, 4)
            assert np.isfinite(batch.log_prob).all()
            assert (batch.log_prob < 0).all()
            assert np.isfinite(batch.value).all()
            assert batch.valid.all()
            assert torch.from_numpy(batch.obs).data_ptr() == batch.obs.ctypes.data


def test_several_shards_make_one_batch() -> None:
    """Shards of other sizes: the same environments, so the same rollouts, put together in their order."""
    batches = []
    for shards in (1, 2):
        with hr.Collector("CartPole-v1", TorchPolicy(), n_envs=5, n_steps=16, seed=0, shards=shards) as rollouts:
            batch = next(rollouts)
            batches.append({name: np.copy(getattr(batch, name)) for name in ("obs", "action", "log_prob", "value")})
    for name, array in batches[0].items():
        np.testing.assert_array_equal(batches[1][name], array)


def test_publishing_changes_who_acts() -> None:
    policy = TorchPolicy()
    with hr.Collector("CartPole-v1", policy=policy, n_envs=4, n_steps=32, seed=0) as rollouts:
        assert set(np.unique(next(rollouts).action)) == {0, 1}
        with torch.no_grad():
            policy.actor[-1].bias.copy_(torch.tensor([-1000.0, 1000.0]))
        assert set(np.unique(next(rollouts).action)) == {0, 1}, "not published yet"
        version = rollouts.publish(policy)
        batch = next(rollouts)
        assert set(np.unique(batch.action)) == {1}
        assert set(np.unique(batch.version)) == {version}
        with pytest.raises(SchemaError, match="publish: expected the parameters"):
            rollouts.publish(torch.nn.Linear(2, 2))


def test_the_ledger_balances() -> None:
    with hr.Collector("CartPole-v1", policy="MlpPolicy", n_envs=4, n_steps=8, seed=0) as rollouts:
        for produced, _ in zip((32, 64, 96), rollouts, strict=False):
            ledger = rollouts.ledger
            assert (ledger["produced"], ledger["consumed"]) == (produced, produced - 32), "the batch in hand is open"
    ledger = rollouts.ledger
    assert ledger["produced"] == ledger["consumed"] + ledger["rejected"] + sum(ledger["discarded"].values()) == 96
    with pytest.raises(UsageError, match="this collector was closed"):
        next(rollouts)


def test_a_collector_reports_what_a_run_would() -> None:
    """The same seed, the same first rollout: episodes, counts and returns come out as in a run's update."""
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        update = model.run.update(ROLLOUT)
    with hr.Collector("CartPole-v1", "MlpPolicy", n_envs=4, n_steps=16, seed=1) as rollouts:
        assert rollouts.harvest is None
        next(rollouts)
    harvest = rollouts.harvest
    assert harvest is not None
    assert harvest.finished == update.harvest.finished != ()
    assert harvest.steps == update.harvest.steps == ROLLOUT
    for name in ("rollout/ep_rew_mean", "rollout/ep_len_mean", "headrace/episodes", "headrace/ledger/consumed"):
        assert harvest.record[name] == update.record[name], name
    assert not [name for name in harvest.record if name.startswith("train/")], "nothing was learned"


def test_a_learner_of_ones_own_learns_cartpole() -> None:
    """A plain actor-critic of some lines, as the batch invites to."""
    policy = TorchPolicy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    lengths: list[float] = []
    rollouts = hr.Collector("CartPole-v1", policy=policy, n_envs=16, n_steps=64, seed=0)
    with torch_threads(1), rollouts:  # the default, a thread per core, is many times slower on shared cores
        for batch in islice(rollouts, 25):
            ended = batch.terminated | batch.truncated
            lengths.append(batch.steps / max(1, int(ended.sum())))
            returns, following = np.zeros_like(batch.reward), batch.last_value
            for t in reversed(range(batch.n_steps)):
                following = np.where(ended[t], batch.bootstrap_value[t], following)
                returns[t] = following = batch.reward[t] + 0.99 * following
            advantage = torch.from_numpy(returns - batch.value).flatten()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            old = torch.from_numpy(batch.log_prob).flatten()
            obs, actions = torch.from_numpy(batch.obs).flatten(0, 1), torch.from_numpy(batch.action).flatten()
            for _ in range(8):
                now = policy.evaluate(obs, actions)
                ratio = (now.log_prob - old).exp()
                gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
                error = (now.value - torch.from_numpy(returns).flatten()).square().mean()
                optimizer.zero_grad()
                (0.005 * error - gain).backward()
                optimizer.step()
            rollouts.publish(policy)
    assert np.mean(lengths[:3]) < 40
    assert np.mean(lengths[-3:]) > 80


def test_a_policy_of_ones_own_learns_cartpole() -> None:
    with hr.PPO(TorchPolicy(), "CartPole-v1", 3e-3, 64, 256, n_envs=16, seed=1) as model:
        assert "TorchPolicy" in model.plan()
        assert "autograd" in model.plan()
        model.learn(16 * 64 * 20)
        mean, _ = hr.evaluate_policy(model, n_eval_episodes=10)
        assert isinstance(mean, float)
        assert mean > 300


def test_the_users_module_is_not_changed_behind_their_back() -> None:
    policy = TorchPolicy()
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    with hr.PPO(policy, "CartPole-v1", **SMALL) as model:
        model.learn(ROLLOUT)
        assert model.policy is not policy
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())


# -------------------------------------------------------------------------------------------------------- environments


def vector_of(num_envs: int, mode: str = "NextStep", length: int = 9) -> gym.vector.VectorEnv[Any, Any, Any]:
    """A pool of the user's own; headrace asks for as many as it needs."""
    make: list[Callable[[], gym.Env[Any, Any]]] = [lambda: Steady(length)] * num_envs
    return SyncVectorEnv(make, autoreset_mode=AutoresetMode(mode))


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)
def test_a_factory_of_vector_environments_trains(mode: AutoresetMode) -> None:
    """Only real transitions are counted: a step that merely resets is none."""
    with hr.PPO("MlpPolicy", vector_of, env_kwargs={"mode": mode.value}, **SMALL) as model:
        model.learn(2 * ROLLOUT)
        assert model.num_timesteps == model.run.totals().ledger["produced"] >= 2 * ROLLOUT
        is_exact = mode is not AutoresetMode.NEXT_STEP
        assert (model.num_timesteps == 2 * ROLLOUT) is is_exact
        assert model.parts.reader.journal.results.recent
        _, lengths = hr.evaluate_policy(model, n_eval_episodes=5, return_episode_rewards=True)
        assert lengths == [9] * 5


def test_a_wrong_number_of_vector_environments_is_named() -> None:
    """At once if the first pool is wrong, which only looks at spaces; when the shards are built if a later one is."""
    with pytest.raises(EnvError, match="expected 1 environments, got 3"):
        hr.PPO("MlpPolicy", lambda num_envs: vector_of(3), **SMALL)
    with hr.PPO("MlpPolicy", lambda num_envs: vector_of(min(num_envs, 3)), **SMALL, topology="inline") as model:
        with pytest.raises(EnvError, match="expected 4 environments, got 3"):
            model.learn(ROLLOUT)
        assert model.num_timesteps == 0


def test_kwargs_wrappers_and_action_repeat_reach_the_environment() -> None:
    class Half(gym.RewardWrapper[Any, Any]):
        def reward(self, reward: Any) -> Any:
            return 0.5 * float(reward)

    class AllOnes(gym.ActionWrapper[Any, Any, Any]):
        def action(self, action: Any) -> Any:
            return 1

    dressed: dict[str, Any] = {"env_kwargs": {"length": 7}, "wrappers": [Half, AllOnes], "action_repeat": 2}
    with hr.PPO("MlpPolicy", Steady, **dressed, **SMALL) as model:
        model.learn(ROLLOUT)
        recent = set(model.parts.reader.journal.results.recent)
        assert recent == {(3.5, 4)}, "seven ones, halved, in steps of 2, 2, 2 and 1"
        assert hr.evaluate_policy(model, n_eval_episodes=2) == (3.5, 0.0)
    with hr.Collector(Steady, "MlpPolicy", n_envs=2, n_steps=8, **dressed) as rollouts:
        assert set(next(rollouts).reward.flatten().tolist()) == {0.5, 1.0}


def test_a_gymnasium_id_with_its_module_and_one_registered_here() -> None:
    gym.register("Steady-v3", entry_point="support.faulty_envs:Steady", max_episode_steps=4)
    try:
        for name in ("Steady-v3", "support.faulty_envs:Steady-v3"):
            with hr.PPO("MlpPolicy", name, **SMALL) as model:
                assert hr.evaluate_policy(model, n_eval_episodes=2, return_episode_rewards=True)[1] == [4, 4]
    finally:
        del gym.registry["Steady-v3"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("CartPole-v1", "CartPole-v1"),
        ("support.faulty_envs:Steady", "support.faulty_envs:Steady"),
        (Steady, "Steady"),
        (lambda: Steady(), "lambda"),
        (vector_of, "vector_of"),
    ],
)
def test_what_an_environment_is_called(source: Any, name: str) -> None:
    assert hr.EnvSpec(source).name == name


# -------------------------------------------------------------------------------------------------------------- errors


def test_errors_that_users_catch_are_exported_and_documented() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "first-run.md").read_text()
    exported = [name for name in hr.__all__ if name.endswith("Error")]
    assert exported
    for name in exported:
        assert issubclass(getattr(hr, name), hr.HeadraceError)
        assert f"`hr.{name}`" in guide
    assert set(re.findall(r"`hr\.(\w+Error)`", guide)) == set(exported)
    assert set(hr.__all__) <= set(dir(hr))
    with pytest.raises(hr.UsageError, match="did you mean CartPole-v1"):
        hr.PPO("MlpPolicy", "CartPole-v2")
