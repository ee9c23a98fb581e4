"""A training session: a run with a directory, a view, evaluations, checkpoints and an orderly end.

    while steps are left: run.update -> Update -> files, view -> evaluate? -> checkpoint? -> stop?

Ctrl-C, SIGTERM and SIGHUP end the session at the last committed update: collecting, evaluating and drawing are broken
off, learning is finished first (session_end). What a resumed run will write again is set aside before it goes on
(checkpoints/run_directory). Of a run it sees `Update`, `totals`, `hashes` and `snapshot`, and what a broken-off
collect has left in its source; does not know how a run learns (train) or what the user typed (cli, api).
"""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from headrace.checkpoints.run_directory import checkpoint_name, read_evaluations, set_newer_aside, write_evaluations
from headrace.checkpoints.snapshot import save
from headrace.clock import now_s, thread_cpu_ns
from headrace.collecting.forecast import Forecast, words
from headrace.episodes.finished import Finished
from headrace.evaluation.evaluate import Evaluated
from headrace.evaluation.in_passing import InPassing
from headrace.last_words import StallWatch, stacks_into
from headrace.launch.measuring import FreeCores
from headrace.run_config import SessionConfig
from headrace.session_end import Interrupted, SessionEnd, Stop, say_stalled
from headrace.session_files import SessionFiles
from headrace.session_result import BEGINNING, Result, result_of, unfinished
from headrace.telemetry.sinks import Record
from headrace.telemetry.spent import Spent
from headrace.train import Run
from headrace.update import Update
from headrace.views.terminal import TerminalView

logger = logging.getLogger(__name__)

Evaluate = Callable[[int], Evaluated]
_COLLECTING, _LEARNING = ("env", "inference", "copy"), ("completion", "advantages", "sgd")
_LOOK_S = 1.0  # between two looks at the cores


