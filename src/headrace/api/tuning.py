"""Tuning: real trials of the candidates, within a time, and the configuration that came out best.

    look (one environment, the policy, an update) -> predictions -> Race.next -> a run, for a moment -> Race.add -> ...
        -> Tuned: the configuration to train with, a table of what was tried, and why

A trial is a real run with its own workers and shorter rollouts, so that its updates take a fifth of a second. Steps
that it makes are thrown away: the run that follows begins anew, with the bits of a run that was given the same
options. What fails is noted and left out. Decides nothing (launch/race, launch/tuning).
"""

from __future__ import annotations

import copy
import logging
import math
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import FrameType
from typing import Any

from headrace.build import acting_policy, build_algorithm, build_run
from headrace.checkpoints.run_directory import write_json
from headrace.clock import now_s
from headrace.collecting.topology import TopologyConfig
from headrace.errors import EnvError, HeadraceError, UsageError
from headrace.inference.own_features import own_features
from headrace.launch.auto import available_bytes, cpus
from headrace.launch.decision import Measured
from headrace.launch.prediction import look_at
from headrace.launch.race import Race, Row
from headrace.launch.rehearsal import Rehearsal, rehearse
from headrace.launch.tuning import Bounds, Candidate, candidates, predicted
from headrace.memory.spaces import ObservationSpace, Space
from headrace.plain_text import message_of
from headrace.policies.masks import built
from headrace.policies.policy import Module
from headrace.run_config import RunConfig
from headrace.train import Run

logger = logging.getLogger(__name__)

TUNE_S = 20.0
_WINDOW, _UPDATE = 0.02, 0.01  # of the time: what is timed in a trial, and what one of its updates takes
_LOOK = 0.15  # of the time, at most, for acting with other numbers of environments
_LONGEST_TRIAL = 0.4  # of the time
_MEASURING = 0.4  # of the time: after that, nothing else is measured beforehand
_LEAST_PATIENCE_S = 5.0  # with an environment that shows no progress: it may import something first
_LEAST_ROWS = 4
_MORE = "give tuning more seconds, or train without it,"
_GUESS_SPS = 2_000.0  # where nothing could be measured beforehand


@dataclass(frozen=True)
class Tuned:
    """What to train with, what was tried, and why."""

    config: RunConfig
    rows: tuple[Row, ...]
    choice: Candidate | None
    why: str
    seconds: float
    open: int
    """How many candidates there were."""

    def text(self) -> str:
        """A table and the choice."""
        place = self.config.topology
        batch = f"{place.n_envs * place.n_steps:,} steps"
        tried = f"{len(self.rows)} of {self.open} tried in {self.seconds:.0f} s"
        lines = [f"tuning: {tried}; a batch stays {batch}", "  n_envs  n_steps     steps/s  trials  place"]
        for row in self.rows:
            one, mark = row.candidate, "   <- chosen" if row.candidate == self.choice else ""
            speed = f"{row.typical:>11,.0f}  {len(row.trials):>6}" if row.trials else f"{'failed':>11}  {'':>6}"
            why = f": {row.failure}" if row.failure else ""
            lines.append(f"  {one.n_envs:>6}  {one.n_steps:>7} {speed}  {one.place}{why}{mark}")
        if self.choice is None:
            return "\n".join([*lines, f"nothing was changed: {self.why}"])
        options = f"--n-envs {place.n_envs} --n-steps {place.n_steps} --topology {place.topology}"
        options += "" if place.topology == "inline" else f" --workers {place.workers}"
        if place.inference == "central":
            options += f" --inference central --double-buffering {place.double_buffering}"
        options += f" --max-lag {place.max_lag}" if place.max_lag else ""
        return "\n".join([*lines, f"chosen: {options}", f"why: {self.why}"])

    def encode(self) -> dict[str, Any]:
        """The same for a file."""
        tried = [vars(row.candidate) | {"steps_per_s": list(row.trials), "failure": row.failure} for row in self.rows]
        choice = None if self.choice is None else vars(self.choice)
        return {"choice": choice, "why": self.why, "seconds": self.seconds, "candidates": self.open, "tried": tried}

    def keep(self, run_dir: Path) -> None:
        """As tuning.json."""
        try:
            write_json(run_dir / "tuning.json", self.encode())
        except OSError as error:
            logger.warning("tuning.json could not be kept: %s", error)


def intended(config: RunConfig, seconds: float, fixed: Collection[str], most_lag: int = 0) -> str:
    """What `tune` would do, without doing it."""
    bounds = Bounds(cpus(), is_pool=config.env.is_vector(), most_lag=most_lag)
    found = _fitting(config.topology, fixed, bounds)
    numbers = sorted({one.n_envs for one in found})
    envs = f"n_envs {', '.join(map(str, numbers))}" if len(numbers) > 1 else f"n_envs {numbers[0]} as it is"
    places = "; ".join(dict.fromkeys(one.place for one in found))
    batch = config.topology.n_envs * config.topology.n_steps
    return f"would spend up to {seconds:g} s on trials with {envs} (a batch stays {batch:,} steps) in: {places}"


