"""Train a policy with layers of one's own, stop at a reward, export it to ONNX, and play without torch.

Takes some seconds: python examples/export_policy.py (needs pip install 'headrace[export]')
"""

import gymnasium as gym
import numpy as np
import onnxruntime
from torch import nn

import headrace as hr


def main() -> None:
    stop = hr.StopTrainingOnRewardThreshold(reward_threshold=100)
    evaluations = hr.EvalCallback(callback_on_new_best=stop, eval_freq=128, n_eval_episodes=5, verbose=0)
    with hr.PPO(
        "MlpPolicy",
        "CartPole-v1",
        n_envs=16,
        n_steps=64,
        batch_size=256,
        learning_rate=2e-3,
        policy_kwargs={"net_arch": {"pi": [32], "vf": [64, 64]}, "activation_fn": nn.ELU},
        seed=1,
    ) as model:
        model.learn(total_timesteps=40_000, callback=evaluations)
        print(f"after {model.num_timesteps:,} steps: mean return {evaluations.best_mean_reward:.1f}")
        hr.export_policy(model, "policy.onnx")

    session = onnxruntime.InferenceSession("policy.onnx")
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=1)
    total, ended = 0.0, False
    while not ended:
        (actions,) = session.run(None, {"observation": np.asarray(obs, np.float32)[None]})
        obs, reward, terminated, truncated, _ = env.step(actions[0])
        total, ended = total + float(reward), terminated or truncated
    env.close()
    print(f"one episode with onnxruntime: {total:.0f}")


if __name__ == "__main__":
    main()
