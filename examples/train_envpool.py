"""Train PPO on EnvPool's CartPole-v1: the pool steps and resets 64 environments itself.

Takes a few seconds, and pip install 'headrace[envpool]': python examples/train_envpool.py
"""

import headrace as hr


def main() -> None:
    with hr.PPO(
        "MlpPolicy",
        "envpool:CartPole-v1",
        env_kwargs={"num_threads": 1},
        n_envs=64,
        n_steps=32,
        batch_size=256,
        n_epochs=10,
        learning_rate=1e-3,
        gamma=0.98,
        gae_lambda=0.8,
        seed=1,
    ) as model:
        print(model.plan())
        model.learn(total_timesteps=60_000, progress_bar=True)
        mean, std = hr.evaluate_policy(model, n_eval_episodes=10)
        print(f"after {model.num_timesteps:,} steps: mean return {mean:.1f} +/- {std:.1f}")
        model.save("cartpole-envpool")

    # A pool's episodes can't be brought back, so its run is not resumed. Its weights can be used with any CartPole; an
    # EnvSpec has options of its own, so EnvPool's num_threads does not go to Gymnasium.
    with hr.PPO.load("cartpole-envpool", env=hr.EnvSpec("CartPole-v1"), weights_only=True) as model:
        mean, std = hr.evaluate_policy(model, n_eval_episodes=10)
        print(f"in Gymnasium's own CartPole-v1: mean return {mean:.1f} +/- {std:.1f}")


if __name__ == "__main__":
    main()
