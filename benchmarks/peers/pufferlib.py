"""PufferLib as a peer. Run by `harness.run_peer("pufferlib", ...)`; prints one JSON object as its last line.

train_sps: PuffeRL on CartPole-v1, one evaluate + train to warm up, then N timed ones.
burn:      Multiprocessing with two workers over environments that burn CPU, with ready-made actions.
This file bears the library's name: outside the harness run it with `python -P`, in a directory of its own
(PufferLib links its resources into the working directory).
"""

import argparse
import json
import os
import shutil
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

# PufferLib takes nvcc on the path to mean that its CUDA kernel was built; ours is always the CPU one.
while nvcc := shutil.which("nvcc"):
    os.environ["PATH"] = os.pathsep.join(
        folder for folder in os.environ["PATH"].split(os.pathsep) if folder != os.path.dirname(nvcc)
    )

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
import pufferlib.emulation  # noqa: E402
import pufferlib.pytorch  # noqa: E402
import pufferlib.vector  # noqa: E402
import torch  # noqa: E402
from pufferlib.pufferl import PuffeRL  # noqa: E402

NUM_ENVS, NUM_STEPS = 64, 32


class Policy(torch.nn.Module):
    """A separate 64x64 tanh actor and critic, in the form PuffeRL calls."""

    def __init__(self, num_observations: int, num_actions: int) -> None:
        super().__init__()
        layer = pufferlib.pytorch.layer_init

        def network(num_outputs: int, std: float) -> torch.nn.Sequential:
            return torch.nn.Sequential(
                layer(torch.nn.Linear(num_observations, 64)),
                torch.nn.Tanh(),
                layer(torch.nn.Linear(64, 64)),
                torch.nn.Tanh(),
                layer(torch.nn.Linear(64, num_outputs), std=std),
            )

        self.actor, self.critic = network(num_actions, 0.01), network(1, 1.0)

    def forward(self, observations: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        return self.actor(observations), self.critic(observations)

    forward_eval = forward


class QuietPuffeRL(PuffeRL):
    """PuffeRL without its terminal dashboard, which would draw four times a second."""

    def print_dashboard(self, *arguments: Any, **keywords: Any) -> None:
        pass


def cartpole(buf: Any = None, seed: int = 0) -> pufferlib.emulation.GymnasiumPufferEnv:
    return pufferlib.emulation.GymnasiumPufferEnv(gymnasium.make("CartPole-v1"), buf=buf, seed=seed)


def train_sps(updates: int) -> dict[str, Any]:
    # Serial is PufferLib's in-process vectorisation.
    env = pufferlib.vector.make(cartpole, backend=pufferlib.vector.Serial, num_envs=NUM_ENVS)
    policy = Policy(env.single_observation_space.shape[0], int(env.single_action_space.n))
    config = {
        "env": "CartPole-v1",
        "seed": 1,
        "torch_deterministic": True,
        "device": "cpu",
        "cpu_offload": False,
        "precision": "float32",
        "compile": False,
        "use_rnn": False,
        "total_timesteps": 10**9,  # far away: reaching it would write a checkpoint inside the timed part
        "checkpoint_interval": 10**9,
        "data_dir": "experiments",
        "batch_size": NUM_ENVS * NUM_STEPS,
        "bptt_horizon": NUM_STEPS,
        "minibatch_size": 512,
        "max_minibatch_size": 512,
        "update_epochs": 4,
        "optimizer": "adam",
        "learning_rate": 2.5e-4,
        "anneal_lr": False,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_eps": 1e-5,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "clip_coef": 0.2,
        "vf_coef": 0.5,
        "vf_clip_coef": 0.2,
        "ent_coef": 0.0,
        "max_grad_norm": 0.5,
        "vtrace_rho_clip": 1.0,
        "vtrace_c_clip": 1.0,
        "prio_alpha": 0.0,
        "prio_beta0": 1.0,
    }
    trainer = QuietPuffeRL(config, env, policy)
    try:
        trainer.evaluate()
        trainer.train()
        warm_steps, start = trainer.global_step, time.perf_counter()
        for _ in range(updates):
            trainer.evaluate()
            trainer.train()
        seconds = time.perf_counter() - start
    finally:
        trainer.utilization.stop()
    steps = trainer.global_step - warm_steps
    return {"sps": steps / seconds, "steps": steps, "seconds": seconds}


def burning(turns: int, buf: Any = None, seed: int = 0) -> pufferlib.emulation.GymnasiumPufferEnv:
    from burn import BurnEnv

    return pufferlib.emulation.GymnasiumPufferEnv(BurnEnv(turns), buf=buf, seed=seed)


def burn(options: dict[str, Any]) -> dict[str, Any]:
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    n_envs = options["n_envs"]
    env = pufferlib.vector.make(
        burning,
        env_kwargs={"turns": options["turns"]},
        backend=pufferlib.vector.Multiprocessing,
        num_envs=n_envs,
        num_workers=2,
    )
    try:
        env.async_reset(1)
        env.recv()
        actions = np.random.default_rng(1).integers(0, 2, (64, n_envs))
        for action in actions[:8]:
            env.send(action)
            env.recv()
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < options["seconds"]:
            env.send(actions[count % 64])
            env.recv()
            count += 1
        seconds = time.perf_counter() - start
    finally:
        env.close()
    return {"sps": count * n_envs / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("train_sps").add_argument("--updates", type=int, required=True)
    commands.add_parser("burn").add_argument("--options", type=json.loads, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = burn(arguments.options) if arguments.command == "burn" else train_sps(arguments.updates)
    print(json.dumps({**result, "version": version("pufferlib")}))


if __name__ == "__main__":
    main()
