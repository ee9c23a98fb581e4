"""Frame stacks, stored once: what is rebuilt is what Gymnasium's FrameStackObservation returned, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import ClipReward, FrameStackObservation, RecordEpisodeStatistics

from headrace.envs.building import build_envs
from headrace.envs.spec import EnvSpec
from headrace.errors import EnvError
from headrace.learning.assembly import assemble
from headrace.learning.batch import Batch
from headrace.memory.layout import slab_bytes
from headrace.memory.schema import rollout_schema
from headrace.memory.spaces import Box, Discrete, stack_of
from support.bit_envs import Frames
from support.slabs import act_by_noise, noise_actor, slab_for
from support.topology_runs import CASES, INLINE, calm

N_ENVS, N_ROWS = 3, 40


class Opaque(gym.Wrapper[Any, Any, Any, Any]):
    """Changes nothing, but nobody knows that: what it shows is stored as it is."""


class SpoiltReward(gym.Wrapper[Any, Any, Any, Any]):
    """Some episodes have a reward that is no number."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return (obs, float("nan") if self.np_random.random() < 0.1 else reward, *rest)


class Reused(gym.Wrapper[Any, Any, Any, Any]):
    """Shows the same array again and again, as some emulators do."""

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        self._shown = getattr(self, "_shown", obs)
        self._shown[...] = obs
        return (self._shown, *rest)


def spec(*above: Callable[..., Any], below: tuple[Any, ...] = (), stack_size: int = 4) -> EnvSpec:
    return EnvSpec(Frames, {"limit": 9}, (*below, partial(FrameStackObservation, stack_size=stack_size), *above))


def batches(env: EnvSpec, n_steps: int, nan_policy: str = "raise") -> list[Batch]:
    """Consecutive rollouts of a few environments, as a learner reads them."""
    envs = build_envs(env, range(N_ENVS), seed=5, nan_policy=nan_policy)
    actor, found = noise_actor(envs, range(N_ENVS)), []
    for version in range(N_ROWS // n_steps):
        slab = slab_for(envs, n_steps)
        actor.fill(slab, act_by_noise(version))
        found.append(assemble([slab]))
    actor.close()
    return found


def same(stored_once: list[Batch], stored_whole: list[Batch], valid_only: bool = False) -> None:
    for ours, theirs in zip(stored_once, stored_whole, strict=True):
        rows = ours.valid if valid_only else np.ones_like(ours.valid)
        np.testing.assert_array_equal(ours.obs[rows], theirs.obs[rows])
        for name in ("last_obs", "final_obs", "final_row", "reward", "step", "valid"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), name)


@pytest.mark.parametrize("stack_size", [2, 4, 7])
@pytest.mark.parametrize("n_steps", [1, 2, 5, 20])
def test_rebuilt_stacks_are_the_ones_that_were_shown(stack_size: int, n_steps: int) -> None:
    """At episode starts, ends, truncations and the borders of rollouts, also of ones shorter than a stack."""
    stored_once = batches(spec(stack_size=stack_size), n_steps)
    same(stored_once, batches(spec(Opaque, stack_size=stack_size), n_steps))
    assert sum(len(one.final_row) for one in stored_once) > 3
    assert sum(int(one.terminated.sum()) for one in stored_once) > 0
    assert stored_once[0].obs.shape == (n_steps, N_ENVS, stack_size, 36, 36)


def test_dropped_episodes_leave_the_others_alone() -> None:
    stored_once = batches(spec(below=(SpoiltReward,)), 5, nan_policy="drop")
    same(stored_once, batches(spec(Opaque, below=(SpoiltReward,)), 5, nan_policy="drop"), valid_only=True)
    assert 0.2 < np.mean([one.valid.mean() for one in stored_once]) < 0.95


def test_a_slab_holds_each_frame_once() -> None:
    def size(stack: int) -> int:
        space = Box((4, 84, 84), "uint8", (0.0,), (255.0,), stack)
        return slab_bytes(rollout_schema(space, Discrete(4), 128, 8))

    assert size(4) < 0.26 * size(0)


def test_a_run_learns_the_same_from_stacks_that_are_stored_whole() -> None:
    case = CASES["stacks"]
    assert replace(case, wrappers=(*case.wrappers, Opaque)).play(**INLINE) == calm("stacks")


@pytest.mark.parametrize(
    ("wrappers", "stack"),
    [
        ((), 4),
        ((partial(ClipReward, min_reward=-1, max_reward=1), RecordEpisodeStatistics), 4),
        ((Opaque,), 0),
        ((partial(FrameStackObservation, stack_size=2),), 2),
    ],
    ids=["outermost", "below wrappers that pass observations on", "below an unknown wrapper", "twice"],
)
def test_which_stacks_are_seen(wrappers: tuple[Any, ...], stack: int) -> None:
    envs = build_envs(spec(*wrappers), range(1), 0)
    assert stack_of(envs.observation_space) == stack
    envs.close()


@pytest.mark.parametrize(
    ("env", "wrapper"),
    [
        ("CartPole-v1", partial(FrameStackObservation, stack_size=4)),
        (Frames, partial(FrameStackObservation, stack_size=4, padding_type="zero")),
        (Frames, partial(FrameStackObservation, stack_size=1)),
    ],
    ids=["numbers", "padded with zeros", "of one"],
)
def test_other_stacks_are_stored_as_they_are(env: Any, wrapper: Any) -> None:
    envs = build_envs(EnvSpec(env, {}, (wrapper,)), range(1), 0)
    assert stack_of(envs.observation_space) == 0
    envs.close()


def test_an_environment_that_changes_frames_that_it_has_shown_is_named() -> None:
    envs = build_envs(spec(below=(Reused,)), range(N_ENVS), seed=5)
    actor, slab = noise_actor(envs, range(N_ENVS)), slab_for(envs, N_ROWS)
    with pytest.raises(EnvError, match=r"env \d, episode \d:\d+, seed \d+, step \d+.*changed a frame.*np.copy"):
        actor.fill(slab, act_by_noise(0))
    actor.close()
