"""Rollouts as Parquet or Minari: hr.export_rollouts of a run directory, hr.RolloutWriter of a collector's batches.

    run directory --consent--> recorded episodes --replayed, every checksum compared--> Episode --> file
    collector --batches--> rows (Parquet) · whole episodes (Minari; the last observation of those that terminated, which
                           no batch holds, comes from a replay in which every step is compared) --> file

What differs from its record is an error, and no file is left.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from headrace.api.collector import Collector
from headrace.api.replay import admitted_env, read_frames, why_it_differs
from headrace.api.whereabouts import whereabouts
from headrace.envs.actions import sender
from headrace.envs.adapters.gymnasium_spaces import describe_action, describe_observation
from headrace.envs.instances import Instance
from headrace.envs.replaying import Replay
from headrace.envs.seeds import Purpose
from headrace.envs.spec import EnvSource, EnvSpec
from headrace.episodes.recorded import RecordedEpisode, episodes_of
from headrace.errors import JournalError, ReplayError, UsageError
from headrace.evaluation.replay import replay_env, replay_in
from headrace.exports.episode import Episode, RolloutFile
from headrace.exports.minari import PREFIX, MinariFile
from headrace.exports.parquet import ParquetFile
from headrace.exports.stitching import Stitched, Stitching
from headrace.keywords import in_words
from headrace.learning.batch import Batch
from headrace.memory.spaces import Leaves, ObservationSpace, Space

Array = npt.NDArray[Any]
Spaces = tuple[ObservationSpace, Space]
Progress = Callable[[int, int, int], None]  # episodes done, episodes in all, steps done


@dataclass(frozen=True)
class Exported:
    """What was written."""

    episodes: int
    steps: int


@in_words()
def export_rollouts(
    run: str | os.PathLike[str],
    to: str | os.PathLike[str],
    env: EnvSource | EnvSpec | Instance | None = None,
    trust: bool = False,
    progress: Progress = lambda episodes, total, steps: None,
) -> Exported:
    """Write the recorded episodes of a run directory to a Parquet file (a name that ends in .parquet) or to a Minari
    dataset (minari:ID). They are executed again for it, and every observation, reward and flag is compared with the
    run's, to the last bit. `env` and `trust` are those of PPO.load.
    """
    if not isinstance(run, str | os.PathLike):
        raise UsageError(
            f"export_rollouts: expected a run directory, got {run!r}; train with learn(..., run_dir=...), "
            "or write batches of hr.Collector with hr.RolloutWriter"
        )
    folder = whereabouts.reachable(Path(run))
    require_target(to)
    to = _meant(to)
    spec = admitted_env(folder, env, trust)
    seed, frames = read_frames(folder)
    recorded = [one for one in episodes_of(frames) if one.is_finished]
    if not recorded:
        raise JournalError(f"{folder}: expected recorded episodes that have ended, found none; train for longer")
    seed_of, steps = spec.seed_of(seed, Purpose.ENV), 0
    with replay_env(spec) as played, _written(to, played, spec, seed) as file:
        for number, one in enumerate(recorded, 1):
            try:
                episode = _replayed(played, spec.name, seed_of(one.env_index, one.episode), one)
            except ReplayError as error:
                raise ReplayError(f"{folder}: {error}. {why_it_differs(folder)}; nothing was written") from error
            file.add(episode)
            steps += episode.length
            progress(number, len(recorded), steps)
    return Exported(len(recorded), steps)


@in_words()
class RolloutWriter:
    """Writes batches of a collector to a Parquet file (a name that ends in .parquet) or a Minari dataset (minari:ID).

    Use it in a `with` block: the file appears at its end, and not at all if the block ends in an exception. Parquet
    gets every step; Minari gets whole episodes: those that began before, or still run at the end, are left out.
    """

    def __init__(self, collector: Collector, to: str | os.PathLike[str]) -> None:
        require_target(to)
        if not isinstance(collector, Collector):
            raise UsageError(f"RolloutWriter: expected an hr.Collector, got {type(collector).__name__}")
        config = collector.parts.config
        self.episodes = self.steps = 0  # written so far
        self._seed_of = cache(config.env.seed_of(config.seed, Purpose.ENV))
        self._spec = config.env
        with ExitStack() as undo:
            # Rows of a vector environment are rows too: only what is replayed needs an environment of its own.
            is_replayed = str(to).startswith(PREFIX)
            self._env = undo.enter_context(replay_env(config.env)) if is_replayed else None
            spaces = (collector.parts.observation, collector.parts.action)
            self._file = undo.enter_context(_written(_meant(to), self._env, config.env, config.seed, spaces))
            self._stitching = Stitching()
            self._open = undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def write(self, batch: Batch) -> None:
        """The batch in hand, once."""
        if isinstance(self._file, ParquetFile):
            self._write_rows(self._file, batch)
            return
        for one in self._stitching.take(batch):
            self._file.add(self._whole(one))
            self.episodes, self.steps = self.episodes + 1, self.steps + len(one.columns["reward"])

    def _write_rows(self, file: ParquetFile, batch: Batch) -> None:
        """Environment after environment, so that an episode's steps lie together."""
        rows = batch.valid.T.reshape(-1)

        def by_env(array: Array) -> Array:
            return np.swapaxes(array, 0, 1).reshape(-1, *array.shape[2:])[rows]

        names = ("episode", "step", "version", "action", "reward", "terminated", "truncated", "log_prob", "value")
        columns = {name: by_env(getattr(batch, name)) for name in names}
        columns["env_index"] = np.repeat(np.arange(batch.n_envs), batch.n_steps)[rows]
        pairs = zip(columns["env_index"].tolist(), columns["episode"].tolist(), strict=True)
        columns["seed"] = np.fromiter((self._seed_of(*pair) for pair in pairs), np.int64, int(rows.sum()))
        t, env = np.divmod(batch.final_row, batch.n_envs)
        final_row = (np.cumsum(rows) - 1)[env * batch.n_steps + t]
        leaves = {name: by_env(leaf) for name, leaf in batch.leaves.items()}
        file.add_rows(columns, leaves, final_row, batch.final_leaves)
        self.episodes += int((columns["terminated"] | columns["truncated"]).sum())
        self.steps += len(columns["reward"])

    def _whole(self, one: Stitched) -> Episode:
        assert self._env is not None
        seed = self._seed_of(one.env_index, one.episode)
        final = one.final if one.final is not None else _last_observation(self._env, self._spec.name, seed, one)
        leaves = {name: np.concatenate([leaf, final[name][None]]) for name, leaf in one.leaves.items()}
        return Episode(
            one.env_index, one.episode, seed, leaves, terminated=one.terminated, truncated=one.truncated, **one.columns
        )


