"""Stable-Baselines3 as a peer. Run by `harness.run_peer("sb3", ...)`; prints one JSON object as its last line.

train_sps: PPO on CartPole-v1, Hopper-v5 or Breakout, one update to warm up, then N timed updates.
burn:      SubprocVecEnv over environments that burn CPU, with ready-made actions.
learn:     PPO with given hyperparameters -> (train, pause the clock and evaluate)* -> final evaluation on a fresh env.
"""

import argparse
import json
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecNormalize,
    sync_envs_normalization,
)
from torch import nn

# environment, policy, n_envs, n_steps, batch_size
TASKS: dict[str, tuple[str, str, int, int, int]] = {
    "cartpole": ("CartPole-v1", "MlpPolicy", 64, 32, 512),
    "hopper": ("Hopper-v5", "MlpPolicy", 64, 32, 512),
    "breakout": ("ALE/Breakout-v5", "CnnPolicy", 8, 128, 256),
}

NORMALIZING = ("norm_obs", "norm_reward", "clip_obs", "clip_reward")


def make(name: str) -> gymnasium.Env[Any, Any]:
    if not name.startswith("ALE/"):
        return gymnasium.make(name)
    import ale_py  # registers the ids
    from gymnasium.wrappers import AtariPreprocessing, ClipReward, FrameStackObservation

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return FrameStackObservation(ClipReward(AtariPreprocessing(gymnasium.make(name, frameskip=1)), -1.0, 1.0), 4)


def train_sps(updates: int, task: str) -> dict[str, Any]:
    # No Monitor wrapper and no log dumps: the fastest form SB3 offers in one process.
    # MlpPolicy already is a separate 64x64 tanh actor and critic.
    name, policy, n_envs, n_steps, batch_size = TASKS[task]
    env = DummyVecEnv([partial(make, name)] * n_envs)
    model = PPO(
        policy,
        env,
        n_steps=n_steps,
        batch_size=batch_size,
        n_epochs=4,
        gamma=0.99,
        gae_lambda=0.95,
        learning_rate=2.5e-4,
        device="cpu",
        seed=1,
    )
    model.learn(n_envs * n_steps, log_interval=None)
    warm_steps, start = model.num_timesteps, time.perf_counter()
    model.learn(updates * n_envs * n_steps, log_interval=None, reset_num_timesteps=False)
    seconds = time.perf_counter() - start
    steps = model.num_timesteps - warm_steps
    return {"sps": steps / seconds, "steps": steps, "seconds": seconds}


def evaluated(model: Any, env: VecEnv, **options: Any) -> Any:
    return (evaluate_masked if isinstance(model, MaskablePPO) else evaluate_policy)(model, env, **options)


class TimedEvaluation(BaseCallback):
    """Evaluates every `every` steps and keeps a clock that stands still meanwhile; stops at `stop_at`."""

    def __init__(self, env: VecEnv, every: int | None, episodes: int, stop_at: float | None) -> None:
        super().__init__()
        self.env, self.every, self.episodes, self.stop_at = env, every, episodes, stop_at
        self.next_at = every
        self.evaluation_s = 0.0
        self.curve: list[tuple[int, float]] = []
        self.reached_at_steps: int | None = None
        self.reached_at_s: float | None = None

    def _on_training_start(self) -> None:
        self.started = time.perf_counter()

    def training_s(self) -> float:
        return time.perf_counter() - self.started - self.evaluation_s

    def _on_step(self) -> bool:
        if self.every is None or self.next_at is None or self.num_timesteps < self.next_at:
            return True
        self.next_at += self.every
        before = time.perf_counter()
        sync_envs_normalization(self.training_env, self.env)
        reward, _ = evaluated(self.model, self.env, n_eval_episodes=self.episodes, deterministic=True)
        self.evaluation_s += time.perf_counter() - before
        self.curve.append((self.num_timesteps, float(reward)))
        if self.stop_at is None or reward < self.stop_at:
            return True
        self.reached_at_steps, self.reached_at_s = self.num_timesteps, self.training_s()
        return False


def burn(options: dict[str, Any]) -> dict[str, Any]:
    from burn import BurnEnv

    n_envs = options["n_envs"]
    env = SubprocVecEnv([partial(BurnEnv, options["turns"])] * n_envs)
    try:
        env.reset()
        actions = np.random.default_rng(1).integers(0, 2, (64, n_envs))
        for action in actions[:8]:
            env.step(action)
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < options["seconds"]:
            env.step(actions[count % 64])
            count += 1
        seconds = time.perf_counter() - start
    finally:
        env.close()
    return {"sps": count * n_envs / seconds}


def schedules(hyperparameters: dict[str, Any]) -> dict[str, Any]:
    """RL Zoo's "lin_0.001" means a linear fall from 0.001 to zero."""
    return {
        key: LinearSchedule(float(value[4:]), 0.0, 1.0)
        if isinstance(value, str) and value.startswith("lin_")
        else value
        for key, value in hyperparameters.items()
    }