def tune(
    config: RunConfig,
    seconds: float = TUNE_S,
    fixed: Collection[str] = (),
    most_lag: int = 0,
    module: Module | None = None,
    progress: Callable[[str], object] = lambda text: None,
) -> Tuned:
    """Find the fastest way to run this batch. Options named in `fixed` stay as they are.

    With `most_lag`, asynchronous candidates up to this max_lag are tried as well: they learn something else.
    """
    if not (0 < seconds <= 3600):
        raise UsageError(f"tune: expected more than 0 and at most 3,600 seconds, got {seconds:g}")
    begun_s, place = now_s(), config.topology
    progress(f"tuning: looking at {config.env.name}")
    hurried = replace(config, topology=_hurried(place, seconds))
    look = _Look(hurried, fixed, module, begun_s, seconds)
    bounds = replace(look.bounds, most_lag=most_lag)
    found = _fitting(place, fixed, bounds)
    promised = {one: look.predicted(one) for one in found}
    race = Race(promised, found[0], seconds)
    if len(found) == 1:
        config = replace(config, topology=found[0].applied(place))
        return Tuned(config, (), found[0], "the options that were given leave no choice", now_s() - begun_s, 1)
    with _Trials(hurried, module, seconds, begun_s + seconds) as trials:
        while (one := race.next(now_s() - begun_s)) is not None:
            progress(f"tuning: {now_s() - begun_s:.0f} of {seconds:.0f} s, n_envs {one.n_envs}, {one.place}")
            before_s = now_s()
            try:
                sps, again_s = trials.tried(one, race.expected(one))
            except (_OutOfTimeError, Exception) as error:
                trials.close_one(one)
                if isinstance(error, _OutOfTimeError) and now_s() - begun_s >= seconds:
                    break  # it is not this candidate's fault
                race.fail(one, message_of(error))
                logger.info("tune: n_envs %d, %s failed: %s", one.n_envs, one.place, message_of(error))
            else:
                race.add(one, sps, now_s() - before_s, again_s)
            trials.keep(race.racing)
    verdict = race.verdict()
    if verdict.choice is None and all(row.failure for row in race.rows()) and race.rows():
        first = race.rows()[0].failure
        raise EnvError(f"tune: every trial failed; {_MORE} if it is only slow; the first one: {first}")
    if verdict.choice is not None:
        config = replace(config, topology=verdict.choice.applied(place))
    return Tuned(config, tuple(race.rows()), verdict.choice, verdict.why, now_s() - begun_s, len(found))


def tuned_if(wanted: bool | float, config: RunConfig, module: Module | None, is_counted: bool) -> Tuned | None:
    """For keyword arguments. What differs from its default was meant to stay; `is_counted`: n_envs was given."""
    if isinstance(wanted, bool) and not wanted:
        return None
    usual, place = TopologyConfig(), config.topology
    fixed = {field.name for field in fields(place) if getattr(place, field.name) != getattr(usual, field.name)}
    seconds = TUNE_S if wanted is True else wanted
    if not isinstance(seconds, int | float):
        raise UsageError(f"tune: expected True, or seconds, got {wanted!r}")
    return tune(config, seconds, fixed | ({"n_envs"} if is_counted else set()), module=module)


def _fitting(place: TopologyConfig, fixed: Collection[str], bounds: Bounds) -> list[Candidate]:
    found = candidates(place, fixed, bounds)
    if not found:
        raise UsageError("tune: nothing fits the options that were given; leave some of them out, or train without it")
    return found


def _hurried(place: TopologyConfig, seconds: float) -> TopologyConfig:
    """The same, with no more patience for environments that hang than there is time."""
    patience_s = max(seconds, _LEAST_PATIENCE_S)
    ceiling_s = min(place.hang_ceiling_s or math.inf, patience_s)
    return replace(place, hang_floor_s=min(place.hang_floor_s, ceiling_s), hang_ceiling_s=ceiling_s)


class _OutOfTimeError(BaseException):
    """A trial took too long. Not an Exception: no environment may swallow it."""


