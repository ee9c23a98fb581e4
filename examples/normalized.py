"""Pendulum-v1 with and without normalised observations and rewards, at the same settings.

Statistics are part of the policy: they are saved with it, and evaluation leaves them as they are. With 60,000 steps:

    python examples/normalized.py --total-timesteps 60000
"""

import argparse

import headrace as hr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--total-timesteps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for norm in (False, True):
        with hr.PPO(
            "MlpPolicy", options.env, n_envs=8, n_steps=128, gamma=0.95, learning_rate=1e-3, seed=options.seed,
            norm_obs=norm, norm_reward=norm,
        ) as model:  # fmt: skip
            model.learn(options.total_timesteps)
            mean, std = hr.evaluate_policy(model, n_eval_episodes=20)
        print(f"{'normalised' if norm else 'raw'}: mean return {mean:.1f} +- {std:.1f}")


if __name__ == "__main__":
    main()
