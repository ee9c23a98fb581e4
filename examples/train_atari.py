"""Train PPO on an Atari game with Gymnasium's wrappers, and look at the score.

A short try: python examples/train_atari.py
For real:    python examples/train_atari.py ALE/Breakout-v5 10000000
Needs `pip install 'headrace[atari]'`.
"""

import sys

import headrace as hr

STACK = 'gymnasium.wrappers:FrameStackObservation {"stack_size": 4}'


def main(game: str = "ALE/Pong-v5", steps: int = 256) -> None:
    is_short = steps < 10_000
    small = {"n_envs": 4, "n_steps": 32, "batch_size": 64, "n_epochs": 1} if is_short else {}
    with hr.PPO("CnnPolicy", game, preset="atari", seed=1, **small) as model:
        print(model.plan())
        model.learn(total_timesteps=steps, progress_bar=True)
        # The preset clips rewards. Without ClipReward, returns are the game's score.
        kwargs = {"frameskip": 1} | ({"max_num_frames_per_episode": 400} if is_short else {})
        score = hr.EnvSpec(game, kwargs, ("gymnasium.wrappers:AtariPreprocessing", STACK))
        mean, std = hr.evaluate_policy(model, score, n_eval_episodes=4, deterministic=False)
        print(f"after {model.num_timesteps:,} steps: score {mean:.1f} +/- {std:.1f}")
        model.save("atari")


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
