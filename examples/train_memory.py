"""Train an LSTM to recall a cue that was shown at the start of the episode; a policy without a memory can only guess.

Takes a few seconds: python examples/train_memory.py
"""

from typing import Any

import gymnasium as gym
import numpy as np

import headrace as hr

CUES, DELAY = 4, 4


class Recall(gym.Env[np.ndarray, int]):
    """A cue is shown in the first step; the action of the last step must name it."""

    observation_space = gym.spaces.Box(0.0, 1.0, (CUES + 1,), np.float32)
    action_space = gym.spaces.Discrete(CUES)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.cue, self.time = int(self.np_random.integers(CUES)), 0
        return self.seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        is_last = self.time == DELAY
        self.time += 1
        return self.seen(), float(is_last and action == self.cue), is_last, False, {}

    def seen(self) -> np.ndarray:
        """The cue at the start, and the question at the end."""
        obs = np.zeros(CUES + 1, np.float32)
        obs[self.cue], obs[CUES] = self.time == 0, self.time == DELAY
        return obs


def main() -> None:
    for policy, options in (("MlpLstmPolicy", {"lstm_hidden_size": 64}), ("MlpPolicy", {})):
        with hr.PPO(
            policy, Recall, n_envs=16, n_steps=32, batch_size=128, n_epochs=6, learning_rate=3e-3, seed=1,
            policy_kwargs=options,
        ) as model:  # fmt: skip
            model.learn(total_timesteps=12_000)
            mean, _ = hr.evaluate_policy(model, n_eval_episodes=200)
            print(f"{policy}: right in {mean:.0%} of 200 episodes")


if __name__ == "__main__":
    main()
