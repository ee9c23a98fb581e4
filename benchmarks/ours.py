"""headrace as a contender, driven like the peers: a fresh process, one JSON object as the last line of stdout.

train_sps: PPO on one of TASKS, one update to warm up, then N timed updates, and where the time went.
limits:    environments alone and network alone on one core, and what a run could reach that keeps two cores busy with
           nothing but these; of EnvPool, also the environments alone on two cores.
learn:     PPO with given hyperparameters -> (train, pause the clock and evaluate)* -> final evaluation on fresh envs.
"""

import argparse
import json
import time
from dataclasses import replace
from typing import Any

import numpy as np

import headrace as hr
from headrace.envs.building import build_envs
from headrace.envs.spec import EnvSpec
from headrace.inference.local import LocalInference
from headrace.learning.algorithm import Moment
from headrace.memory.layout import slab_bytes
from headrace.memory.schema import rollout_schema
from headrace.memory.segment import HeapSegment
from headrace.memory.slab import Slab
from headrace.memory.spaces import Space, made_up
from headrace.policies.networks import as_policy
from headrace.policies.threads import torch_threads
from headrace.presets import PRESETS

JOB = {"n_envs": 64, "n_steps": 32, "batch_size": 512, "n_epochs": 4, "gamma": 0.99, "gae_lambda": 0.95}
TASKS: dict[str, dict[str, Any]] = {
    "cartpole": {"policy": "MlpPolicy", "env": "CartPole-v1", "learning_rate": 1e-3, **JOB},
    "hopper": {"policy": "MlpPolicy", "env": "Hopper-v5", "learning_rate": 2.5e-4, **JOB},
    "breakout": {"policy": "CnnPolicy", "env": "ALE/Breakout-v5", "preset": "atari"},
}
TASKS["hopper_envpool"] = TASKS["hopper"] | {"env": "envpool:Hopper-v4"}
TASKS["breakout_envpool"] = {**PRESETS["atari"].options, "env": "envpool:Breakout-v5"}  # it has wrappers of its own


def train_sps(updates: int, options: dict[str, Any], task: str) -> dict[str, Any]:
    with hr.PPO(**TASKS[task], seed=1, **options) as model:
        place = model.parts.config.topology
        rollout = place.n_envs * place.n_steps
        model.learn(rollout)
        records: list[dict[str, float]] = []
        before, start = model.num_timesteps, time.perf_counter()
        model.learn(updates * rollout, callback=records.append)
        seconds, steps = time.perf_counter() - start, model.num_timesteps - before
    phases = [key for key in records[0] if key.startswith("headrace/time/")]
    split = {key.rsplit("/", 1)[1]: sum(r[key] for r in records) / len(records) * 1e3 for key in phases}
    return {"sps": steps / seconds, "steps": steps, "seconds": seconds, "split_ms": split}


def limits(task: str) -> dict[str, float]:
    """Steps/s of what a run can't do without: the environments, and acting and learning."""
    options = TASKS[task]
    with hr.PPO(**options, seed=1, topology="inline") as model, torch_threads(1):
        parts, run = model.parts, model.run
        place = parts.config.topology
        rollout = place.n_envs * place.n_steps
        batch = run.source.collect()
        moment = Moment(0, run.weights.version, run.weights.is_present, 1.0, run.weights.acted)
        infer = LocalInference(parts.module, parts.observation, parts.action, parts.tile)
        noise = np.zeros((place.n_envs, as_policy(parts.module).noise.width), np.float32)
        first, out = {name: leaf[0] for name, leaf in batch.leaves.items()}, batch.action[0].copy()
        run.algorithm.learn(batch, moment)
        times = 1 if "breakout" in task else 20
        start = time.perf_counter()
        for _ in range(times):
            for _ in range(place.n_steps):
                infer.act(first, noise, out)
            run.algorithm.learn(batch, moment)
        network_s = (time.perf_counter() - start) / (times * rollout)
        run.source.give_back()
    spec, n_envs, action = parts.config.env, place.n_envs, parts.action
    is_pool = spec.is_vector()
    env_s = _env_seconds(_threaded(spec, 1) if is_pool else spec, n_envs, action, place.n_steps)
    found = {
        "env_sps": 1 / env_s,
        "network_sps": 1 / network_s,
        "one_core_sps": 1 / (env_s + network_s),
        "two_cores_sps": 2 / (env_s + network_s),
    }
    if is_pool:
        found["env_two_cores_sps"] = 1 / _env_seconds(_threaded(spec, 2), n_envs, action, place.n_steps)
    return found


def _threaded(spec: EnvSpec, threads: int) -> EnvSpec:
    return replace(spec, kwargs={**spec.kwargs, "num_threads": threads})


def _env_seconds(spec: EnvSpec, n_envs: int, action: Space, rows: int) -> float:
    """Of one transition with random actions, after as many rows to warm up; a row that only resets counts as none."""
    envs = build_envs(spec, range(n_envs), 1)
    schema = rollout_schema(envs.observation_space, action, 1, n_envs)
    row = Slab(schema, HeapSegment(slab_bytes(schema)).buffer).rows[0]
    envs.begin(row.obs)
    rng, transitions = np.random.default_rng(1), 0
    for index in range(11 * rows):
        if index == rows:
            transitions, start = 0, time.perf_counter()
        row.action[...] = made_up(action, rng, n_envs, from_zero=True)
        envs.step(row, lambda env, obs: None)
        transitions += int(row.valid.sum())
    seconds = time.perf_counter() - start
    envs.close()
    return seconds / transitions


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
    kwargs = {name: hyperparameters.pop(name) for name in ("cnn", "lstm_hidden_size") if name in hyperparameters}
    with hr.PPO(policy, arguments.env, seed=arguments.seed, policy_kwargs=kwargs, **hyperparameters) as model:
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
    speed.add_argument("--task", choices=TASKS, default="cartpole")
    commands.add_parser("limits").add_argument("--task", choices=TASKS, required=True)
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
    if arguments.command == "limits":
        result: dict[str, Any] = dict(limits(arguments.task))
    else:
        is_speed = arguments.command == "train_sps"
        result = train_sps(arguments.updates, arguments.options, arguments.task) if is_speed else learn(arguments)
    print(json.dumps({**result, "version": hr.__version__}))


if __name__ == "__main__":
    main()
