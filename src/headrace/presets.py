"""Presets: options that people use together for a family of environments, by name.

    --preset atari, PPO(..., preset="atari") --> defaults of options; what the user gives besides wins

Wrappers are Gymnasium's own, in the order in which they are applied. All of them keep an environment in class A: its
episodes depend on seeds and actions alone. Knows names and numbers; builds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.errors import UsageError


@dataclass(frozen=True)
class Preset:
    """An environment's kwargs and wrappers, and options of the run."""

    env_kwargs: dict[str, Any] = field(default_factory=dict)
    wrappers: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    """Of policy, algorithm and topology."""
    total_timesteps: int | None = None


PRESETS = {
    # PPO's numbers are those of rl-baselines3-zoo (hyperparams/ppo.yml) and, but for clip_range's decay, of CleanRL's
    # ppo_atari.py. AtariPreprocessing skips frames itself, so the emulator must not.
    "atari": Preset(
        {"frameskip": 1},
        (
            "gymnasium.wrappers:AtariPreprocessing",
            'gymnasium.wrappers:ClipReward {"max_reward": 1.0, "min_reward": -1.0}',
            'gymnasium.wrappers:FrameStackObservation {"stack_size": 4}',
        ),
        {
            "policy": "CnnPolicy",
            "n_envs": 8,
            "n_steps": 128,
            "n_epochs": 4,
            "batch_size": 256,
            "learning_rate": "lin_2.5e-4",
            "clip_range": "lin_0.1",
            "ent_coef": 0.01,
        },
        10_000_000,
    ),
}


def preset_of(wrappers: tuple[object, ...]) -> str:
    """The preset that these wrappers are from; empty if the user named them."""
    return next((name for name, one in PRESETS.items() if one.wrappers and one.wrappers == wrappers), "")


def preset(name: str | None) -> Preset:
    """The preset of that name; an empty one if none is named."""
    if not name:
        return Preset()
    if name not in PRESETS:
        raise UsageError(f"preset: expected one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name]
