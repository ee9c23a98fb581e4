"""A recorded episode, executed once more and compared with its record.

    spec, seed, recorded episode --reset, step, step ...--> length, return, flags, checksum --> the same, or where not

Reports instead of raising when the outcome differs: that is what it is asked for. What can't be replayed at all (a pool
that resets itself, an environment that raises, other actions) is an error. Does not know run directories or consent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from headrace.envs.actions import sender
from headrace.envs.adapters.gymnasium_spaces import describe_action, describe_observation
from headrace.envs.raising import failure
from headrace.envs.replaying import Replay
from headrace.envs.spec import EnvSpec
from headrace.envs.vector_env import EnvFailure
from headrace.episodes.recorded import RecordedEpisode
from headrace.errors import EnvError, HeadraceError, ReplayError, UsageError
from headrace.memory.spaces import shape_of
from headrace.plain_text import message_of

Look = Callable[[gym.Env[Any, Any], Replay], None]  # called after the reset and after every step


@dataclass(frozen=True)
class Outcome:
    """What an episode came to."""

    length: int
    total_reward: float
    terminated: bool
    truncated: bool
    checksum: int


@dataclass(frozen=True)
class Replayed:
    """A recorded episode beside its replay."""

    recorded: RecordedEpisode
    seed: int
    """Of its reset."""
    replayed: Outcome
    difference: str | None
    """The first difference that can be located, in words."""

    @property
    def is_identical(self) -> bool:
        """Whether every observation, reward and flag is the recorded one, to the last bit."""
        return self.difference is None


class ClassBError(ReplayError):
    """No episode of these environments can be played again."""


def replay_episode(
    spec: EnvSpec, seed: int, recorded: RecordedEpisode, look: Look = lambda env, replay: None
) -> Replayed:
    """Play a recorded episode again, in an environment of its own; `seed` is that of its reset."""
    try:
        with replay_env(spec) as env:
            return replay_in(env, spec.name, seed, recorded, look)
    except ClassBError as error:
        raise ReplayError(f"env {recorded.env_index}, episode {recorded.name}, seed {seed}: {error}") from None


@contextmanager
def replay_env(spec: EnvSpec) -> Iterator[gym.Env[Any, Any]]:
    """An environment that recorded episodes can be played in."""
    if spec.is_vector():
        raise ClassBError(
            f"{spec.name} is class B (a vector environment that resets itself): an episode of it can't be rebuilt from "
            f"its seed and actions. headrace replay's --list and --diff work without that"
        )
    env = spec.make()
    try:
        yield env
    except BaseException:
        with suppress(Exception):
            env.close()
        raise
    try:
        env.close()
    except BaseException as error:
        why = failure(0, 0, error).reason.removeprefix("raised ")
        raise EnvError(f"{spec.name}: could not be closed: {why}") from error


def replay_in(
    env: gym.Env[Any, Any], name: str, seed: int, recorded: RecordedEpisode, look: Look = lambda env, replay: None
) -> Replayed:
    """The same in a given environment, which stays open for the next episode."""
    where, count = f"env {recorded.env_index}, episode {recorded.name}, seed {seed}", 0
    try:
        spaces = (describe_observation(env.observation_space, name, env), describe_action(env.action_space, name))
        actions = recorded.actions
        wanted = spaces[1].dtype, shape_of(spaces[1])
        if (str(actions.dtype), actions.shape[1:]) != wanted:
            raise ReplayError(
                f"{where}: expected actions of {wanted[0]} and shape {wanted[1]}, as the environment takes them, "
                f"got {actions.dtype} and {actions.shape[1:]}; is it the environment of the run?"
            )
        obs = _reset(env, recorded.env_index, seed)
        replay = Replay(env.step, obs, spaces, (recorded.env_index, recorded.episode))
        look(env, replay)
        marks, agreed, parted = dict(recorded.marks), 0, None
        rewards, terminated, truncated = [], False, False
        for count, sent in enumerate(zip(actions, sender(spaces[1])(actions.copy()), strict=True)):
            reward, terminated, truncated = replay.step(*sent)
            rewards.append(reward)
            look(env, replay)
            if parted is None and count + 1 in marks:
                parted = None if replay.checksum == marks[count + 1] else count
                agreed = agreed if parted is not None else count + 1
            if terminated or truncated:
                break
    except EnvFailure as failure:
        raise EnvError(f"{where}, step {count}: the environment {failure.reason}") from (failure.__cause__ or failure)
    except HeadraceError:
        raise
    except gym.error.DependencyNotInstalled as error:  # as render() of most environments needs pygame
        raise UsageError(f"{where}, step {count}: a package is missing: {error}") from error
    except Exception as error:
        raise EnvError(
            f"{where}, step {count}: the environment raised {type(error).__name__}: {message_of(error)}"
        ) from error
    outcome = Outcome(replay.length, math.fsum(rewards), terminated, truncated, replay.checksum)
    difference = _difference(recorded, outcome, agreed, parted)
    rounding = 1e-9 * math.fsum(map(abs, rewards))  # the run summed them in another order
    if (
        difference is None
        and recorded.is_finished
        and not abs(outcome.total_reward - recorded.total_reward) <= rounding
    ):
        difference = f"every step is identical, but the recorded return is not their sum, {outcome.total_reward:g}"
    return Replayed(recorded, seed, outcome, difference)


def _reset(env: gym.Env[Any, Any], env_index: int, seed: int) -> Any:
    try:
        obs, _ = env.reset(seed=seed)
    except BaseException as error:
        raise failure(0, env_index, error, f"reset(seed={seed})") from error
    return obs


def _difference(recorded: RecordedEpisode, got: Outcome, agreed: int, parted: int | None) -> str | None:
    if parted is not None:
        where = f"one of the steps {agreed} to {parted}" if parted > agreed else f"step {agreed}"
        before = f"; the steps before it are identical, {agreed} of {recorded.length}" if agreed else ""
        return f"an observation, a reward or a flag of {where} is not the recorded one{before}"
    if got.length != recorded.length:
        return f"it ended at step {got.length - 1}, the recorded one at step {recorded.length - 1}"
    return None
