"""Train PPO on CartPole-v1, evaluate it, save it, load it and go on.

Takes a few seconds: python examples/train_cartpole.py
"""

import headrace as hr


def main() -> None:
    with hr.PPO(
        "MlpPolicy",
        "CartPole-v1",
        n_envs=32,
        n_steps=32,
        batch_size=256,
        n_epochs=10,
        learning_rate=1e-3,
        gamma=0.98,
        gae_lambda=0.8,
        seed=1,
    ) as model:
        print(model.plan())
        model.learn(total_timesteps=20_000, progress_bar=True)
        mean, std = hr.evaluate_policy(model, n_eval_episodes=10)
        print(f"after {model.num_timesteps:,} steps: mean return {mean:.1f} +/- {std:.1f}")
        model.save("cartpole")

    with hr.PPO.load("cartpole") as model:  # live episodes are rebuilt: it goes on as if it had never stopped
        model.learn(total_timesteps=5_000)
        mean, std = hr.evaluate_policy(model, n_eval_episodes=10)
        print(f"after {model.num_timesteps:,} steps: mean return {mean:.1f} +/- {std:.1f}")


if __name__ == "__main__":
    main()
