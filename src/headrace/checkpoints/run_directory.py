"""A run's directory: its name, what it holds from the start, and its one history.

    config.json, versions.json, log.txt (locked), result.json   at the start       result.json, report.*   at the end
    metrics.jsonl, episodes.jsonl, journal/, events.*, evaluations.npz, checkpoints/, best/                meanwhile

A run goes on from an earlier step than its files reach after a kill, after damage to its newest checkpoint, or because
the user named an earlier one. What lies beyond that step will be written once more, so it is set aside first: newer
checkpoints go to superseded/, later episodes are dropped, evaluations are read back up to the step. A journal that is
damaged goes to superseded/ as well.
Does not know sessions or runs.
"""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import platform
import shutil
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from headrace.checkpoints.arrays import read_columns
from headrace.checkpoints.proof import CONFIGURATION, doubt_about, prove
from headrace.collecting.topology import DEVICES, PLACES
from headrace.episodes.journal_file import cut_journal
from headrace.errors import JournalError, UsageError
from headrace.evaluation.evaluate import Evaluated
from headrace.files import MAX_JSON_BYTES, is_real_directory, parse_object, read_lines, read_regular, require_no_links
from headrace.run_lock import RunLock

logger = logging.getLogger(__name__)

_WRITTEN = {
    "config.json", "versions.json", "log.txt", "metrics.jsonl", "episodes.jsonl", "schedule.jsonl", "evaluations.npz",
    "wandb", "wandb.json", "wandb.log",
    "tuning.json", "result.json", "report.html", "report.png", "checkpoints", "best", "superseded", "journal",
}  # fmt: skip
_FOLDERS = {"wandb", "checkpoints", "best", "superseded", "journal"}
_UNFINISHED = (".partial", ".unfinished", ".old")
_PACKAGES = ("headrace", "torch", "numpy", "gymnasium", "safetensors")


def default_run_dir(env: str, algorithm: str, seed: int) -> Path:
    """runs/<env>__<algorithm>__<seed>__<time>, with a number behind it if that is taken."""
    name = f"{env.replace('/', '_').replace(':', '_')}__{algorithm}__{seed}__{time.strftime('%Y%m%d-%H%M%S')}"
    names = itertools.chain([name], (f"{name}-{count}" for count in itertools.count(2)))
    return next(path for path in map(Path("runs").joinpath, names) if not path.exists())


def _without_places(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration as JSON has it, without where it runs: a run may go on elsewhere."""
    plain: dict[str, Any] = json.loads(json.dumps(config))
    for part in ("topology", "algorithm"):
        for name in (*PLACES, *DEVICES) if isinstance(plain.get(part), dict) else ():
            plain[part].pop(name, None)
    return plain


def has_checkpoints(run_dir: Path) -> bool:
    """Whether a directory is a checkpoint, or holds any, whole or not."""
    folder = run_dir / "checkpoints"
    found = [*folder.glob("step_*"), *folder.glob(".step_*.old")]
    return bool(found) or folder.is_symlink() or (run_dir / "manifest.json").exists()


def open_run_dir(run_dir: Path, config: dict[str, Any], is_new: bool, lock: RunLock | None = None) -> RunLock:
    """Make the directory and write what is known at the start; refused if it can't be, is in use, or holds another run.

    Returns the lock of the directory, for the caller to release: the one it was given, or a new one.
    """
    _require_no_links(run_dir)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"run directory {run_dir}: can't be written: {error}; choose another with --run-dir"
        ) from error
    held = lock if lock is not None and lock.is_of(run_dir) else RunLock.take(run_dir)
    try:
        _begin(run_dir, config, is_new)
    except BaseException:
        held.release()
        raise
    return held


def _begin(run_dir: Path, config: dict[str, Any], is_new: bool) -> None:
    if is_new and any((run_dir / name).exists() for name in ("checkpoints", "metrics.jsonl")):
        raise UsageError(
            f"run directory {run_dir} already holds a run: go on with it (--resume {run_dir}, or PPO.load in Python), "
            f"or choose another directory"
        )
    if not is_new and (run_dir / "config.json").is_file():
        theirs, ours = (_without_places(c) for c in (_read_config(run_dir / "config.json"), config))
        other = [key for key in ours if key != "session" and theirs.get(key) != ours[key]]
        if other:
            raise UsageError(
                f"run directory {run_dir} holds another run ({', '.join(other)} differ); choose another directory"
            )
    try:
        proof = prove(CONFIGURATION, config)
        write_json(run_dir / "config.json", config if proof is None else config | {"proof": proof})
        write_json(run_dir / "versions.json", _versions())
    except OSError as error:
        raise UsageError(
            f"run directory {run_dir}: can't be written: {error}; choose another with --run-dir"
        ) from error


def _require_no_links(run_dir: Path) -> None:
    """Refuse to write through a link or a pipe that an archive may have put there, or to a folder in a file's place."""
    found = [path.name for path in run_dir.iterdir()] if run_dir.is_dir() else []
    written = [name for name in found if name in _WRITTEN or name.startswith("events.") or name.endswith(_UNFINISHED)]
    try:
        require_no_links(run_dir, written)
        for name in written:
            is_folder = is_real_directory(run_dir / name)
            if name in _WRITTEN and is_folder != (name in _FOLDERS):
                got, expected = ("a directory", "a file") if is_folder else ("a file", "a directory")
                raise OSError(errno.EEXIST, f"{name} is {got}, expected {expected}")
        for folder in (run_dir / "checkpoints", run_dir / "superseded", run_dir / "journal"):
            require_no_links(folder, [path.name for path in folder.iterdir()] if folder.is_dir() else [])
    except OSError as error:
        raise UsageError(
            f"run directory {run_dir}: {error.strerror}; remove it, or choose another directory with --run-dir"
        ) from error


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = parse_object(read_regular(path, MAX_JSON_BYTES))
        if not isinstance(config.get("topology"), dict):
            raise ValueError("expected topology in it")
        return config
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} can't be read: {error}; mend it, or choose another directory") from error


