"""Sample Factory as a peer. Run by `harness.run_peer("sample_factory", ...)`; prints one JSON object as its last line.

train_sps: APPO on CartPole-v1 or Hopper-v4, one training iteration to warm up, then N timed ones.
This file bears the library's name: outside the harness run it with `python -P`.
"""

import argparse
import json
import logging
import tempfile
import time
from importlib.metadata import version
from typing import Any

import gymnasium
import torch
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from sample_factory.utils.utils import log

NUM_ENVS, NUM_STEPS = 64, 32
ROLLOUT = NUM_ENVS * NUM_STEPS
TASKS = {"cartpole": "CartPole-v1", "hopper": "Hopper-v4"}  # it pins Gymnasium 0.29, which has no Hopper-v5

# Serial mode is its in-process form: sampler and learner alternate in one process, all envs in one worker.
# Batched sampling is the sampler meant for many envs in one worker (on this job the two differ by less than the noise).
# No input or return normalisation: the other peers do none either. Checkpoints and summaries lie beyond the run's end.
SETTINGS = {
    "algo": "APPO",
    "env": "CartPole-v1",
    "device": "cpu",
    "serial_mode": True,
    "async_rl": False,
    "batched_sampling": True,
    "num_workers": 1,
    "num_envs_per_worker": NUM_ENVS,
    "worker_num_splits": 1,
    "rollout": NUM_STEPS,
    "batch_size": 512,
    "num_batches_per_epoch": 4,
    "num_epochs": 4,
    "recurrence": 1,
    "use_rnn": False,
    "actor_critic_share_weights": False,
    "nonlinearity": "tanh",
    "normalize_input": False,
    "normalize_returns": False,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "learning_rate": 2.5e-4,
    "ppo_clip_ratio": 0.2,
    "max_grad_norm": 0.5,
    "seed": 1,
    "save_every_sec": 100_000,
    "save_best_every_sec": 100_000,
    "experiment_summaries_interval": 100_000,
    "decorrelate_envs_on_one_worker": False,
}


def make_env(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> gymnasium.Env:
    return gymnasium.make(name, render_mode=render_mode)


class Clock(AlgoObserver):  # type: ignore[misc]
    def __init__(self) -> None:
        self.iteration_ends: list[float] = []

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        self.iteration_ends.append(time.perf_counter())


def train_sps(updates: int, env: str) -> dict[str, Any]:
    log.setLevel(logging.ERROR)
    register_env(env, make_env)
    with tempfile.TemporaryDirectory() as folder:
        settings = {**SETTINGS, "env": env, "train_dir": folder, "train_for_env_steps": updates * ROLLOUT - 1}
        argv = [f"--{name}={value}" for name, value in settings.items()] + ["--encoder_mlp_layers", "64", "64"]
        parser, _ = parse_sf_args(argv)
        _, runner = make_runner(parse_full_cfg(parser, argv))
        clock = Clock()
        runner.register_observer(clock)
        status = runner.init()
        torch.set_num_threads(1)
        if status != ExperimentStatus.SUCCESS or runner.run() != ExperimentStatus.SUCCESS:
            raise RuntimeError(f"Sample Factory ended with status {runner.status}")
    steps = (len(clock.iteration_ends) - 1) * ROLLOUT
    seconds = clock.iteration_ends[-1] - clock.iteration_ends[0]
    return {"sps": steps / seconds, "steps": steps, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    speed = commands.add_parser("train_sps")
    speed.add_argument("--updates", type=int, required=True)
    speed.add_argument("--task", choices=TASKS, default="cartpole")
    arguments = parser.parse_args()
    print(json.dumps({**train_sps(arguments.updates, TASKS[arguments.task]), "version": version("sample-factory")}))


if __name__ == "__main__":
    main()
