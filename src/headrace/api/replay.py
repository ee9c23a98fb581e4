"""hr.replay: a recorded episode of a run directory, executed again and compared; and what is recorded.

    run directory --config.json, consent--> environment · seed     --journal/--> recorded episodes
    replay(run, "3:17") --> Replayed: recorded beside replayed, and the first difference

A run directory is data: what its config.json names is built only with consent (loading).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

from headrace.api.arguments import source_of, with_env
from headrace.api.whereabouts import whereabouts
from headrace.checkpoints.run_directory import other_versions, read_config
from headrace.collecting.topology import PLACES
from headrace.envs.instances import Instance
from headrace.envs.masks import masked
from headrace.envs.seeds import Purpose
from headrace.envs.spec import MASKS, EnvSource, EnvSpec
from headrace.episodes.journal_file import read_journal
from headrace.episodes.parting import Parting, first_parting
from headrace.episodes.recorded import RecordedEpisode, episodes_of
from headrace.errors import JournalError, UsageError
from headrace.evaluation.replay import Look, Replayed, replay_episode
from headrace.evaluation.video import Film, require_video_name
from headrace.keywords import in_words
from headrace.loading import admit_config
from headrace.plain_text import shortened
from headrace.run_config import decode_env

_SHOWN = 200  # characters of an option
_EPISODE = re.compile(r"\s*(\d{1,18})\s*[:,]\s*(\d{1,18})\s*")


@in_words()
def replay(
    run: str | os.PathLike[str],
    episode: str | tuple[int, int],
    env: EnvSource | EnvSpec | Instance | None = None,
    trust: bool = False,
    render: str | os.PathLike[str] | None = None,
) -> Replayed:
    """Execute a recorded episode of a run directory again and compare it with its record, to the last bit.

    `episode` is "3:17" or (3, 17): episode 17 of environment 3. `env` and `trust` are those of PPO.load. With `render`,
    a video of it is written (.gif, .png or .webp). What differs is in the result; it is no error.
    """
    folder = whereabouts.reachable(Path(run))
    index, number = _episode_id(episode)
    spec = admitted_env(folder, env, trust)
    seed, frames = read_frames(folder)
    found = [one for one in episodes_of(frames, index) if one.episode == number]
    if not found or not found[0].is_finished:
        raise JournalError(_missing(folder, index, number, frames, found))
    with _filming(spec, render) as (seen, look):
        result = replay_episode(seen, spec.seed_of(seed, Purpose.ENV)(index, number), found[0], look)
    if result.difference is None:
        return result
    return replaced(result, difference=f"{result.difference}. {why_it_differs(folder)}")


@in_words()
def recorded_episodes(run: str | os.PathLike[str]) -> list[RecordedEpisode]:
    """The finished episodes that a run directory still holds as a whole, in the order they ended."""
    _, frames = read_frames(whereabouts.reachable(Path(run)))
    return [one for one in episodes_of(frames) if one.is_finished]


def compare_runs(a: Path, b: Path) -> tuple[Parting | None, list[str]]:
    """Where two runs of one seed part ways, and a line for each option in which they differ; builds nothing."""
    (seed, ours), (other, theirs) = read_frames(a), read_frames(b)
    if seed != other:
        raise UsageError(f"expected two runs of one seed, got {seed} ({a}) and {other} ({b})")
    was, now = (_flat(read_config(folder)[0]) for folder in (a, b))
    differs = [
        f"{name}: {shortened(str(was.get(name)), _SHOWN)} and {shortened(str(now.get(name)), _SHOWN)}"
        for name in was | now
        if was.get(name) != now.get(name)
    ]
    was_recorded, now_recorded = episodes_of(ours), episodes_of(theirs)
    if {one.name for one in was_recorded}.isdisjoint(one.name for one in now_recorded):
        raise JournalError(
            f"{a}, {b}: expected episodes that both have recorded, found none; nothing can be compared "
            f"(keep_episodes_mb sets how many are kept)"
        )
    return first_parting(was_recorded, now_recorded), differs


def admitted_env(run: Path, env: EnvSource | EnvSpec | Instance | None = None, trust: bool = False) -> EnvSpec:
    """The environment of a run, if it may be built."""
    given: EnvSource | EnvSpec | None = source_of(env)
    config, doubt = read_config(run)
    admit_config(config, str(run / "config.json"), doubt, given, trust)
    if given is None:
        return decode_env(config["env"])
    spec = given if isinstance(given, EnvSpec) else with_env(config["env"], given)
    spec = masked(spec) if MASKS in config["env"]["wrappers"] else spec
    return replaced(spec, seed_bits=config["env"]["seed_bits"])  # as the run found them


def read_frames(run: Path) -> tuple[int, list[Any]]:
    """The run's seed and what its journal holds."""
    if not run.is_dir():
        raise JournalError(f"{run}: there is no such directory; expected a run directory")
    if not (run / "journal").is_dir():
        raise JournalError(f"{run}: expected recorded episodes, found none{_why_none(read_config(run)[0])}")
    seed, frames = read_journal(run / "journal")
    config, _ = read_config(run)
    if config.get("seed") != seed:
        raise JournalError(
            f"{run}: its config.json has seed {config.get('seed')}, its journal {seed}; expected one run"
        )
    return seed, frames


