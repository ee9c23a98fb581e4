"""May an environment be used again after reset? Asked of a used instance and a fresh one, with the same actions.

An environment that carries something over from the last episode would make records depend on who played what before.
"""

from __future__ import annotations

import logging
import random

from headrace.agents.environments.text_env import TextEnv, TextEnvSpec, some_action

_STEPS = 12
_SEEDS = (11, 12, 13)

logger = logging.getLogger(__name__)


def is_reusable(spec: TextEnvSpec) -> bool:
    """Whether an instance that has played before says the same as a fresh one."""
    try:
        used = spec.build()
        try:
            for seed in _SEEDS:
                _seen(used, seed)  # leaves its traces, if it has any
            for seed in _SEEDS:
                fresh = spec.build()
                try:
                    if _seen(used, seed) != _seen(fresh, seed):
                        logger.warning(
                            "%s is not the same after another episode: a fresh one for every episode", spec.tag
                        )
                        return False
                finally:
                    fresh.close()
        finally:
            used.close()
    except Exception as error:
        logger.warning("%s could not be checked for reuse (%s: %s)", spec.tag, type(error).__name__, error)
        return False
    return True


def _seen(env: TextEnv, seed: int) -> list[object]:
    rng = random.Random(seed)
    seen: list[object] = [env.reset(seed)]
    for _ in range(_STEPS):
        step = env.step(some_action(env, rng, "1 + 1"))
        seen += [step.observation, step.reward, step.is_done, dict(step.facts)]
        if step.is_done:
            break
    return seen
