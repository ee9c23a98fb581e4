"""Attributes of SB3's models: read from the configuration, and not set.

model.gamma --> 0.99   model.observation_space --> get_env()'s, or one of a pool's   model.ent_coef = 1.0 --> an error
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from headrace.api.other_names import attribute_hint
from headrace.envs.adapters.gymnasium_spaces import as_gymnasium
from headrace.errors import UsageError
from headrace.learning.config import AlgorithmConfig

_PLACED = ("n_envs", "n_steps", "stats_window_size")
_PLAYED = ("observation_space", "action_space")


class Sb3Attributes:
    """Of a model, where SB3's users look for them."""

    def __getattr__(self, name: str) -> Any:
        model: Any = self
        if not name.startswith("_"):
            config = model.parts.config
            if name in _options(config.algorithm):
                return getattr(config.algorithm, name)
            if name in _PLACED:
                return getattr(config.topology, name)
            if name == "seed":
                return config.seed
            if name in _PLAYED:
                pool = {"observation_space": model.parts.observation, "action_space": model.parts.action}
                return as_gymnasium(pool[name]) if config.env.is_vector() else getattr(model.get_env(), name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{attribute_hint(name)}")

    def __getstate__(self) -> Any:
        raise TypeError(
            f"a model can't be copied or pickled: model.save(folder) and {type(self).__name__}.load(folder)"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        parts = vars(self).get("_parts")
        if parts is not None and name in (*_PLACED, *_PLAYED, "seed", *_options(parts.config.algorithm)):
            raise UsageError(
                f"{name} can't be set, which would have no effect: options are given to {type(self).__name__}(...) or "
                f"load(path, ...); learning_rate, clip_range and ent_coef may be functions of the progress left"
            )
        super().__setattr__(name, value)


def _options(config: AlgorithmConfig) -> list[str]:
    return [field.name for field in fields(config)]
