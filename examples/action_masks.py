"""Tic-tac-toe against a player that moves at random: squares that are taken are masked, so no illegal move is made.

python examples/action_masks.py --total-timesteps 60000
"""

import argparse
from typing import Any

import gymnasium as gym
import numpy as np

import headrace as hr

LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


class TicTacToe(gym.Env[Any, Any]):
    """Own squares are 1, the opponent's -1. A won game is worth 1, a lost one -1, a draw 0."""

    observation_space = gym.spaces.Box(-1, 1, (9,), np.float32)
    action_space = gym.spaces.Discrete(9)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.board = np.zeros(9, np.float32)
        if self.np_random.random() < 0.5:
            self._opponent()
        return self.board, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.board[action] = 1
        if not self._is_over():
            self._opponent()
        return self.board, self._score(), self._is_over(), False, {}

    def action_masks(self) -> Any:
        """The squares that are free."""
        return self.board == 0

    def _opponent(self) -> None:
        self.board[self.np_random.choice(np.flatnonzero(self.board == 0))] = -1

    def _score(self) -> float:
        totals = [self.board[list(line)].sum() for line in LINES]
        return 1.0 if max(totals) == 3 else -1.0 if min(totals) == -3 else 0.0

    def _is_over(self) -> bool:
        return self._score() != 0 or bool((self.board != 0).all())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-timesteps", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with hr.PPO(
        "MlpPolicy", TicTacToe, n_envs=16, n_steps=64, batch_size=256, learning_rate=1e-3, action_masks=True,
        seed=options.seed,
    ) as model:  # fmt: skip
        model.learn(options.total_timesteps)
        mean, _ = hr.evaluate_policy(model, n_eval_episodes=200)
        env = TicTacToe()
        board, _ = env.reset(seed=3)
        action, _ = model.predict(board, action_masks=env.action_masks(), deterministic=True)
    print(f"mean score {mean:.2f} of 200 games (1 won, -1 lost); on {board.astype(int).tolist()} it plays {action}")


if __name__ == "__main__":
    main()
