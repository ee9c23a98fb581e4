"""result.json: how a session ended, or that it did not.

    at the start, at every checkpoint: "did not end", exit_code null ──> at the end: why, and the exit code

A process that dies without a word (SIGSEGV inline, kill -9, out of memory) can't write it any more, so it is written
beforehand: what is there then are the numbers of the last checkpoint. The next session of the run says so.
Does not know signals or views.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.checkpoints.run_directory import write_json
from headrace.files import MAX_JSON_BYTES, parse_object, read_regular
from headrace.plain_text import printable
from headrace.train import Run

NOT_ENDED = "did not end: it is still running, or its process died without a word; log.txt may hold its last stack"
_FATAL = b"Fatal Python error: "  # faulthandler's
_TAIL_BYTES = 1 << 20


@dataclass(frozen=True)
class Result:
    """How a session ended; result.json holds the same."""

    exit_reason: str
    exit_code: int | None
    """None: it did not end."""
    steps: int
    updates: int
    sps: float
    mean_return: float | None
    eval_mean_reward: float | None
    episodes: int
    ledger: dict[str, Any]
    restarts: int
    env_failures: int
    """Restarts after an environment had raised."""
    wall_time_s: float
    weights_sha256: str
    optimizer_sha256: str
    env_check: dict[str, Any]
    """Whether episodes came out the same when they were played again (evaluation/in_passing)."""
    placement: dict[str, Any] = field(default_factory=dict)
    """With inference=auto: the steps/s that were predicted, and those that were reached while collecting."""
    where: dict[str, Any] = field(default_factory=dict)
    """Topology, workers, inference as they were settled, and the cores of the machine."""
    not_closed: str = ""
    """The error of an environment that could not be closed when all was done."""


def result_of(
    run: Run,
    new_steps: int,
    wall_time_s: float,
    eval_mean_reward: float | None,
    env_check: dict[str, Any],
    placement: dict[str, Any],
    where: dict[str, Any],
) -> Result:
    """A run's numbers as they are now; not ended."""
    totals = run.totals()
    return Result(
        exit_reason=NOT_ENDED,
        exit_code=None,
        steps=run.steps,
        updates=run.updates,
        sps=new_steps / wall_time_s if wall_time_s else 0.0,
        mean_return=totals.mean_return,
        eval_mean_reward=eval_mean_reward,
        episodes=totals.episodes,
        ledger=totals.ledger,
        restarts=totals.restarts,
        env_failures=totals.env_failures,
        wall_time_s=wall_time_s,
        env_check=env_check,
        placement=placement,
        where=where | {"cores": len(os.sched_getaffinity(0))},
        **run.hashes(),
    )


def ended(result: Result, reason: str, code: int) -> Result:
    """The same, with an end."""
    return replace(result, exit_reason=reason, exit_code=code)


def with_not_closed(result: Result, run_dir: Path | None, error: str) -> Result:
    """The same, once the session is over and an environment could not be closed; written, if it has a directory."""
    result = replace(result, not_closed=error)
    if run_dir is not None:
        write_result(run_dir, result)
    return result


def write_result(run_dir: Path, result: Result) -> None:
    """Whole or not at all."""
    write_json(run_dir / "result.json", asdict(result))


def unfinished(run_dir: Path) -> str | None:
    """What is known of an earlier session that did not end, in a line; None if it did, or there was none.

    Asked by one who holds the run's lock: nothing writes there any more.
    """
    try:
        result = parse_object(read_regular(run_dir / "result.json", MAX_JSON_BYTES))
    except (OSError, ValueError):
        return None
    if result.get("exit_code", 0) is not None:
        return None
    how = _last_words(run_dir / "log.txt") or "it was killed, ran out of memory, or an environment ended the process"
    return f"the last session in {run_dir} did not end: {how}; its last checkpoint is of step {_step(result)}"


def _step(result: dict[str, Any]) -> str:
    steps = result.get("steps")
    return f"{steps:,}" if isinstance(steps, int) else "?"


def _last_words(log: Path) -> str | None:
    """The crash that stands at the end of a log, after the session's last line about its beginning."""
    try:
        with log.open("rb") as file:
            file.seek(-min(_TAIL_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_END)
            tail = file.read()
    except OSError:
        return None
    _, is_fatal, words = tail.rpartition(_FATAL)
    if not is_fatal or BEGINNING.encode() in words:
        return None
    what = printable(words.partition(b"\n")[0].decode(errors="replace")[:80], is_one_line=True)
    return f"{what}, with its stack in {log}"


BEGINNING = "from step"
"""In the first line that a session logs."""
