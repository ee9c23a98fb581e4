"""Tianshou as a peer. Run by `harness.run_peer("tianshou", ...)`; prints one JSON object as its last line.

train_sps: PPO on CartPole-v1, one training step to warm up (it also compiles the numba GAE), then N timed ones.
This file bears the library's name: outside the harness run it with `python -P`.
"""

import argparse
import json
import time
from importlib.metadata import version
from typing import Any

import gymnasium
import torch
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, CollectStats, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

NUM_ENVS, NUM_STEPS = 64, 32
ROLLOUT = NUM_ENVS * NUM_STEPS


def train_sps(updates: int) -> dict[str, Any]:
    # DummyVectorEnv is Tianshou's in-process vectorisation. No logger, no progress bar, no NaN scan of the buffer.
    env = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")] * NUM_ENVS)
    observations, actions = env.observation_space[0], env.action_space[0]

    def trunk() -> Net:
        return Net(state_shape=observations.shape, hidden_sizes=[64, 64], activation=torch.nn.Tanh)

    actor = DiscreteActor(preprocess_net=trunk(), action_shape=actions.n, softmax_output=False)
    algorithm = PPO(
        policy=DiscreteActorPolicy(actor=actor, action_space=actions),
        critic=DiscreteCritic(preprocess_net=trunk()),
        optim=AdamOptimizerFactory(lr=2.5e-4),
        gamma=0.99,
        gae_lambda=0.95,
        max_grad_norm=0.5,
        max_batchsize=ROLLOUT,
    )
    collector = Collector[CollectStats](
        algorithm, env, VectorReplayBuffer(ROLLOUT, NUM_ENVS), raise_on_nan_in_buffer=False
    )
    step_starts: list[float] = []
    algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=collector,
            max_epochs=1,
            epoch_num_steps=(updates + 1) * ROLLOUT,
            collection_step_num_env_steps=ROLLOUT,
            update_step_num_repetitions=4,
            batch_size=512,
            training_fn=lambda epoch, env_step: step_starts.append(time.perf_counter()),
            verbose=False,
            show_progress=False,
        )
    )
    seconds = time.perf_counter() - step_starts[1]
    steps = (len(step_starts) - 1) * ROLLOUT
    return {"sps": steps / seconds, "steps": steps, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("train_sps").add_argument("--updates", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps({**train_sps(arguments.updates), "version": version("tianshou")}))


if __name__ == "__main__":
    main()
