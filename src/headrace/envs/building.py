"""The environments of a shard, from a spec: single ones in our own loop, or a vector environment behind its adapter.

    EnvSpec, env indices, seed, branch of the seed tree --build_envs--> VectorEnv

`first_look` finds out whether an environment takes 63-bit seeds: those with numpy's RandomState take 32 bits.
Does not know who steps them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym

from headrace.envs.adapters.gymnasium_vector import GymnasiumVector
from headrace.envs.mended import mended
from headrace.envs.seeds import LONG, SHORT, Purpose
from headrace.envs.serial import SerialEnvs
from headrace.envs.spec import EnvSpec
from headrace.envs.successes import Successes
from headrace.envs.vector_env import EnvFailure, VectorEnv
from headrace.errors import EnvRaised, HeadraceError
from headrace.memory.crash_note import DOING, MAKE, CrashNote
from headrace.memory.spaces import empty_leaves


def build_envs(
    spec: EnvSpec,
    env_indices: range,
    seed: int,
    purpose: Purpose = Purpose.ENV,
    nan_policy: str = "raise",
    note: CrashNote | None = None,
    successes: Successes | None = None,
) -> VectorEnv:
    """The environments with these indices; `successes` watches them."""
    seed_of = spec.seed_of(seed, purpose)
    if spec.is_vector():
        note = note or CrashNote(len(env_indices))
        note.words[DOING] = MAKE
        made = spec.make_vector([seed_of(index, 0) for index in env_indices])
        made = made if successes is None else successes.watch_pool(made)
        pool = GymnasiumVector(made, env_indices, seed_of, note, spec.name, spec.is_seeded_when_made())
        return mended(pool, nan_policy)
    make = _makes(spec, env_indices)
    watched = make if successes is None else lambda: successes.watch(make())
    return mended(SerialEnvs(watched, env_indices, seed_of, note), nan_policy)


def _makes(spec: EnvSpec, env_indices: range) -> Callable[[], gym.Env[Any, Any]]:
    """Makes one after the other, and says which one could not be made."""
    indices = iter(env_indices)

    def make() -> gym.Env[Any, Any]:
        index = next(indices)
        try:
            return spec.make()
        except EnvRaised as error:
            error.place = (index, -1, -1)
            raise

    return make


def first_look(
    spec: EnvSpec, seed: int, purpose: Purpose = Purpose.ENV, note: CrashNote | None = None
) -> tuple[EnvSpec, VectorEnv]:
    """One environment, reset once, and the spec with the widest seeds that it takes.

    One that fails with both keeps its long seeds and is not judged: its error is shown where it is played.
    """
    envs = build_envs(spec, range(1), seed, purpose, note=note)
    if spec.seed_bits == LONG and not _begins(envs):
        short = replace(spec, seed_bits=SHORT)
        others = build_envs(short, range(1), seed, purpose, note=note)
        if _begins(others):
            spec, envs, others = short, others, envs
        others.close()
    return spec, envs


def _begins(envs: VectorEnv) -> bool:
    try:
        envs.begin(empty_leaves(envs.observation_space, envs.num_envs))
    except (EnvFailure, HeadraceError):
        return False
    except BaseException:
        envs.close()
        raise
    return True
