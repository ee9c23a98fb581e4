"""A run's files, read for the three verdicts of `diversity`: journal/, metrics.jsonl, episodes.jsonl.

    run directory ──read──> first observations · actions of the first rows · entropy and returns ──> findings

A run may still be going on, may be short, and may come from elsewhere: its files are data. What can't be read is one
finding with one line, and the other verdicts are given all the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.episodes.journal_file import Frame, read_journal
from headrace.episodes.recorded import starts_of
from headrace.errors import HeadraceError, UsageError
from headrace.files import is_real_directory, read_lines
from headrace.planning.diversity import (
    ACTIONS,
    ENTROPY,
    STARTS,
    Course,
    Streams,
    judge_actions,
    judge_entropy,
    judge_starts,
)
from headrace.planning.finding import Finding
from headrace.telemetry.sinks import STEP_TAG, Record, read_records

Array = npt.NDArray[Any]

_ROWS = 20_000  # that are compared: the first ones, where a policy should still try things
_FRAMES_OF_STARTS = 2_000
_EPISODES, _LINE_BYTES = 200_000, 1 << 16
_ENTROPY_TAG, _BEFORE_TAG = "train/entropy_loss", "headrace/first_entropy"


def diversity_findings(run_dir: Path) -> list[Finding]:
    """Start states, action streams and policy entropy of a run, live or finished."""
    if not run_dir.is_dir():
        raise UsageError(f"{run_dir}: expected a run directory, found none")
    findings: list[Finding] = []
    frames, trouble = _frames(run_dir)
    try:
        records = read_records(run_dir / "metrics.jsonl")
        course_trouble = ""
    except (OSError, ValueError) as error:
        records, course_trouble = [], f"metrics.jsonl can't be read: {error}"
    if trouble:
        findings += [_unread(name, trouble) for name in (STARTS, ACTIONS)]
    else:
        starts = starts_of(frames[:_FRAMES_OF_STARTS])
        first, pairs = judge_starts(starts.env, starts.episode, starts.digest)
        findings += [first, judge_actions(streams_of(frames, _entropies(records)), pairs)]
    try:
        episodes = [] if course_trouble else _episodes(run_dir / "episodes.jsonl")
    except (OSError, ValueError) as error:
        episodes, course_trouble = [], f"episodes.jsonl can't be read: {error}"
    if course_trouble or not frames:
        why = course_trouble or trouble or "nothing is recorded yet"
        return [*findings, _unread(ENTROPY, why)]
    return [*findings, judge_entropy(_course(records, episodes, frames[0]))]


def start_finding(run_dir: Path) -> Finding:
    """The first of them alone, for which the beginning of the journal is enough."""
    frames, trouble = _frames(run_dir, _FRAMES_OF_STARTS)
    if trouble:
        return _unread(STARTS, trouble)
    starts = starts_of(frames)
    return judge_starts(starts.env, starts.episode, starts.digest)[0]


def streams_of(frames: Sequence[Frame], entropies: dict[int, float]) -> Streams:
    """Rows of those updates in which every environment has one rollout of the same length, the first _ROWS of them."""
    n_envs = max((frame.env_start + len(frame.episode) for frame in frames), default=0)
    actions, valid, entropy = [], [], []
    for update, group in groupby(frames, lambda frame: frame.update):
        parts = sorted(group, key=lambda frame: frame.env_start)
        shapes = {(len(part.action), part.action.shape[2:], part.action_dtype) for part in parts}
        edges = [0, *np.cumsum([len(part.episode) for part in parts]).tolist()]
        if len(shapes) != 1 or [part.env_start for part in parts] != edges[:-1] or edges[-1] != n_envs:
            continue
        (n_steps, _, dtype), *_ = shapes
        is_valid = np.ones((n_steps, n_envs), np.bool_)
        for part in parts:
            rows, columns = np.divmod(part.invalid.astype(np.int64), len(part.episode))
            is_valid[rows, part.env_start + columns] = False
        taken = np.concatenate([part.action.astype(dtype) for part in parts], 1)
        actions.append(taken.reshape(n_steps, n_envs, -1))
        valid.append(is_valid)
        entropy.append(np.full(n_steps, entropies.get(update, math.nan)))
        if sum(map(len, actions)) >= _ROWS:
            break
    if len({one.shape[2] for one in actions}) != 1:
        return Streams(np.empty((0, 0, 1)), np.empty((0, 0), np.bool_), np.empty(0))
    return Streams(np.concatenate(actions)[:_ROWS], np.concatenate(valid)[:_ROWS], np.concatenate(entropy)[:_ROWS])


def _frames(run_dir: Path, most: int | None = None) -> tuple[list[Frame], str]:
    """The journal's frames, or why there are none."""
    if not is_real_directory(run_dir / "journal"):
        return [], "the run has recorded no episodes (keep_episodes_mb=0, or nan_policy drop or clamp)"
    try:
        return read_journal(run_dir / "journal", most)[1], ""
    except HeadraceError as error:
        return [], str(error)


def _entropies(records: Sequence[Record]) -> dict[int, float]:
    """Entropy by update: the smaller of its own and of the one before, whose weights have acted."""
    found: dict[int, float] = {}
    before = math.nan
    for record in records:
        number, entropy = record.get("time/iterations", math.nan), -record.get(_ENTROPY_TAG, math.nan)
        if math.isfinite(number) and math.isfinite(entropy):
            found[int(number)] = min(entropy, before) if math.isfinite(before) else entropy
            before = entropy
    return found


def _course(records: Sequence[Record], episodes: list[tuple[float, float]], frame: Frame) -> Course:
    ends = np.array(episodes, np.float64).reshape(-1, 2)
    is_continuous = np.dtype(frame.action_dtype).kind == "f"
    return Course(
        np.array([record.get(STEP_TAG, math.nan) for record in records]),
        np.array([-record.get(_ENTROPY_TAG, math.nan) for record in records]),
        ends[:, 0],
        ends[:, 1],
        math.prod(frame.action.shape[2:]) if is_continuous else 0,
        records[0].get(_BEFORE_TAG, math.nan) if records else math.nan,
    )


def _episodes(path: Path) -> list[tuple[float, float]]:
    """Steps and return of every episode, or of every second, fourth ... of very many; torn lines are left out."""
    found: list[tuple[float, float]] = []
    try:
        for line in read_lines(path, _LINE_BYTES):
            try:
                one = json.loads(line)
                pair = float(one["steps"]), float(one["total_reward"])
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                continue
            if all(map(math.isfinite, pair)):
                found.append(pair)
            if len(found) > 2 * _EPISODES:
                found = found[::2]
    except FileNotFoundError:
        pass
    return found


def _unread(name: str, why: str) -> Finding:
    return Finding(name, "ok", f"not judged: {why}")
