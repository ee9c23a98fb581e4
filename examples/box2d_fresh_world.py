"""BipedalWalker with every guarantee: a wrapper that gives each episode a physics world of its own.

    headrace check BipedalWalker-v3                                               class C
    headrace check BipedalWalker-v3 --wrappers box2d_fresh_world:FreshWorld       class A     (in this folder)

The environment destroys its bodies at a reset and builds new ones in the same world, and Box2D's world keeps traces of
the old ones: an episode depends on those before it. LunarLander makes a new world itself. It needs
`pip install 'headrace[box2d]'`.
"""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium as gym


class FreshWorld(gym.Wrapper[Any, Any, Any, Any]):
    """A new b2World before every reset; the terrain of the old one goes with it."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin in a new world."""
        env: Any = self.unwrapped
        env.world, env.terrain = importlib.import_module("Box2D").b2World(), []
        return super().reset(seed=seed, options=options)
