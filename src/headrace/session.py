"""A training session: a Run with a directory, a view, evaluations, checkpoints and an orderly end.

    while steps are left: run.update -> record -> sinks, view -> evaluate? -> checkpoint? -> stop?
    at the end, however it comes: checkpoint, result.json, report

Ctrl-C and SIGTERM end the session at the last committed update: collecting is broken off, learning is finished first.
A second Ctrl-C gives up at once. Does not know how a run learns (train) or what the user typed (cli, api).
"""

from __future__ import annotations

import json
import logging
import platform
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import numpy as np

from headrace.checkpoints.snapshot import save
from headrace.clock import now_s
from headrace.episodes.statistics import Finished
from headrace.errors import HeadraceError, UsageError
from headrace.evaluation.evaluate import Evaluated
from headrace.run_config import encode
from headrace.telemetry.sinks import JsonlSink, Record, Sinks, TensorBoardSink
from headrace.train import Run
from headrace.views.terminal import TerminalView

logger = logging.getLogger(__name__)

Evaluate = Callable[[Run, int], Evaluated]
_PACKAGES = ("headrace", "torch", "numpy", "gymnasium", "safetensors")


@dataclass(frozen=True)
class SessionConfig:
    """How long to train, and what to keep of it."""

    total_timesteps: int = 100_000
    """Environment steps to train for; the last update is finished, so it may take a few more."""
    tags: Literal["sb3", "cleanrl", "both"] = "sb3"
    """Names of the metrics in TensorBoard."""
    checkpoint_every: int = 100_000
    """Steps between checkpoints; 0 for one at the end only."""
    keep_checkpoints: int = 3
    """How many of them to keep; 0 for all."""
    eval_every: int = 0
    """Steps between evaluations; 0 for none."""
    n_eval_episodes: int = 10
    """Episodes of an evaluation."""
    stop_reward: float | None = None
    """Stop when an evaluation's mean reward reaches this; exit code 3 if it never does."""

    def __post_init__(self) -> None:
        for name, least in (
            ("total_timesteps", 1),
            ("checkpoint_every", 0),
            ("keep_checkpoints", 0),
            ("eval_every", 0),
        ):
            if getattr(self, name) < least:
                raise UsageError(f"{name}: expected at least {least}, got {getattr(self, name)}")
        if self.n_eval_episodes < 1:
            raise UsageError(f"n_eval_episodes: expected at least 1, got {self.n_eval_episodes}")
        if self.stop_reward is not None and self.eval_every == 0:
            raise UsageError("stop_reward needs evaluations to look at: set eval_every as well")
        if self.tags not in ("sb3", "cleanrl", "both"):
            raise UsageError(f"tags: expected sb3, cleanrl or both, got {self.tags!r}")


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
    """A signal broke off collecting. Not an Exception: no environment may swallow it."""


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
        self._evaluations: list[tuple[int, Evaluated]] = []
        self._first_step = run.steps
        self._next_checkpoint = _next_multiple(run.steps, config.checkpoint_every)
        self._next_evaluation = _next_multiple(run.steps, config.eval_every)

    def train(self) -> Result:
        """Train to the end of the configured steps, or until stopped; every end leaves a checkpoint and a result."""
        run, config = self._run, self._config
        started = now_s()
        reason = "done"
        with ExitStack() as stack:
            sinks = stack.enter_context(self._open_sinks())
            episodes = stack.enter_context(self._open_episodes())
            stack.enter_context(self._signals())
            if self._view is not None:
                stack.enter_context(self._view)
            run.phases.split()
            try:
                while run.steps < config.total_timesteps:
                    record, finished = run.update(config.total_timesteps)
                    episodes(finished)
                    record |= self._evaluate_if_due()
                    record |= self._timed(started)
                    sinks.write(record)
                    if self._view is not None:
                        self._view.update(record)
                    self._checkpoint_if_due()
                    if self._reached():
                        reason = "stop_reward reached"
                        break
                    if self._callback is not None and self._callback(record) is False:
                        reason = "stopped by callback"
                        break
                    if self._signal is not None:
                        raise Interrupted
            except Interrupted:
                reason = signal.Signals(self._signal or signal.SIGINT).name
            except HeadraceError as error:
                self._end(f"error: {error}", 1, started, keep=run.is_between_updates)
                raise
        code = {"SIGINT": 130, "SIGTERM": 143}.get(reason, 0)
        if code == 0 and config.stop_reward is not None and not self._reached():
            reason, code = "stop_reward not reached", 3
        return self._end(reason, code, started, keep=True)

    def _evaluate_if_due(self) -> Record:
        run, config = self._run, self._config
        if not config.eval_every or (run.steps < self._next_evaluation and run.steps < config.total_timesteps):
            return {}
        evaluated = self._evaluate(run, config.n_eval_episodes)
        is_best = all(evaluated.mean_reward > other.mean_reward for _, other in self._evaluations)
        self._evaluations.append((run.steps, evaluated))
        self._next_evaluation = _next_multiple(run.steps, config.eval_every)
        if self._dir is not None:
            if is_best:
                save(run.snapshot(), self._dir / "best")
            np.savez(
                self._dir / "evaluations.npz",
                timesteps=np.array([step for step, _ in self._evaluations]),
                results=np.array([one.returns for _, one in self._evaluations]),
                ep_lengths=np.array([one.lengths for _, one in self._evaluations]),
            )
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
        return {
            "time/fps": steps / elapsed if elapsed else 0.0,
            "time/iterations": float(run.updates),
            "time/time_elapsed": elapsed,
            "time/total_timesteps": float(run.steps),
            "headrace/sps": run.steps_of_last_update / total if total else 0.0,
            "headrace/collect_s": collect_s,
            "headrace/update_s": split["completion"] + split["advantages"] + split["sgd"],
            "headrace/wait_s": split["wait"],
        } | {f"headrace/time/{name}": seconds for name, seconds in split.items()}

    def _checkpoint_if_due(self) -> None:
        if self._config.checkpoint_every and self._run.steps >= self._next_checkpoint:
            self._checkpoint()
            self._next_checkpoint = _next_multiple(self._run.steps, self._config.checkpoint_every)

    def _checkpoint(self) -> None:
        if self._dir is None:
            return
        folder = self._dir / "checkpoints"
        save(self._run.snapshot(), folder / f"step_{self._run.steps:012d}")
        keep = self._config.keep_checkpoints
        for old in sorted(folder.glob("step_*"))[:-keep] if keep else []:
            shutil.rmtree(old, ignore_errors=True)

    def _end(self, reason: str, code: int, started: float, keep: bool) -> Result:
        run = self._run
        wall_time_s = now_s() - started
        means = run.statistics.means()
        ledger = run.ledger.encode()
        del ledger["sequences"]
        result = Result(
            exit_reason=reason,
            exit_code=code,
            steps=run.steps,
            updates=run.updates,
            sps=(run.steps - self._first_step) / wall_time_s if wall_time_s else 0.0,
            mean_return=means[0] if means else None,
            eval_mean_reward=self._evaluations[-1][1].mean_reward if self._evaluations else None,
            episodes=run.statistics.finished,
            ledger=ledger,
            restarts=0,
            wall_time_s=wall_time_s,
            **run.hashes(),
        )
        if self._dir is not None:
            if keep:
                self._checkpoint()
            write_json(self._dir / "result.json", asdict(result))
            self._report(self._dir)
        return result

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
        with (self._dir / "episodes.jsonl").open("a") as file:

            def write(finished: list[Finished]) -> None:
                steps = self._run.steps
                file.writelines(json.dumps(asdict(one) | {"steps": steps}) + "\n" for one in finished)
                file.flush()

            yield write

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM stop the session in order; only the main thread may (and needs to) listen."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:
            if self._signal is not None:
                raise KeyboardInterrupt
            self._signal = number
            if self._run.is_collecting:
                raise Interrupted

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def open_run_dir(run_dir: Path | None, run: Run, config: SessionConfig) -> Path:
    """Make the run directory and write what is known at the start; refused clearly if it can't be written."""
    if run_dir is None:
        name = run.config.env.name.replace("/", "_").replace(":", "_")
        run_dir = Path("runs") / f"{name}__ppo__{run.config.seed}__{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_json(run_dir / "config.json", encode(run.config) | {"session": asdict(config)})
        write_json(run_dir / "versions.json", _versions())
        (run_dir / "log.txt").touch()
    except OSError as error:
        raise UsageError(
            f"run directory {run_dir}: can't be written: {error}; choose another with --run-dir"
        ) from error
    return run_dir


def with_more_steps(config: SessionConfig, run: Run) -> SessionConfig:
    """The same session, for that many steps from where the run is now."""
    return replace(config, total_timesteps=run.steps + config.total_timesteps)


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Whole or not at all."""
    fresh = path.with_suffix(".partial")
    fresh.write_text(json.dumps(data, indent=2) + "\n")
    fresh.replace(path)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": platform.platform(), "machine": platform.machine()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _next_multiple(steps: int, every: int) -> int:
    return (steps // every + 1) * every if every else 0
