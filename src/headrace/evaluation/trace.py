"""What environments showed when they were driven by actions keyed by (env index, episode, step).

    VectorEnv --record--> {(env index, episode): Trace}          one row after the other, as an actor does it

    a fresh process: jobs --play--> each played, one after the other --> their traces, as plain arrays --traces_of-->

Actions are drawn from a description of the space, never from the environment's own
action_space, whose generator belongs to the environment. Info dicts are left out: they hold times.
Does not know what the traces are compared for (check).
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.envs.building import build_envs
from headrace.envs.masks import keep_lawful
from headrace.envs.seeds import Purpose, sequence
from headrace.envs.serial import SerialEnvs
from headrace.envs.spec import EnvSpec
from headrace.envs.vector_env import EnvFailure, LiveEpisode, VectorEnv
from headrace.errors import EnvError
from headrace.evaluation.lone_row import lone_row
from headrace.memory.checksum import begin as begun
from headrace.memory.crash_note import CrashNote
from headrace.memory.spaces import Leaves, Space, made_up, shape_of

MOST_ROWS = 1_000
MOST_S = 5.0  # of one job: a slow environment is judged by fewer steps
MOST_EPISODES = 5  # of one environment
_BLOCK = 64  # actions drawn at once
_MOST_BYTES = 256  # of an observation that is kept as it is

Array = npt.NDArray[Any]
Key = tuple[int, int]  # env index, episode


@dataclass(frozen=True)
class Job:
    """Some environments, played together: from their first episodes on, or one of them from a later one on."""

    env_indices: range
    rows: int
    first_episode: int = 0
    left_after: int = 0
    """The row after which the first environment leaves an episode that goes on and on; 0: never."""


@dataclass(frozen=True)
class Trace:
    """One episode: the bytes of its observations (the reset's first), or digests of long ones, rewards and flags.

    The observation after a termination is not among them: nothing is ever done with it.
    """

    obs: npt.NDArray[np.uint8]
    reward: npt.NDArray[np.float32]
    flags: npt.NDArray[np.bool_]

    def difference(self, other: Trace) -> str | None:
        """Where two traces part, in words; None if they are the same to the last bit."""
        for step in range(max(len(self.obs), len(other.obs))):
            if step < min(len(self.obs), len(other.obs)) and (self.obs[step] != other.obs[step]).any():
                return f"the observation {'of the reset' if step == 0 else f'after step {step - 1}'}"
            if step < min(len(self.reward), len(other.reward)):
                mine, others = self.reward[step], other.reward[step]
                if mine.tobytes() != others.tobytes() and not (np.isnan(mine) and np.isnan(others)):
                    return f"the reward of step {step}: {mine} and {others}"
                if (self.flags[step] != other.flags[step]).any():
                    return f"the flags of step {step}"
        if len(self.reward) != len(other.reward):
            return f"the length: {len(self.reward)} and {len(other.reward)} steps"
        return None


FIELDS = tuple(Trace.__dataclass_fields__)


@dataclass
class _Recording:
    obs: list[bytes] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    flags: list[tuple[bool, bool]] = field(default_factory=list)

    def trace(self) -> Trace:
        obs = np.frombuffer(b"".join(self.obs), np.uint8).reshape(len(self.obs), -1)
        return Trace(obs, np.array(self.reward, np.float32), np.array(self.flags, bool).reshape(-1, 2))


def record(
    envs: VectorEnv, job: Job, seed: int, seed_of: Callable[[int, int], int], most_s: float = math.inf
) -> dict[Key, Trace]:
    """Play a job and keep what was seen.

    With a limit of time it also ends when every environment has played enough; and half-way the first environment
    leaves its first episode, if that goes on: what is carried over a reset shows in a second episode only.
    """
    n, indices = envs.num_envs, job.env_indices
    row = lone_row(envs.observation_space, envs.action_space, n)
    obs, action, following = row.obs, row.action, row.next_obs
    episode = np.full(n, job.first_episode)
    found: dict[Key, _Recording] = {}
    finals: dict[int, bytes] = {}
    chosen: dict[Key, Iterator[Array]] = {}
    _begin(envs, job, seed_of, obs)
    for b, index in enumerate(indices):
        found[index, job.first_episode] = _Recording([_bytes(obs, b)])
    began, is_timed, is_half = time.perf_counter(), most_s < math.inf, False
    for number in range(1, job.rows + 1):
        for b, index in enumerate(indices):
            key = (index, int(episode[b]))
            if key not in chosen:
                chosen[key] = _actions(envs.action_space, seed, *key)
            action[b] = next(chosen[key])
        keep_lawful(envs.action_space, action, obs)
        finals.clear()
        envs.step(row, lambda b, final: finals.__setitem__(b, _bytes_of(final, following)))
        for b, index in enumerate(indices):
            one = found[index, int(episode[b])]
            if not row.valid[b]:  # a reset that took a step of its own: the episode begins after it
                one.obs[:] = [_bytes(following, b)]
                continue
            one.reward.append(float(row.reward[b]))
            one.flags.append((bool(row.terminated[b]), bool(row.truncated[b])))
            if not (row.terminated[b] or row.truncated[b]):
                one.obs.append(_bytes(following, b))
                continue
            if b in finals:
                one.obs.append(finals[b])
            episode[b] += 1
            found[index, int(episode[b])] = _Recording([] if envs.skips_rows else [_bytes(following, b)])
        elapsed_s, is_left = time.perf_counter() - began, number == job.left_after
        if is_timed and not is_half and (number >= job.rows // 2 or elapsed_s > most_s / 2):
            is_half, is_left = True, bool(episode[0] == job.first_episode)
        if is_left and isinstance(envs, SerialEnvs):
            try:
                envs.abandon(0, following)
            except EnvFailure:  # some refuse a reset before the end, and training does not ask for one
                break
            episode[0] += 1
            found[indices[0], int(episode[0])] = _Recording([_bytes(following, 0)])
        for name, leaf in following.items():
            obs[name][...] = leaf
        is_enough = (episode >= job.first_episode + MOST_EPISODES).all()
        if is_timed and (is_enough or elapsed_s > most_s):
            break
    return {key: one.trace() for key, one in found.items() if one.reward}


def played(
    spec: EnvSpec, job: Job, seed: int, most_s: float = math.inf, note: CrashNote | None = None
) -> dict[Key, Trace]:
    """Build a job's environments, play it, close them; a failure is an error that names what happened."""
    if note is not None:
        note.episode[:] = note.step[:] = 0  # of the job before
    envs = build_envs(spec, job.env_indices, seed, Purpose.CHECK, note=note)
    try:
        return record(envs, job, seed, spec.seed_of(seed, Purpose.CHECK), most_s)
    except EnvFailure as failure:
        index = job.env_indices[failure.position]
        raise EnvError(f"{spec.name}: env {index} of the check: the environment {failure.reason}") from (
            failure.__cause__ or failure
        )
    finally:
        envs.close()


def _begin(envs: VectorEnv, job: Job, seed_of: Callable[[int, int], int], obs: Leaves) -> None:
    if job.first_episode == 0:
        envs.begin(obs)
        return
    nothing, episode = np.empty((0, *shape_of(envs.action_space)), envs.action_space.dtype), job.first_episode
    live = [
        LiveEpisode(index, episode, seed_of(index, episode), nothing, begun(index, episode))
        for index in job.env_indices
    ]
    envs.restore(live, obs)


def _actions(space: Space, seed: int, env_index: int, episode: int) -> Iterator[Array]:
    """An episode's actions, as slabs hold them: choices count from 0."""
    rng = np.random.default_rng(sequence(seed, Purpose.CHECK, env_index, episode, 1))
    while True:
        yield from made_up(space, rng, _BLOCK, from_zero=True)


def _bytes(leaves: Leaves, b: int) -> bytes:
    return _short(b"".join(leaf[b].tobytes() for leaf in leaves.values()))


def _bytes_of(final: dict[str, Any], like: Leaves) -> bytes:
    return _short(b"".join(np.asarray(final[name]).astype(leaf.dtype).tobytes() for name, leaf in like.items()))


def _short(data: bytes) -> bytes:
    """Thousands of large images would fill the memory of three processes."""
    return data if len(data) <= _MOST_BYTES else hashlib.blake2b(data, digest_size=32).digest()


def play(payload: tuple[EnvSpec, int, Sequence[Job]], note: CrashNote) -> bytes:
    """The fresh process's side. All jobs have the same number of environments."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what environments print was printed before
    spec, seed, jobs = payload
    arrays: dict[str, Any] = {}
    for job in jobs:
        for (index, episode), one in played(spec, job, seed, note=note).items():
            for name in FIELDS:  # an episode that ended early goes on with another job's: that one's own counts
                arrays.setdefault(f"{index}/{episode}/{name}", getattr(one, name))
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def traces_of(answer: bytes) -> dict[Key, Trace]:
    """What it sent."""
    found: dict[Key, dict[str, Any]] = {}
    with np.load(io.BytesIO(answer), allow_pickle=False) as data:
        for name in data.files:
            index, episode, field = name.split("/")
            found.setdefault((int(index), int(episode)), {})[field] = data[name]
    return {key: Trace(**fields) for key, fields in found.items()}