def read_config(run_dir: Path) -> tuple[dict[str, Any], str]:
    """A run's configuration, and why it is not proved that this user's run wrote it; empty if it is."""
    if not (run_dir / "config.json").is_file():
        missing = "" if run_dir.is_dir() else ": there is no such directory"
        raise UsageError(f"{run_dir}: expected a run directory with config.json, found none{missing}")
    config = _read_config(run_dir / "config.json")
    proof = config.pop("proof", None)
    return config, doubt_about(CONFIGURATION, config, proof)


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Whole or not at all."""
    fresh = path.with_suffix(".partial")
    fresh.write_text(json.dumps(data, indent=2) + "\n")
    fresh.replace(path)


def checkpoint_name(steps: int) -> str:
    """Names sort as steps do."""
    return f"step_{steps:012d}"


def set_newer_aside(run_dir: Path, steps: int) -> None:
    """Checkpoints beyond the run's step are damaged, or another future: they must not pass for its newest one."""
    folder, aside = run_dir / "checkpoints", run_dir / "superseded"
    for torn in folder.glob(".*.partial"):
        shutil.rmtree(torn, ignore_errors=True)
    for newer in folder.glob("step_*"):  # a link is moved as a link
        if newer.name > checkpoint_name(steps):
            logger.warning("%s is beyond step %d: moved to %s", newer, steps, aside)
            shutil.rmtree(aside / newer.name, ignore_errors=True)
            aside.mkdir(exist_ok=True)
            newer.rename(aside / newer.name)


def cut_episodes(path: Path, steps: int) -> None:
    """Drop the episodes that a resumed run will see again, and a line torn by a crash."""
    _cut(path, lambda count, line: _step_of(line) <= steps)


def cut_schedule(path: Path, updates: int) -> None:
    """Keep the lines of that many updates, and none that a crash has torn."""
    _cut(path, lambda count, line: count < updates and line.endswith(b"\n"))


def _cut(path: Path, is_kept: Callable[[int, bytes], bool]) -> None:
    """Before the first line that is not kept; one line is held at a time, and one that is far too long is not kept."""
    size = 0
    try:
        for count, line in enumerate(read_lines(path, MAX_JSON_BYTES)):
            if not is_kept(count, line):
                break
            size += len(line)
    except FileNotFoundError:
        return
    except ValueError as error:
        logger.warning("%s is cut: %s", path, error)
    os.truncate(path, size)


def cut_recorded(run_dir: Path, updates: int) -> None:
    """Drop what a resumed run will record again; a journal that is damaged is set aside as it is."""
    folder, aside = run_dir / "journal", run_dir / "superseded" / "journal"
    try:
        cut_journal(folder, updates)
    except JournalError as error:
        logger.warning("%s; moved to %s, recording begins anew", error, aside)
        shutil.rmtree(aside, ignore_errors=True)
        aside.parent.mkdir(exist_ok=True)
        folder.rename(aside)


def read_evaluations(path: Path, steps: int) -> list[tuple[int, Evaluated]]:
    """The evaluations up to a step, as an earlier session left them."""
    try:
        columns = read_columns(path)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        logger.warning("%s can't be read, evaluations start anew: %s", path, error)
        return []
    return [(at, Evaluated(returns, lengths)) for at, returns, lengths in zip(*columns, strict=True) if at <= steps]


def write_evaluations(path: Path, evaluations: list[tuple[int, Evaluated]]) -> None:
    """SB3's evaluations.npz. Its arrays are rectangular: evaluations of another number of episodes are left out."""
    episodes = len(evaluations[-1][1].returns)
    alike = [(at, one) for at, one in evaluations if len(one.returns) == episodes]
    fresh = path.with_suffix(".partial")
    with fresh.open("wb") as file:
        np.savez(
            file,
            timesteps=np.array([at for at, _ in alike]),
            results=np.array([one.returns for _, one in alike]),
            ep_lengths=np.array([one.lengths for _, one in alike]),
        )
    fresh.replace(path)


def _step_of(line: bytes) -> float:
    try:
        return float(json.loads(line)["steps"]) if line.endswith(b"\n") else float("inf")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return float("inf")


def other_versions(run_dir: Path) -> list[str]:
    """What a run was made with and is another version here, a line each; nothing if that is not known."""
    try:
        then = parse_object(read_regular(run_dir / "versions.json", MAX_JSON_BYTES))
    except (OSError, ValueError):
        return []
    here = _versions()
    pairs = [(name, str(then.get(name))[:80], now) for name, now in here.items() if name in then]
    return [f"{name} {before} then, {now} here" for name, before, now in pairs if before != now]


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": platform.platform(), "machine": platform.machine()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
