"""How tickets become groups: a crew of workers, or the lock-step loop here; from the first to the second if need be.

    scheduler ──> Player: crew of workers (dispatcher, joblib)  ──> judged (how old?) ──> handed over, one by one
                     │ they can't be started: one line says why
                     └──> lock-step, with the same tickets

Whichever way, a group that is waited for has somebody who is named: a worker, the engine, or the learner that has not
published. Does not know journals, numbers or statistics.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from headrace.agents import auto, lock_step
from headrace.agents.crew import Crew, CrewError, CrewLostError
from headrace.agents.dispatcher import Dispatcher
from headrace.agents.engines.protocol import Engine
from headrace.agents.limits import Limits
from headrace.agents.plan import GroupPlan, Ticket
from headrace.agents.records import COMPLETED, WORKER, Failure, Group
from headrace.agents.scheduler import Scheduler, suggested_workers
from headrace.agents.table import failed_group
from headrace.agents.worker import WorkerPlan
from headrace.clock import now_s
from headrace.errors import UsageError

_LOOK_S = 0.05  # between looks at the workers while no group comes
_ADAPT_S = 1.0  # between two thoughts about their number
_TELL_S = 1.0  # without new weights, until the log says that they are waited for

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stage:
    """What every way to play needs."""

    plan: GroupPlan
    engine: Engine
    limits: Limits
    reusable: frozenset[str]


class Player:
    """Plays what a scheduler holds. `judge` looks at a group when it is handed over."""

    def __init__(self, stage: Stage, scheduler: Scheduler, judge: Callable[[Group], Group]) -> None:
        self._stage, self._scheduler, self._judge = stage, scheduler, judge
        self._learner = _Learner(scheduler, stage)
        self._dispatcher: Dispatcher | None = None
        self._crew: Crew | None = None

    @property
    def restarts(self) -> int:
        """Workers that were started again."""
        return self._crew.restarts if self._crew is not None else 0

    @property
    def worker_pids(self) -> dict[int, int]:
        """Process ids of the workers, by worker; none if they are threads."""
        return self._crew.pids if self._crew is not None else {}

    def look_again(self) -> None:
        """There are new weights."""
        if self._dispatcher is not None:
            self._dispatcher.look_again()

    def play(self, choice: auto.Choice, groups: int, is_adapting: bool) -> Generator[Group, None, None]:
        """Every group once; `groups` is how many are worth being played at one time."""
        if choice.backend in auto.BACKENDS:
            try:
                yield from self._with_workers(choice, groups, is_adapting)
                return
            except CrewError as error:
                logger.warning(
                    "parallel rollouts are not possible (%s); going on sequentially with the same seeds", error
                )
        yield from self._in_lock_step(is_side_by_side=choice.backend == "lock-step")

    def _in_lock_step(self, is_side_by_side: bool) -> Iterator[Group]:
        stage, scheduler = self._stage, self._scheduler
        how = (stage.plan, stage.engine, stage.limits, stage.reusable, is_side_by_side)

        def next_ticket() -> Ticket | None:
            return scheduler.next(0, stage.engine.version)

        while not scheduler.is_done:
            for group in lock_step.play(next_ticket, *how):
                scheduler.finished(group.number, group.seconds)
                group = self._judge(group)
                scheduler.handed_over(group.number, group.status == COMPLETED)
                yield group
            self._learner.wait()

    def _with_workers(self, choice: auto.Choice, groups: int, is_adapting: bool) -> Iterator[Group]:
        stage, scheduler = self._stage, self._scheduler
        dispatcher = self._dispatcher = Dispatcher(
            scheduler, lambda: stage.engine.version, stage.engine.expect, groups, is_fragile=choice.backend == "loky"
        )
        plan = WorkerPlan(
            stage.plan, stage.engine.codec, stage.engine.is_text_only, stage.limits, stage.reusable,
            stage.plan.group_size * max(1, -(-groups // choice.n_jobs)),
        )  # fmt: skip
        crew = self._crew = Crew(choice.backend, choice.n_jobs, plan, dispatcher, stage.engine)
        adapting = _Adapting(dispatcher, stage.engine, choice.n_jobs) if is_adapting else None
        told_s = now_s()

        def hand_over(group: Group) -> Group:
            group = self._judge(group)
            dispatcher.handed_over(group.number, group.status == COMPLETED)
            return group

        try:
            crew.launch()
            while not scheduler.is_done or not dispatcher.is_empty:
                group = dispatcher.next_group(_LOOK_S)
                if group is not None:
                    yield hand_over(group)
                    continue
                crew.look()
                dispatcher.look_again()  # weights may have been published elsewhere
                if self._learner.look():
                    told_s = now_s()  # who is waited for has been told
                if adapting is not None:
                    adapting.look()
                quiet_s = now_s() - max(told_s, dispatcher.progress_s)
                if quiet_s > stage.limits.stall_s:
                    told_s = now_s()
                    logger.warning("no progress for %.0f s: %s", quiet_s, dispatcher.explain())
        except CrewError:
            while (group := dispatcher.next_group(0.0)) is not None:
                yield hand_over(group)
            raise
        except CrewLostError as error:
            logger.error("%s; what is left of the groups has failed", error)
            left = dispatcher.abandon()
            while (group := dispatcher.next_group(0.0)) is not None:
                yield hand_over(group)
            for ticket in left:
                yield failed_group(ticket, Failure(WORKER, str(error)))
        finally:
            self._dispatcher = None
            is_finished = scheduler.is_done
            dispatcher.close()
            crew.close(is_finished)


class _Learner:
    """Whoever publishes weights, as seen by groups that may not start before that."""

    def __init__(self, scheduler: Scheduler, stage: Stage) -> None:
        self._scheduler, self._stage = scheduler, stage
        self._since_s: float | None = None
        self._is_told = False

    def look(self) -> bool:
        """Whether it is waited for; after limits.publish_s that is an error."""
        if not self._scheduler.is_held(self._stage.engine.version):
            self._since_s, self._is_told = None, False
            return False
        self._since_s = now_s() if self._since_s is None else self._since_s
        waited_s, limit_s = now_s() - self._since_s, self._stage.limits.publish_s
        what = (
            f"no group may start before the next publish(): {self._scheduler.accepted} were accepted, and the weights "
            f"are of version {self._stage.engine.version}"
        )
        if waited_s > limit_s:
            raise UsageError(f"{what}; nobody published within limits.publish_s = {limit_s:g} s")
        if waited_s > min(_TELL_S, 0.5 * limit_s) and not self._is_told:
            self._is_told = True
            logger.warning("%s; waiting for it", what)
        return True

    def wait(self) -> None:
        """Until it has published."""
        pause = threading.Event()
        while self.look():
            pause.wait(_LOOK_S)


class _Adapting:
    """The number of workers that get groups, by how much the engine waits."""

    def __init__(self, dispatcher: Dispatcher, engine: Engine, most: int) -> None:
        self._dispatcher, self._engine, self._most = dispatcher, engine, most
        self._active = most
        self._since_s, self._busy_s = now_s(), engine.statistics().busy_s

    def look(self) -> None:
        """Now and then."""
        elapsed_s = now_s() - self._since_s
        if elapsed_s < _ADAPT_S:
            return
        busy_s = self._engine.statistics().busy_s
        idle = max(0.0, 1.0 - (busy_s - self._busy_s) / elapsed_s)
        self._since_s, self._busy_s = now_s(), busy_s
        active = suggested_workers(self._active, 1, self._most, idle, self._dispatcher.num_waiting)
        if active != self._active:
            logger.info(
                "the engine waits %.0f %% of the time: %d of %d workers get groups", 100 * idle, active, self._most
            )
            self._active = active
            self._dispatcher.set_active(active)
