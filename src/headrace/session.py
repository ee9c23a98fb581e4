"""A training session: a Run with a directory, a view, evaluations, checkpoints and an orderly end.

    while steps are left: run.update -> record -> sinks, view -> evaluate? -> checkpoint? -> stop?
    at the end, however it comes: checkpoint, result.json, report

Ctrl-C and SIGTERM end the session at the last committed update: collecting and evaluating are broken off, learning is
finished first. A second Ctrl-C gives up at once. What a resumed run will write again is set aside before it goes on
(checkpoints/run_directory). Does not know how a run learns (train) or what the user typed (cli, api).
"""

from __future__ import annotations

import json
import logging
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from headrace.checkpoints.run_directory import (
    checkpoint_name,
    cut_episodes,
    read_evaluations,
    set_newer_aside,
    write_evaluations,
    write_json,
)
from headrace.checkpoints.snapshot import save
from headrace.clock import now_s
from headrace.episodes.statistics import Finished
from headrace.errors import HeadraceError
from headrace.evaluation.evaluate import Evaluated
from headrace.launch.schedule import SlabUse, encode_update
from headrace.run_config import SessionConfig
from headrace.telemetry.sinks import JsonlSink, Record, Sinks, TensorBoardSink
from headrace.train import Run
from headrace.views.terminal import TerminalView

logger = logging.getLogger(__name__)