def why_it_differs(run: Path) -> str:
    """The likely cause of a replay that is not the recorded episode."""
    others = other_versions(run)
    return f"Other versions: {'; '.join(others)}" if others else "Its code changed, or it is class C (headrace check)"


def _why_none(config: dict[str, Any]) -> str:
    """Why a run has recorded nothing, as far as its configuration says."""
    topology, session = (config.get(name) for name in ("topology", "session"))
    policy = topology.get("nan_policy") if isinstance(topology, dict) else None
    if policy in ("drop", "clamp"):  # a replay would see what the environment showed, and not what was stored
        return f": with nan_policy={policy} episodes are not recorded; nan_policy=raise records them"
    if isinstance(session, dict) and session.get("keep_episodes_mb") == 0:
        return ": its keep_episodes_mb was 0"
    return ""


def _episode_id(episode: str | tuple[int, int]) -> tuple[int, int]:
    if isinstance(episode, str):
        match = _EPISODE.fullmatch(episode)
        pair: Any = match and tuple(map(int, match.groups()))
    else:
        pair = episode
    if not isinstance(pair, tuple) or len(pair) != 2 or not all(type(one) is int and one >= 0 for one in pair):
        raise UsageError(f"expected an episode as ENVIRONMENT:NUMBER, such as 3:17, got {episode!r}")
    return pair


def _missing(run: Path, index: int, number: int, frames: list[Any], found: list[RecordedEpisode]) -> str:
    if found:
        steps = found[0].length
        return f"{run}: episode {index}:{number} had not ended, after {steps} steps; expected one that has ended"
    kept = [one.episode for one in episodes_of(frames, index) if one.is_finished]
    there = (
        f"of environment {index} it has {min(kept)} to {max(kept)}" if kept else f"it has none of environment {index}"
    )
    return (
        f"{run}: episode {index}:{number} is not recorded as a whole; {there} (headrace replay {run} --list shows all; "
        f"keep_episodes_mb sets how many are kept)"
    )


@contextmanager
def _filming(spec: EnvSpec, render: str | os.PathLike[str] | None) -> Iterator[tuple[EnvSpec, Look]]:
    if render is None:
        yield spec, lambda env, replay: None
        return
    path = whereabouts.absolute(Path(render))  # the environment may change the working directory
    require_video_name(path)
    film = Film()
    yield replaced(spec, kwargs={**spec.kwargs, "render_mode": "rgb_array"}), lambda env, replay: film.look(env)
    film.save(path)


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Options by name; where actors run changes no bit, and how long a session lasts is its own matter."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if prefix + name in ("session", *(f"topology.{one}" for one in PLACES)):
            continue
        nested = isinstance(value, dict) and not prefix
        found |= _flat(value, f"{name}.") if nested else {prefix + name: value}
    return found
