"""Train one agent of a PettingZoo game as a single environment: the others act at random, seeded by the episode.

    headrace train pettingzoo_agent:make --env-kwargs '{"game": "pettingzoo.sisl.multiwalker_v9"}'     (in this folder)

A parallel game is deterministic given its seed and all actions. Here the others' actions depend on the seed alone, so
the environment is class A and keeps every guarantee. It needs `pip install 'headrace[pettingzoo]'`.
"""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium as gym
import numpy as np


class OneAgent(gym.Env[Any, Any]):
    """The game as its first agent sees it; an episode ends when this agent is done."""

    def __init__(self, game: Any) -> None:
        self._game, self._me = game, game.possible_agents[0]
        self.observation_space, self.action_space = game.observation_space(self._me), game.action_space(self._me)
        self._others = {agent: game.action_space(agent) for agent in game.possible_agents[1:]}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """A new game; games take seeds of 32 bits."""
        super().reset(seed=seed)
        seeds = np.random.SeedSequence(seed).generate_state(1 + len(self._others))
        for space, own in zip(self._others.values(), seeds[1:].tolist(), strict=True):
            space.seed(own)
        observations, infos = self._game.reset(seed=int(seeds[0]))
        return observations[self._me], infos[self._me]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step of all agents that are still in the game."""
        actions = {agent: space.sample() for agent, space in self._others.items() if agent in self._game.agents}
        everyone = self._game.step({self._me: action, **actions})
        obs, reward, terminated, truncated, info = (part[self._me] for part in everyone)
        return obs, float(reward), terminated, truncated, info

    def close(self) -> None:
        """Close the game."""
        self._game.close()


def make(game: str = "pettingzoo.classic.rps_v2", **options: Any) -> OneAgent:
    """One agent of the game that a module of PettingZoo holds."""
    return OneAgent(importlib.import_module(game).parallel_env(**options))