def attribute(name: str) -> Any:
    """What "module:attribute" names; Gymnasium's ids stay ids, also with the module that registers them."""
    module, _, found = name.partition(":")
    return getattr(import_module(module), found) if found.isidentifier() else name


class SmallCnn(BaseFeaturesExtractor):
    """headrace's cnn="small", built as SB3's guide to custom policies says."""

    def __init__(self, observation_space: gymnasium.spaces.Box) -> None:
        super().__init__(observation_space, features_dim=256)
        channels, *plane = observation_space.shape  # SB3 has transposed it
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, 16, 6, 3), nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2), nn.ReLU(),
            nn.Conv2d(32, 32, 3, 1), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        with torch.no_grad():
            flat = self.convolutions(torch.zeros(1, channels, *plane)).shape[1]
        self.features = nn.Sequential(nn.Linear(flat, 256), nn.ReLU())

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.features(self.convolutions(observations))


def learn(arguments: argparse.Namespace) -> dict[str, Any]:
    hyperparameters = schedules(json.loads(arguments.hyperparameters))
    policy = hyperparameters.pop("policy", "MlpPolicy")
    if hyperparameters.pop("cnn", None) == "small":
        hyperparameters["policy_kwargs"] = {"features_extractor_class": SmallCnn}
    source, wrappers = attribute(arguments.env), [attribute(one) for one in hyperparameters.pop("wrappers", [])]

    def wrapped(env: gymnasium.Env) -> gymnasium.Env:
        for wrapper in wrappers:
            env = wrapper(env)
        return env

    def fresh_env(offset: int) -> VecEnv:
        count, seed = min(10, arguments.eval_episodes), arguments.seed + offset
        fresh = make_vec_env(source, count, seed=seed, wrapper_class=wrapped)
        return VecNormalize(fresh, training=False, norm_reward=False) if normalizing else fresh

    env = make_vec_env(source, hyperparameters.pop("n_envs", 1), seed=arguments.seed, wrapper_class=wrapped)
    normalizing = {name: hyperparameters.pop(name) for name in NORMALIZING if name in hyperparameters}
    if normalizing:
        env = VecNormalize(env, **{"norm_reward": False} | normalizing, gamma=hyperparameters.get("gamma", 0.99))

    clock = TimedEvaluation(fresh_env(10_000), arguments.eval_every, arguments.curve_episodes, arguments.stop_at)
    kind = MaskablePPO if hyperparameters.pop("action_masks", False) else PPO
    if policy.endswith("LstmPolicy"):
        kind, hyperparameters["policy_kwargs"] = (
            RecurrentPPO,
            {"lstm_hidden_size": hyperparameters.pop("lstm_hidden_size")},
        )
    model = kind(policy, env, device="cpu", seed=arguments.seed, **hyperparameters)
    model.learn(arguments.total_timesteps, callback=clock, log_interval=None)
    seconds = clock.training_s()
    final = fresh_env(20_000)
    sync_envs_normalization(env, final)
    mean, std = evaluated(model, final, n_eval_episodes=arguments.eval_episodes, deterministic=True)
    return {
        "mean_reward": float(mean),
        "std": float(std),
        "steps": model.num_timesteps,
        "seconds": seconds,
        "curve": clock.curve,
        "reached_at_steps": clock.reached_at_steps,
        "reached_at_s": clock.reached_at_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    speed = commands.add_parser("train_sps")
    speed.add_argument("--updates", type=int, required=True)
    speed.add_argument("--task", choices=TASKS, default="cartpole")
    speed.add_argument("--threads", type=int, default=1, help="of torch")
    commands.add_parser("burn").add_argument("--options", type=json.loads, required=True)
    learning = commands.add_parser("learn")
    learning.add_argument("--env", required=True)
    learning.add_argument("--hyperparameters", required=True, help="JSON: PPO's keywords, and n_envs, policy")
    learning.add_argument("--total-timesteps", type=int, required=True)
    learning.add_argument("--seed", type=int, required=True)
    learning.add_argument("--eval-episodes", type=int, default=100, help="episodes of the final evaluation")
    learning.add_argument("--curve-episodes", type=int, default=20, help="episodes of each periodic evaluation")
    learning.add_argument("--eval-every", type=int, help="steps between periodic evaluations; none without it")
    learning.add_argument("--stop-at", type=float, help="stop once a periodic evaluation reaches this mean reward")
    arguments = parser.parse_args()
    if arguments.command == "learn" and arguments.stop_at is not None and arguments.eval_every is None:
        parser.error("--stop-at needs --eval-every")
    torch.set_num_threads(getattr(arguments, "threads", 1))
    sys.path.append(str(Path(__file__).resolve().parent.parent))  # our own environments: burn.py, catch.py
    if arguments.command == "burn":
        result = burn(arguments.options)
    else:
        result = train_sps(arguments.updates, arguments.task) if arguments.command == "train_sps" else learn(arguments)
    print(json.dumps({**result, "version": stable_baselines3.__version__}))


if __name__ == "__main__":
    main()
