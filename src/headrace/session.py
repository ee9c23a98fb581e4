"""A training session: a run with a directory, a view, evaluations, checkpoints and an orderly end.

    while steps are left: run.update -> Update -> files, view -> evaluate? -> checkpoint? -> stop?
    at the end, however it comes: checkpoint, result.json, report

Ctrl-C and SIGTERM end the session at the last committed update: collecting and evaluating are broken off, learning is
finished first. A second Ctrl-C gives up at once. What a resumed run will write again is set aside before it goes on
(checkpoints/run_directory). Of a run it sees `Update`, `totals`, `hashes` and `snapshot`; does not know how a run
learns (train) or what the user typed (cli, api).
"""

from __future__ import annotations

import logging
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from headrace.checkpoints.run_directory import (
    checkpoint_name,
    read_evaluations,
    set_newer_aside,
    write_evaluations,
    write_json,
)
from headrace.checkpoints.snapshot import save
from headrace.clock import now_s
from headrace.errors import HeadraceError
from headrace.evaluation.evaluate import Evaluated
from headrace.run_config import SessionConfig
from headrace.session_files import SessionFiles
from headrace.telemetry.sinks import Record
from headrace.train import Run, Update
from headrace.views.terminal import TerminalView

logger = logging.getLogger(__name__)

Evaluate = Callable[[int], Evaluated]
_SIGNAL_CODES = {"SIGINT": 130, "SIGTERM": 143}
_COLLECTING, _LEARNING = ("env", "inference", "copy"), ("completion", "advantages", "sgd")


@dataclass(frozen=True)
class Result:
    """How a session ended; result.json holds the same."""

    exit_reason: str
    exit_code: int
    steps: int
    updates: int
    sps: float
    mean_return: float | None
    eval_mean_reward: float | None
    episodes: int
    ledger: dict[str, Any]
    restarts: int
    wall_time_s: float
    weights_sha256: str
    optimizer_sha256: str


class Interrupted(BaseException):
    """A signal broke off collecting or evaluating. Not an Exception: no environment may swallow it."""


