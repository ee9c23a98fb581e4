"""FrozenLake in words: Gymnasium's own environment, drawn as a grid of signs. The map hangs on the seed."""

from __future__ import annotations

import gymnasium as gym
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from headrace.agents.environments.text_env import Step
from headrace.errors import UsageError
from headrace.keywords import in_words

_SIGNS = {b"S": "_", b"F": "_", b"H": "O", b"G": "G"}


@in_words()
class FrozenLake:
    """Walk from the upper left corner to G without falling into a hole."""

    actions = ("Left", "Down", "Right", "Up")

    def __init__(self, size: int = 4, frozen: float = 0.8, is_slippery: bool = False) -> None:
        if size < 2:
            raise UsageError(f"size: expected at least 2, got {size}")
        if not 0 < frozen <= 1:  # Gymnasium would look for a way over the water without end
            raise UsageError(f"frozen: expected a share above 0, and at most 1, got {frozen}")
        self._size, self._frozen, self._is_slippery = size, frozen, is_slippery
        self._env: gym.Env[int, int] | None = None
        slips = " The ice is slippery: you may slide to a side." if is_slippery else ""
        self.instructions = (
            "You walk on a frozen lake, from the upper left corner to the goal. P is you, _ is ice, O is a hole, G is "
            f"the goal, X is you in a hole, W is you at the goal.{slips}"
        )

    def reset(self, seed: int) -> str:
        """A map of its own."""
        self.close()
        lake = generate_random_map(self._size, self._frozen, seed)
        self._env = gym.make("FrozenLake-v1", desc=lake, is_slippery=self._is_slippery, max_episode_steps=10**6)
        place, _ = self._env.reset(seed=seed)
        return self._drawn(int(place))

    def step(self, action: str) -> Step:
        """One step on the ice."""
        assert self._env is not None, "reset first"
        before = int(self._env.unwrapped.s)  # type: ignore[attr-defined]
        place, reward, terminated, _, _ = self._env.step(self.actions.index(action))
        facts = {"success": float(float(reward) > 0), "action_is_effective": float(int(place) != before)}
        return Step(self._drawn(int(place)), float(reward), bool(terminated), facts)

    def close(self) -> None:
        """Close Gymnasium's environment."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def _drawn(self, place: int) -> str:
        assert self._env is not None
        lake = self._env.unwrapped.desc  # type: ignore[attr-defined]
        row, column = divmod(place, self._size)
        lines = []
        for y in range(self._size):
            signs = [_SIGNS[bytes(cell)] for cell in lake[y]]
            if y == row:
                signs[column] = {"O": "X", "G": "W"}.get(signs[column], "P")
            lines.append(" ".join(signs))
        return "\n".join(lines)