def require_target(to: str | os.PathLike[str]) -> None:
    """Refuse a name that says no format, or that is taken."""
    text, path = os.fspath(to), Path(to)
    if text.startswith(PREFIX):
        return
    if path.suffix != ".parquet":
        raise UsageError(f"expected a name that ends in .parquet, or {PREFIX}ID such as {PREFIX}mine-v0, got {text!r}")
    if path.exists():
        raise UsageError(f"{path}: it exists already; choose another name, or remove it")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: expected a file in an existing directory")


def _meant(to: str | os.PathLike[str]) -> str:
    """Environments may change the working directory: a file is where the caller means it."""
    text = os.fspath(to)
    return text if text.startswith(PREFIX) else str(whereabouts.absolute(Path(text)))


@contextmanager
def _written(
    to: str | os.PathLike[str], env: gym.Env[Any, Any] | None, spec: EnvSpec, seed: int, spaces: Spaces | None = None
) -> Iterator[RolloutFile]:
    """A file that appears when the block ends, and not at all after an exception."""
    text = os.fspath(to)
    if text.startswith(PREFIX):
        assert env is not None
        plain = isinstance(spec.env, str) and not spec.wrappers and spec.action_repeat == 1
        about = {"description": f"Recorded by headrace: {spec.name}, seed {seed}."}
        action = describe_action(env.action_space, spec.name)
        theirs = (env.observation_space, env.action_space)
        file: RolloutFile = MinariFile(
            text.removeprefix(PREFIX), theirs, env.spec if plain else None, action, about
        )  # fmt: skip
    else:
        if spaces is None:
            assert env is not None
            spaces = (
                describe_observation(env.observation_space, spec.name),
                describe_action(env.action_space, spec.name),
            )
        file = ParquetFile(Path(text), *spaces, {"env": spec.encode(), "seed": seed})
    try:
        yield file
        file.finish()
    except BaseException:
        file.discard()
        raise


def _replayed(env: gym.Env[Any, Any], name: str, seed: int, recorded: RecordedEpisode) -> Episode:
    """A recorded episode, whole again; an error unless it is the recorded one to the last bit."""
    seen: list[Leaves] = []
    rewards: list[float] = []

    def look(env: gym.Env[Any, Any], replay: Replay) -> None:
        seen.append({leaf: np.array(array) for leaf, array in replay.stored().items()})
        if replay.length:
            rewards.append(replay.last_reward)

    result = replay_in(env, name, seed, recorded, look)
    if result.difference is not None:
        raise ReplayError(f"episode {recorded.name}, seed {seed}: {result.difference}")
    leaves = {leaf: np.stack([one[leaf] for one in seen]) for leaf in seen[0]}
    return Episode(
        recorded.env_index, recorded.episode, seed, leaves, recorded.actions, np.array(rewards, np.float32),
        recorded.terminated, recorded.truncated, recorded.versions,
    )  # fmt: skip


def _last_observation(env: gym.Env[Any, Any], name: str, seed: int, one: Stitched) -> Leaves:
    """In which it terminated, from a replay that shows the same on the way."""
    spaces = describe_observation(env.observation_space, name), describe_action(env.action_space, name)
    obs, _ = env.reset(seed=seed)
    replay = Replay(env.step, obs, spaces, (one.env_index, one.episode))
    actions = one.columns["action"]
    for step, pair in enumerate(zip(actions, sender(spaces[1])(actions.copy()), strict=True)):
        same = all(np.array_equal(leaf, one.leaves[key][step]) for key, leaf in replay.stored().items())
        reward, terminated, truncated = replay.step(*pair)
        is_last = step == len(actions) - 1
        flags = (one.terminated, one.truncated) if is_last else (False, False)
        if not same or np.float32(reward) != one.columns["reward"][step] or (terminated, truncated) != flags:
            raise ReplayError(
                f"env {one.env_index}, episode {one.env_index}:{one.episode}, seed {seed}, step {step}: the "
                f"environment does not repeat what the collector saw, so its last observation can't be found (see "
                f"headrace check). A .parquet file needs no replay"
            )
    return replay.stored()