class Session:
    """One call of `train`. Without a run directory nothing is written."""

    def __init__(
        self,
        run: Run,
        config: SessionConfig,
        evaluate: Evaluate,
        files: SessionFiles,
        check: InPassing,
        run_dir: Path | None = None,
        view: TerminalView | None = None,
        callback: Callable[[Record, tuple[Finished, ...]], bool | None] | None = None,
        notes: Sequence[str] = (),
        forecast: Forecast | None = None,
        where: Mapping[str, int | str] | None = None,
    ) -> None:
        self._run, self._config, self._evaluate, self._check = run, config, evaluate, check
        self._files, self._dir, self._view, self._callback, self._notes = files, run_dir, view, callback, notes
        self._forecast, self._where = forecast or Forecast({}, 1), dict(where or {})
        self._spent = Spent()
        self._free, self._free_since_s, self._others_s, self._free_cores = FreeCores(), now_s(), 0.0, math.nan
        self._cpu_ns = thread_cpu_ns()
        self._stop = Stop(run, check.halt)
        self._end = SessionEnd(run, run_dir, self._stop, self._result, self._checkpoint)
        self._watch: StallWatch | None = None
        self._evaluations: list[tuple[int, Evaluated]] = []
        self._saved_step: int | None = None
        self._first_step, self._started_s = run.steps, now_s()
        self._next_checkpoint = _next_multiple(run.steps, config.checkpoint_every)
        self._next_evaluation = _next_multiple(run.steps, config.eval_every)
        self._timed_s = now_s()

    def train(self) -> Result:
        """Train to the end of the configured steps, or until stopped; every end leaves a checkpoint and a result."""
        self._started_s = now_s()
        with self._stop.listening(), self._files.log() as log, ExitStack() as stack:
            if log is not None and self._dir is not None:
                self._watch = StallWatch(log, self._config.stall_after_s, partial(say_stalled, self._dir, self._view))
                stack.enter_context(stacks_into(log))
                stack.enter_context(self._watch.watching())
            return self._end.of(self._train)

    def _train(self) -> tuple[str, int]:
        """Why it ended, and the exit code that this means."""
        self._begin()
        try:
            reason = self._loop()
        except Interrupted:
            return self._stop.name, self._stop.exit_code
        if self._config.stop_reward is not None and not self._reached():
            return "stop_reward not reached", 3
        return reason, 0

    def _begin(self) -> None:
        if self._dir is not None:
            broken_off = unfinished(self._dir)
            steps, total = self._run.steps, self._config.total_timesteps
            logger.info("%s %d to %d, process %d", BEGINNING, steps, total, os.getpid())
            if broken_off is not None:
                logger.warning("%s", broken_off)
            set_newer_aside(self._dir, steps)
            self._evaluations = read_evaluations(self._dir / "evaluations.npz", steps)
        self._end.note()
        for note in self._notes:
            logger.info("%s", note)

    def _loop(self) -> str:
        """Update after update; returns why it ended."""
        run, config, stop = self._run, self._config, self._stop
        with self._files.open(run.steps, run.updates), self._view or nullcontext(), self._checking(), self._placing():
            self._timed_s, self._cpu_ns = now_s(), thread_cpu_ns()
            while run.steps < config.total_timesteps:
                stop.if_asked()
                update = run.update(config.total_timesteps)
                stop.is_resting = True
                with self._spent("episodes"):
                    self._files.write_lists(update)
                self._forecast.add(update.harvest.steps, update.record)
                self._look_at_check()
                record = update.record | self._evaluate_if_due(update.steps)
                record |= self._timed(update)
                goes_on = self._called_back(record, update)
                if self._view is not None:
                    with self._spent("view"):
                        self._view.update(record)
                self._checkpoint_if_due(update.steps)
                if self._reached():
                    return "stop_reward reached"
                if not goes_on:
                    return "stopped by callback"
                stop.is_resting = False
                if self._watch is not None:
                    self._watch.alive()
            stop.if_asked()
        return "done"

    @contextmanager
    def _checking(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._look_at_check()
            self._check.close()

    @contextmanager
    def _placing(self) -> Iterator[None]:
        """What was predicted where the policy was placed; at the end, what became of it. Nothing if it was not."""
        say = self._view.message if self._view is not None else lambda text: None
        for note in self._notes:
            if note.startswith("inference="):
                say(note)
        yield
        text = words(self._forecast.encode())
        if text:
            logger.info("inference=auto: %s", text)
            say(f"inference=auto: {text}")

    def _look_at_check(self) -> None:
        text = self._check.look()
        if text is not None:
            logger.warning("%s", text)
            if self._view is not None:
                self._view.message(f"warning: {text}")

    def _called_back(self, record: Record, update: Update) -> bool:
        """Whether to go on. A callback may add to the record, which is written even if it fails."""
        try:
            if self._callback is None:
                return True
            with self._spent("callback"):
                return self._callback(record, update.harvest.finished) is not False
        finally:
            if update.number % self._config.log_interval == 0 or any(tag.startswith("eval/") for tag in record):
                self._spent.written()
                with self._spent("log"):
                    self._files.write_record(record)

    def _evaluate_if_due(self, steps: int) -> Record:
        config = self._config
        if not config.eval_every or (steps < self._next_evaluation and steps < config.total_timesteps):
            return {}
        self._stop.is_breakable = True
        try:
            with self._spent("evaluation"):
                evaluated = self._evaluate(config.n_eval_episodes)
        except Interrupted:
            return {}  # this update's record is still written; the loop ends before the next one
        finally:
            self._stop.is_breakable = False
        is_best = all(evaluated.mean_reward > other.mean_reward for _, other in self._evaluations)
        self._evaluations.append((steps, evaluated))
        self._next_evaluation = _next_multiple(steps, config.eval_every)
        logger.info("evaluation at step %d: mean reward %.2f", steps, evaluated.mean_reward)
        if self._dir is not None:
            with self._spent("evaluation"):
                if is_best:
                    save(self._run.snapshot(), self._dir / "best")
                write_evaluations(self._dir / "evaluations.npz", self._evaluations)
        return {"eval/mean_reward": evaluated.mean_reward, "eval/mean_ep_length": evaluated.mean_length}

    def _reached(self) -> bool:
        wanted = self._config.stop_reward
        return wanted is not None and bool(self._evaluations) and self._evaluations[-1][1].mean_reward >= wanted

    def _timed(self, update: Update) -> Record:
        """The record's time/ entries; the parts of the run have measured their own under headrace/time/."""
        now, before = now_s(), self._timed_s
        self._timed_s, elapsed, total = now, now - self._started_s, now - before
        prefix = "headrace/time/"
        split = {tag[len(prefix) :]: s for tag, s in update.record.items() if tag.startswith(prefix)}
        by_worker = enumerate(update.harvest.steps_by_worker if total else ())
        beside, latest_s = self._spent.per_update()
        cpu_ns, self._cpu_ns = self._cpu_ns, thread_cpu_ns()
        return {
            "time/fps": (update.steps - self._first_step) / elapsed if elapsed else 0.0,
            "time/iterations": float(update.number),
            "time/time_elapsed": elapsed,
            "time/total_timesteps": float(update.steps),
            "headrace/sps": update.harvest.steps / total if total else 0.0,
            "headrace/collect_s": sum(split.get(name, 0.0) for name in _COLLECTING),
            "headrace/update_s": sum(split.get(name, 0.0) for name in _LEARNING),
            "headrace/wait_s": split.get("wait", 0.0),
            **{f"headrace/sps/worker_{worker}": count / total for worker, count in by_worker},
            **{f"{prefix}{name}": seconds for name, seconds in beside.items()},
            f"{prefix}other": max(0.0, total - sum(split.values()) - latest_s),
            "headrace/cpu_s": (self._cpu_ns - cpu_ns) / 1e9,
            **self._free_cores_seen(now, update.record),
        }

    def _free_cores_seen(self, now: float, record: Record) -> Record:
        """How many cores other programs leave to this run and its processes, looked at now and then."""
        if self._where.get("topology") == "processes":  # else it is all this process's
            # Shards that take turns in a thread each count all of its time.
            self._others_s += record.get("headrace/actors/cpu_s", 0.0) / int(self._where.get("turns", 1))
            self._others_s += record.get("headrace/inference/cpu_s", 0.0)
        if (elapsed := now - self._free_since_s) >= _LOOK_S:
            self._free_cores = self._free.seen(self._others_s / elapsed)
            self._free, self._free_since_s, self._others_s = FreeCores(), now, 0.0
        return {"headrace/free_cores": self._free_cores}

    def _checkpoint_if_due(self, steps: int) -> None:
        if self._config.checkpoint_every and steps >= self._next_checkpoint:
            with self._spent("checkpoint"):
                self._checkpoint()
            self._next_checkpoint = _next_multiple(steps, self._config.checkpoint_every)

    def _checkpoint(self) -> None:
        run, steps = self._run, self._run.steps
        if self._dir is None:
            return
        late = run.source.leftovers()  # of a collect that was broken off: what is saved now has them in its books
        if self._saved_step == steps and not late.finished and not late.entries:
            return
        folder = self._dir / "checkpoints"
        save(run.snapshot(), folder / checkpoint_name(steps))
        self._files.write_late(Update(run.updates, run.weights.version, steps, {}, late))
        self._saved_step = steps
        self._end.note()
        logger.info("checkpoint at step %d", steps)
        keep = self._config.keep_checkpoints
        for old in sorted(folder.glob("step_*"))[:-keep] if keep else []:
            shutil.rmtree(old, ignore_errors=True)

    def _result(self) -> Result:
        evaluated = self._evaluations[-1][1].mean_reward if self._evaluations else None
        new_steps, wall_time_s = self._run.steps - self._first_step, now_s() - self._started_s
        state, placement = self._check.state(), self._forecast.encode()
        return result_of(self._run, new_steps, wall_time_s, evaluated, state, placement, self._where)


def _next_multiple(steps: int, every: int) -> int:
    return (steps // every + 1) * every if every else 0
