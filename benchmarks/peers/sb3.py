"""Stable-Baselines3 as a peer. Run by `harness.run_peer("sb3", ...)`; prints one JSON object as its last line.

train_sps: PPO on CartPole-v1, one update to warm up, then N timed updates.
burn:      SubprocVecEnv over environments that burn CPU, with ready-made actions.
learn:     PPO with given hyperparameters -> (train, pause the clock and evaluate)* -> final evaluation on a fresh env.
"""

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

NUM_ENVS, NUM_STEPS = 64, 32


def train_sps(updates: int) -> dict[str, Any]:
    # No Monitor wrapper and no log dumps: the fastest form SB3 offers in one process.
    # MlpPolicy already is a separate 64x64 tanh actor and critic.
    env = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * NUM_ENVS)
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=NUM_STEPS,
        batch_size=512,
        n_epochs=4,
        gamma=0.99,
        gae_lambda=0.95,
        learning_rate=2.5e-4,
        device="cpu",
        seed=1,
    )
    model.learn(NUM_ENVS * NUM_STEPS, log_interval=None)
    warm_steps, start = model.num_timesteps, time.perf_counter()
    model.learn(updates * NUM_ENVS * NUM_STEPS, log_interval=None, reset_num_timesteps=False)
    seconds = time.perf_counter() - start
    steps = model.num_timesteps - warm_steps
    return {"sps": steps / seconds, "steps": steps, "seconds": seconds}


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
        reward, _ = evaluate_policy(self.model, self.env, n_eval_episodes=self.episodes, deterministic=True)
        self.evaluation_s += time.perf_counter() - before
        self.curve.append((self.num_timesteps, float(reward)))
        if self.stop_at is None or reward < self.stop_at:
            return True
        self.reached_at_steps, self.reached_at_s = self.num_timesteps, self.training_s()
        return False


def burn(options: dict[str, Any]) -> dict[str, Any]:
    sys.path.append(str(Path(__file__).resolve().parent.parent))
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


def learn(arguments: argparse.Namespace) -> dict[str, Any]:
    hyperparameters = schedules(json.loads(arguments.hyperparameters))
    policy = hyperparameters.pop("policy", "MlpPolicy")
    env = make_vec_env(arguments.env, hyperparameters.pop("n_envs", 1), seed=arguments.seed)

    def fresh_env(offset: int) -> VecEnv:
        return make_vec_env(arguments.env, min(10, arguments.eval_episodes), seed=arguments.seed + offset)

    clock = TimedEvaluation(fresh_env(10_000), arguments.eval_every, arguments.curve_episodes, arguments.stop_at)
    model = PPO(policy, env, device="cpu", seed=arguments.seed, **hyperparameters)
    model.learn(arguments.total_timesteps, callback=clock, log_interval=None)
    seconds = clock.training_s()
    mean, std = evaluate_policy(model, fresh_env(20_000), n_eval_episodes=arguments.eval_episodes, deterministic=True)
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
    commands.add_parser("train_sps").add_argument("--updates", type=int, required=True)
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
    torch.set_num_threads(1)
    if arguments.command == "burn":
        result = burn(arguments.options)
    else:
        result = train_sps(arguments.updates) if arguments.command == "train_sps" else learn(arguments)
    print(json.dumps({**result, "version": stable_baselines3.__version__}))


if __name__ == "__main__":
    main()
