"""headrace as a contender, driven like the peers: a fresh process, one JSON object as the last line of stdout.

train_sps: PPO on CartPole-v1, one update to warm up, then N timed updates, and where the time went.
learn:     PPO with given hyperparameters -> (train, pause the clock and evaluate)* -> final evaluation on fresh envs.
"""

import argparse
import json
import time
from typing import Any

import headrace as hr

JOB = {"n_envs": 64, "n_steps": 32, "batch_size": 512, "n_epochs": 4, "gamma": 0.99, "gae_lambda": 0.95}


def train_sps(updates: int, options: dict[str, Any]) -> dict[str, Any]:
    with hr.PPO("MlpPolicy", "CartPole-v1", learning_rate=1e-3, seed=1, **JOB, **options) as model:
        rollout = JOB["n_envs"] * JOB["n_steps"]
        model.learn(rollout)
        records: list[dict[str, float]] = []
        start = time.perf_counter()
        model.learn(updates * rollout, callback=records.append)
        seconds = time.perf_counter() - start
    phases = [key for key in records[0] if key.startswith("headrace/time/")]
    split = {key.rsplit("/", 1)[1]: sum(r[key] for r in records) / len(records) * 1e3 for key in phases}
    return {"sps": updates * rollout / seconds, "steps": updates * rollout, "seconds": seconds, "split_ms": split}


class TimedEvaluation:
    """Evaluates every `every` steps and keeps a clock that stands still meanwhile; stops at `stop_at`."""

    def __init__(self, model: hr.PPO, every: int | None, episodes: int, stop_at: float | None) -> None:
        self.model, self.every, self.episodes, self.stop_at = model, every, episodes, stop_at
        self.next_at = every
        self.evaluation_s = 0.0
        self.started = time.perf_counter()
        self.curve: list[tuple[int, float]] = []
        self.reached_at_steps: int | None = None
        self.reached_at_s: float | None = None

    def training_s(self) -> float:
        return time.perf_counter() - self.started - self.evaluation_s

    def __call__(self, record: dict[str, float]) -> bool:
        steps = self.model.num_timesteps
        if self.every is None or self.next_at is None or steps < self.next_at:
            return True
        self.next_at += self.every
        before = time.perf_counter()
        reward, _ = hr.evaluate_policy(self.model, n_eval_episodes=self.episodes)
        self.evaluation_s += time.perf_counter() - before
        self.curve.append((steps, float(reward)))
        if self.stop_at is None or reward < self.stop_at:
            return True
        self.reached_at_steps, self.reached_at_s = steps, self.training_s()
        return False


def learn(arguments: argparse.Namespace) -> dict[str, Any]:
    hyperparameters = json.loads(arguments.hyperparameters)
    policy = hyperparameters.pop("policy", "MlpPolicy")
    with hr.PPO(policy, arguments.env, seed=arguments.seed, **hyperparameters) as model:
        clock = TimedEvaluation(model, arguments.eval_every, arguments.curve_episodes, arguments.stop_at)
        model.learn(arguments.total_timesteps, callback=clock)
        seconds = clock.training_s()
        returns, _ = hr.evaluate_policy(model, n_eval_episodes=arguments.eval_episodes, return_episode_rewards=True)
        mean = sum(returns) / len(returns)
        return {
            "mean_reward": mean,
            "std": (sum((r - mean) ** 2 for r in returns) / len(returns)) ** 0.5,
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
    speed.add_argument("--options", type=json.loads, default={}, help="JSON: PPO's further keywords")
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
    is_speed = arguments.command == "train_sps"
    result = train_sps(arguments.updates, arguments.options) if is_speed else learn(arguments)
    print(json.dumps({**result, "version": hr.__version__}))


if __name__ == "__main__":
    main()