class _Look:
    """What was measured beforehand; nothing if the environment is to be built in worker processes alone."""

    def __init__(
        self, config: RunConfig, fixed: Collection[str], module: Module | None, begun_s: float, seconds: float
    ) -> None:
        self._config, self._module, self._place = config, module, config.topology
        self._measured: Measured | None = None
        self._act_s: dict[int, float] = {}
        self.bounds = Bounds(cpus(), available_bytes(), is_pool=config.env.is_vector())
        if "topology" in fixed and self._place.topology == "processes":
            return
        until_s = begun_s + _MEASURING * seconds
        look = look_at(config.env, config.seed, self._place, self._rehearsed, until_s, _MORE)
        self._measured = seen = replace(look.measured, free_cores=math.inf)  # trials show what others leave
        self.bounds = replace(self.bounds, cpu_share=seen.cpu_share, make_s=look.make_s, is_pool=seen.is_pool)
        self._act_s = {1: seen.policy.call_s, self._place.n_envs: seen.policy.act_s}
        for n_envs in sorted({one.n_envs for one in candidates(self._place, fixed, self.bounds)} - {*self._act_s}):
            if now_s() < begun_s + _LOOK * seconds:
                place = replace(self._place, n_envs=n_envs, n_steps=_LEAST_ROWS)
                self._act_s[n_envs] = self._rehearsed(look.observation, look.action, place).act_s

    def predicted(self, one: Candidate) -> float:
        """Steps per second; the same for all if nothing was measured."""
        if self._measured is None:
            return _GUESS_SPS
        return predicted(one, self._place, self._measured, self._act_s, self.bounds.cores)

    def _rehearsed(
        self, observation: ObservationSpace, action: Space, place: TopologyConfig | None = None
    ) -> Rehearsal:
        """Acting, and learning if no other place is given: an update takes as long at all of them."""
        config, learns = self._config, build_algorithm if place is None else None
        own = own_features(config.extractors, observation, config.policy)
        module = self._module or built(config.policy, observation, action, 0, own)
        policy = acting_policy(module, config, observation, action)
        tile = config.policy.tile
        return rehearse(policy, observation, action, place or self._place, tile, config.algorithm, learns)


class _Trials:
    """Runs for trials. One that may be tried again stays open, since workers take a second to start."""

    def __init__(self, config: RunConfig, module: Module | None, seconds: float, until_s: float) -> None:
        self._config, self._module, self._seconds, self._until_s = config, module, seconds, until_s
        self._open: dict[Candidate, Run] = {}

    def __enter__(self) -> _Trials:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:  # all of them, whatever one of them says
            for run in self._open.values():
                stack.callback(_close, run)
            self._open = {}

    def tried(self, one: Candidate, expected_sps: float) -> tuple[float, float | None]:
        """Steps per second of a moment, and the seconds of another one; None if it has to be started again then."""
        limit_s = min(_LONGEST_TRIAL * self._seconds, self._until_s - now_s())
        window_s, steps, updates = _WINDOW * self._seconds, 0, 0
        run = self._open.get(one)
        if run is None:
            config = replace(self._config, topology=self._shortened(one, expected_sps))
            run, _ = build_run(config, copy.deepcopy(self._module))
            self._open[one] = run
        with _limited(run, max(limit_s, 1e-3)):
            for _ in range(1 + one.max_lag):  # it warms up, and uses what was collected while others were tried
                run.update(1 << 40)
            begun_s = now_s()
            while updates < 2 or now_s() - begun_s < window_s:
                steps, updates = steps + run.update(1 << 40).harvest.steps, updates + 1
                if now_s() - begun_s > 4 * window_s:
                    break
            took_s = now_s() - begun_s
            return steps / took_s, None if one.max_lag else took_s * (updates + 1) / updates

    def keep(self, racing: Collection[Candidate]) -> None:
        """Close the others; also those that collect ahead, which would do so beside the next trial."""
        for one in [*self._open]:
            if one not in racing or one.max_lag:
                self.close_one(one)

    def close_one(self, one: Candidate) -> None:
        run = self._open.pop(one, None)
        if run is not None:
            _close(run)

    def _shortened(self, one: Candidate, expected_sps: float) -> TopologyConfig:
        """The same with rollouts of a moment; at least a minibatch, if that does not take long."""
        wanted = _UPDATE * self._seconds * expected_sps
        batch = getattr(self._config.algorithm, "batch_size", 1)
        wanted = max(wanted, min(batch, 3 * wanted))
        rows = min(one.n_steps, max(_LEAST_ROWS, math.ceil(wanted / one.n_envs)))
        return replace(one.applied(self._config.topology), n_steps=rows, spares=0)


def _close(run: Run) -> None:
    try:
        run.close()
    except HeadraceError as error:
        logger.info("tune: a trial did not end in order: %s", message_of(error))


@contextmanager
def _limited(run: Run, limit_s: float) -> Iterator[None]:
    """Collecting that takes longer is broken off, as by Ctrl-C. Only the main thread can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        if run.source.is_interruptible:
            raise _OutOfTimeError(f"no rollout in {limit_s:.1f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s, 0.1)  # again and again: learning is finished first
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