Evaluate = Callable[[Run, int], Evaluated]
_SIGNAL_CODES = {"SIGINT": 130, "SIGTERM": 143}


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
        run_dir: Path | None = None,
        view: TerminalView | None = None,
        callback: Callable[[Record], bool | None] | None = None,
    ) -> None:
        self._run = run
        self._config = config
        self._evaluate = evaluate
        self._dir = run_dir
        self._view = view
        self._callback = callback
        self._signal: int | None = None
        self._is_evaluating = False
        self._evaluations: list[tuple[int, Evaluated]] = []
        self._saved_step: int | None = None
        self._first_step = run.steps
        self._next_checkpoint = _next_multiple(run.steps, config.checkpoint_every)
        self._next_evaluation = _next_multiple(run.steps, config.eval_every)

    def train(self) -> Result:
        """Train to the end of the configured steps, or until stopped; every end leaves a checkpoint and a result."""
        started = now_s()
        with self._signals(), self._open_log():
            if self._dir is not None:
                set_newer_aside(self._dir, self._run.steps)
                self._evaluations = read_evaluations(self._dir / "evaluations.npz", self._run.steps)
            logger.info("from step %d to %d", self._run.steps, self._config.total_timesteps)
            for reason in self._run.topology.reasons:
                logger.info("%s", reason)
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
        with ExitStack() as stack:
            sinks = stack.enter_context(self._open_sinks())
            episodes = stack.enter_context(self._open_episodes())
            schedule = stack.enter_context(self._open_schedule())
            if self._view is not None:
                stack.enter_context(self._view)
                run.tell = self._view.message
            run.phases.split()
            while run.steps < config.total_timesteps:
                if self._signal is not None:
                    raise Interrupted
                record, finished = run.update(config.total_timesteps)
                episodes(finished)
                schedule(run.version_of_last_update, run.last_schedule)
                record |= self._evaluate_if_due()
                record |= self._timed(started)
                sinks.write(record)
                if self._view is not None:
                    self._view.update(record)
                self._checkpoint_if_due()
                if self._reached():
                    return "stop_reward reached"
                if self._callback is not None and self._callback(record) is False:
                    return "stopped by callback"
            if self._signal is not None:
                raise Interrupted
        return "done"

    def _evaluate_if_due(self) -> Record:
        run, config = self._run, self._config
        if not config.eval_every or (run.steps < self._next_evaluation and run.steps < config.total_timesteps):
            return {}
        self._is_evaluating = True
        try:
            evaluated = self._evaluate(run, config.n_eval_episodes)
        except Interrupted:
            return {}  # this update's record is still written; the loop ends before the next one
        finally:
            self._is_evaluating = False
        is_best = all(evaluated.mean_reward > other.mean_reward for _, other in self._evaluations)
        self._evaluations.append((run.steps, evaluated))
        self._next_evaluation = _next_multiple(run.steps, config.eval_every)
        logger.info("evaluation at step %d: mean reward %.2f", run.steps, evaluated.mean_reward)
        if self._dir is not None:
            if is_best:
                save(run.snapshot(), self._dir / "best")
            write_evaluations(self._dir / "evaluations.npz", self._evaluations)
        return {"eval/mean_reward": evaluated.mean_reward, "eval/mean_ep_length": evaluated.mean_length}

    def _reached(self) -> bool:
        wanted = self._config.stop_reward
        return wanted is not None and bool(self._evaluations) and self._evaluations[-1][1].mean_reward >= wanted

    def _timed(self, started: float) -> Record:
        """The record's time/ and headrace/time/ entries."""
        run, elapsed = self._run, now_s() - started
        split = run.phases.split()
        total = split.pop("total")
        collect_s = split["env"] + split["inference"] + split["copy"]
        steps = run.steps - self._first_step
        workers = {} if run.topology.topology == "inline" else dict(enumerate(run.steps_by_worker))
        return {
            "time/fps": steps / elapsed if elapsed else 0.0,
            "time/iterations": float(run.updates),
            "time/time_elapsed": elapsed,
            "time/total_timesteps": float(run.steps),
            "headrace/sps": run.steps_of_last_update / total if total else 0.0,
            "headrace/collect_s": collect_s,
            "headrace/update_s": split["completion"] + split["advantages"] + split["sgd"],
            "headrace/wait_s": split["wait"],
            **{f"headrace/sps/worker_{worker}": count / total for worker, count in workers.items() if total},
            **{f"headrace/time/{name}": seconds for name, seconds in split.items()},
        }

    def _checkpoint_if_due(self) -> None:
        if self._config.checkpoint_every and self._run.steps >= self._next_checkpoint:
            self._checkpoint()
            self._next_checkpoint = _next_multiple(self._run.steps, self._config.checkpoint_every)

    def _checkpoint(self) -> None:
        if self._dir is None or self._saved_step == self._run.steps:
            return
        folder = self._dir / "checkpoints"
        save(self._run.snapshot(), folder / checkpoint_name(self._run.steps))
        self._saved_step = self._run.steps
        logger.info("checkpoint at step %d", self._run.steps)
        keep = self._config.keep_checkpoints
        for old in sorted(folder.glob("step_*"))[:-keep] if keep else []:
            shutil.rmtree(old, ignore_errors=True)

    def _end(self, reason: str, code: int, started: float, keep: bool) -> Result:
        run = self._run
        wall_time_s = now_s() - started
        means = run.books.statistics.means()
        ledger = run.books.ledger.encode()
        del ledger["sequences"]
        result = Result(
            exit_reason=reason,
            exit_code=code,
            steps=run.steps,
            updates=run.updates,
            sps=(run.steps - self._first_step) / wall_time_s if wall_time_s else 0.0,
            mean_return=means[0] if means else None,
            eval_mean_reward=self._evaluations[-1][1].mean_reward if self._evaluations else None,
            episodes=run.books.statistics.finished,
            ledger=ledger,
            restarts=run.restarts,
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
            self._end(f"error: {reason}", 1, started, keep=self._run.is_between_updates)
        except (HeadraceError, OSError) as second:
            logger.warning("not all of the run could be kept: %s", second)

    def _report(self, run_dir: Path) -> None:
        from headrace.views.report import write_report

        try:
            write_report(run_dir)
        except OSError as error:
            logger.warning("the report could not be written: %s", error)

    @contextmanager
    def _open_sinks(self) -> Iterator[Sinks]:
        sinks = Sinks([])
        if self._dir is not None:
            sinks = Sinks([JsonlSink(self._dir / "metrics.jsonl"), TensorBoardSink(self._dir, self._config.tags)])
        try:
            yield sinks
        finally:
            sinks.close()

    @contextmanager
    def _open_episodes(self) -> Iterator[Callable[[list[Finished]], None]]:
        """The list of finished episodes: episodes.jsonl, one line each, in the order of rows, then environments."""
        if self._dir is None:
            yield lambda finished: None
            return
        path = self._dir / "episodes.jsonl"
        cut_episodes(path, self._run.steps)
        with path.open("a") as file:

            def write(finished: list[Finished]) -> None:
                steps = self._run.steps
                try:
                    file.writelines(json.dumps(asdict(one) | {"steps": steps}) + "\n" for one in finished)
                    file.flush()
                except OSError as error:
                    logger.warning("%d episodes could not be kept, training goes on: %s", len(finished), error)

            yield write

    @contextmanager
    def _open_schedule(self) -> Iterator[Callable[[int, list[SlabUse]], None]]:
        """An asynchronous run's schedule.jsonl, a line an update: what it takes to get its bits again."""
        if self._dir is None or not self._run.topology.max_lag:
            yield lambda version, uses: None
            return
        path = self._dir / "schedule.jsonl"
        kept = path.read_text(errors="replace").splitlines(keepends=True)[: self._run.updates] if path.exists() else []
        path.write_text("".join(kept))
        with path.open("a") as file:

            def write(version: int, uses: list[SlabUse]) -> None:
                try:
                    file.write(encode_update(version, self._run.topology.slabs_per_update, uses))
                    file.flush()
                except OSError as error:
                    logger.warning("the schedule could not be kept, training goes on: %s", error)

            yield write

    @contextmanager
    def _open_log(self) -> Iterator[None]:
        """log.txt gets what headrace says while the session lasts."""
        if self._dir is None:
            yield
            return
        handler = logging.FileHandler(self._dir / "log.txt")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        package = logging.getLogger("headrace")
        level = package.level
        package.addHandler(handler)
        package.setLevel(logging.INFO)
        try:
            yield
        finally:
            package.setLevel(level)
            package.removeHandler(handler)
            handler.close()

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
            if self._run.is_collecting or self._is_evaluating:
                raise Interrupted

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def with_more_steps(config: SessionConfig, run: Run) -> SessionConfig:
    """The same session, for that many steps from where the run is now."""
    return replace(config, total_timesteps=run.steps + config.total_timesteps)


def _next_multiple(steps: int, every: int) -> int:
    return (steps // every + 1) * every if every else 0