class Session:
    """One call of `train`. Without a run directory nothing is written."""

    def __init__(
        self,
        run: Run,
        config: SessionConfig,
        evaluate: Evaluate,
        files: SessionFiles,
        run_dir: Path | None = None,
        view: TerminalView | None = None,
        callback: Callable[[Record], bool | None] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self._run, self._config, self._evaluate = run, config, evaluate
        self._files, self._dir, self._view, self._callback, self._notes = files, run_dir, view, callback, notes
        self._signal: int | None = None
        self._is_evaluating = False
        self._evaluations: list[tuple[int, Evaluated]] = []
        self._saved_step: int | None = None
        self._first_step = run.steps
        self._next_checkpoint = _next_multiple(run.steps, config.checkpoint_every)
        self._next_evaluation = _next_multiple(run.steps, config.eval_every)
        self._timed_s = now_s()

    def train(self) -> Result:
        """Train to the end of the configured steps, or until stopped; every end leaves a checkpoint and a result."""
        started = now_s()
        with self._signals(), self._files.log():
            if self._dir is not None:
                set_newer_aside(self._dir, self._run.steps)
                self._evaluations = read_evaluations(self._dir / "evaluations.npz", self._run.steps)
            logger.info("from step %d to %d", self._run.steps, self._config.total_timesteps)
            for note in self._notes:
                logger.info("%s", note)
            try:
                reason = self._loop(started)
            except Interrupted:
                reason = signal.Signals(self._signal or signal.SIGINT).name
            except Exception as error:
                self._end_badly(error, started)
                raise
            code = _SIGNAL_CODES.get(reason, 0)
            if code == 0 and self._config.stop_reward is not None and not self._reached():
                reason, code = "stop_reward not reached", 3
            return self._end(reason, code, started, keep=True)

    def _loop(self, started: float) -> str:
        """Update after update; returns why it ended."""
        run, config = self._run, self._config
        with self._files.open(run.steps, run.updates), self._view or nullcontext():
            self._timed_s = now_s()
            while run.steps < config.total_timesteps:
                if self._signal is not None:
                    raise Interrupted
                update = run.update(config.total_timesteps)
                self._files.write_lists(update)
                record = update.record | self._evaluate_if_due(update.steps)
                record |= self._timed(update, started)
                self._files.write_record(record)
                if self._view is not None:
                    self._view.update(record)
                self._checkpoint_if_due(update.steps)
                if self._reached():
                    return "stop_reward reached"
                if self._callback is not None and self._callback(record) is False:
                    return "stopped by callback"
            if self._signal is not None:
                raise Interrupted
        return "done"

    def _evaluate_if_due(self, steps: int) -> Record:
        config = self._config
        if not config.eval_every or (steps < self._next_evaluation and steps < config.total_timesteps):
            return {}
        self._is_evaluating = True
        try:
            evaluated = self._evaluate(config.n_eval_episodes)
        except Interrupted:
            return {}  # this update's record is still written; the loop ends before the next one
        finally:
            self._is_evaluating = False
        is_best = all(evaluated.mean_reward > other.mean_reward for _, other in self._evaluations)
        self._evaluations.append((steps, evaluated))
        self._next_evaluation = _next_multiple(steps, config.eval_every)
        logger.info("evaluation at step %d: mean reward %.2f", steps, evaluated.mean_reward)
        if self._dir is not None:
            if is_best:
                save(self._run.snapshot(), self._dir / "best")
            write_evaluations(self._dir / "evaluations.npz", self._evaluations)
        return {"eval/mean_reward": evaluated.mean_reward, "eval/mean_ep_length": evaluated.mean_length}

    def _reached(self) -> bool:
        wanted = self._config.stop_reward
        return wanted is not None and bool(self._evaluations) and self._evaluations[-1][1].mean_reward >= wanted

    def _timed(self, update: Update, started: float) -> Record:
        """The record's time/ entries; the parts of the run have measured their own under headrace/time/."""
        now, before = now_s(), self._timed_s
        self._timed_s, elapsed, total = now, now - started, now - before
        prefix = "headrace/time/"
        split = {tag[len(prefix) :]: s for tag, s in update.record.items() if tag.startswith(prefix)}
        by_worker = enumerate(update.steps_by_worker if total else ())
        return {
            "time/fps": (update.steps - self._first_step) / elapsed if elapsed else 0.0,
            "time/iterations": float(update.number),
            "time/time_elapsed": elapsed,
            "time/total_timesteps": float(update.steps),
            "headrace/sps": update.new_steps / total if total else 0.0,
            "headrace/collect_s": sum(split.get(name, 0.0) for name in _COLLECTING),
            "headrace/update_s": sum(split.get(name, 0.0) for name in _LEARNING),
            "headrace/wait_s": split.get("wait", 0.0),
            **{f"headrace/sps/worker_{worker}": count / total for worker, count in by_worker},
            f"{prefix}other": max(0.0, total - sum(split.values())),
        }

    def _checkpoint_if_due(self, steps: int) -> None:
        if self._config.checkpoint_every and steps >= self._next_checkpoint:
            self._checkpoint()
            self._next_checkpoint = _next_multiple(steps, self._config.checkpoint_every)

    def _checkpoint(self) -> None:
        steps = self._run.steps
        if self._dir is None or self._saved_step == steps:
            return
        folder = self._dir / "checkpoints"
        save(self._run.snapshot(), folder / checkpoint_name(steps))
        self._saved_step = steps
        logger.info("checkpoint at step %d", steps)
        keep = self._config.keep_checkpoints
        for old in sorted(folder.glob("step_*"))[:-keep] if keep else []:
            shutil.rmtree(old, ignore_errors=True)

    def _end(self, reason: str, code: int, started: float, keep: bool) -> Result:
        run = self._run
        wall_time_s, totals = now_s() - started, run.totals()
        result = Result(
            exit_reason=reason,
            exit_code=code,
            steps=run.steps,
            updates=run.updates,
            sps=(run.steps - self._first_step) / wall_time_s if wall_time_s else 0.0,
            mean_return=totals.mean_return,
            eval_mean_reward=self._evaluations[-1][1].mean_reward if self._evaluations else None,
            episodes=totals.episodes,
            ledger=totals.ledger,
            restarts=totals.restarts,
            wall_time_s=wall_time_s,
            **run.hashes(),
        )
        if self._dir is not None:
            if keep:
                self._checkpoint()
            try:
                write_json(self._dir / "result.json", asdict(result))
            except OSError as error:
                raise HeadraceError(f"{self._dir / 'result.json'}: can't be written: {error}") from error
            self._report(self._dir)
        logger.info("ended: %s", reason)
        return result

    def _end_badly(self, error: Exception, started: float) -> None:
        """Keep what can be kept; what can't be must not hide why the run failed."""
        if self._dir is not None:
            logger.error("the run failed", exc_info=error)
        reason = str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
        try:
            self._end(f"error: {reason}", 1, started, keep=self._run.is_whole)
        except (HeadraceError, OSError) as second:
            logger.warning("not all of the run could be kept: %s", second)

    def _report(self, run_dir: Path) -> None:
        from headrace.views.report import write_report

        try:
            write_report(run_dir)
        except OSError as error:
            logger.warning("the report could not be written: %s", error)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM stop the session in order; only the main thread may (and needs to) listen."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:
            if self._signal is not None:
                if number == signal.SIGINT:
                    raise KeyboardInterrupt
                return
            self._signal = number
            if self._run.source.is_interruptible or self._is_evaluating:
                raise Interrupted

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _next_multiple(steps: int, every: int) -> int:
    return (steps // every + 1) * every if every else 0
