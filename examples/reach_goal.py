"""Dict observations and a feature extractor of your own: an arm of two joints reaches for a point that it is shown.

Reach has the three arrays of the Fetch environments (observation, achieved_goal, desired_goal), and its target once
more as a small image. `GoalImage` looks at the image alone; the other arrays go to the policy as they are.

Takes some ten seconds: python examples/reach_goal.py
"""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

import headrace as hr


class Reach(gym.Env[Any, Any]):
    """Two joints of length 1/2; the reward is minus the distance of the hand to the target."""

    PIXELS, LIMIT = 16, 25

    def __init__(self) -> None:
        point = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Dict(
            {
                "observation": spaces.Box(-1.0, 1.0, (4,), np.float32),
                "achieved_goal": point,
                "desired_goal": point,
                "camera": spaces.Box(0, 255, (self.PIXELS, self.PIXELS, 1), np.uint8),
            }
        )
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._angles, target = self.np_random.uniform(-np.pi, np.pi, (2, 2))
        self._target, self._steps = self._hand(target), 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._angles = self._angles + 0.5 * np.asarray(action)
        self._steps += 1
        distance = float(np.linalg.norm(self._hand(self._angles) - self._target))
        return self._seen(), -distance, False, self._steps >= self.LIMIT, {}

    @staticmethod
    def _hand(angles: Any) -> Any:
        first, second = angles[0], angles[0] + angles[1]
        return 0.5 * np.array([np.cos(first) + np.cos(second), np.sin(first) + np.sin(second)])

    def _seen(self) -> dict[str, Any]:
        image = np.zeros((self.PIXELS, self.PIXELS, 1), np.uint8)
        image[tuple(((self._target + 1) / 2 * (self.PIXELS - 1)).round().astype(int))] = 255
        return {
            "observation": np.concatenate([np.cos(self._angles), np.sin(self._angles)]).astype(np.float32),
            "achieved_goal": self._hand(self._angles).astype(np.float32),
            "desired_goal": self._target.astype(np.float32),
            "camera": image,
        }


class GoalImage(nn.Module):
    """As Stable-Baselines3 has it: built for a space, with a `features_dim`. Images arrive as [N, C, H, W], in 0..1."""

    def __init__(self, observation_space: spaces.Box, features_dim: int = 16) -> None:
        super().__init__()
        self.features_dim = features_dim
        channels, height, width = observation_space.shape
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 8, 4, stride=4), nn.ReLU(), nn.Flatten(),
            nn.Linear(8 * (height // 4) * (width // 4), features_dim), nn.ReLU(),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.layers(images)
        return features


def main() -> None:
    extractors = {
        "features_extractor_class": {"camera": GoalImage},
        "features_extractor_kwargs": {"camera": {"features_dim": 8}},
    }
    with hr.PPO(
        "MultiInputPolicy", Reach, n_envs=16, n_steps=50, batch_size=200, gamma=0.9, learning_rate=1e-3, seed=1,
        policy_kwargs=extractors, topology="inline",
    ) as model:  # fmt: skip
        print(model.plan())
        before, _ = hr.evaluate_policy(model, n_eval_episodes=50)
        model.learn(40_000)
        after, _ = hr.evaluate_policy(model, n_eval_episodes=50)
        print(f"mean return {before:.1f} before, {after:.1f} after {model.num_timesteps:,} steps")


if __name__ == "__main__":
    main()
