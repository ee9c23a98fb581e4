"""A seat: one attempt at one episode with its environment. What may block (build, reset, step) and what does not.

    open() -> Request      in a thread that may hang      built or taken from the pool, reset, first question
    answered(completion)   anywhere, quick                the answer parsed
    act() -> Request       in a thread that may hang      actions taken, next question, or None: it is over
    turn(completion)       in a thread that may hang      both of these
    close()                in a thread that may hang      the environment closed, or given back to the pool

The seats of one group stand at a table, which becomes the group's record. Does not know who drives it, or what waits
for what.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from headrace.agents.codec import Codec
from headrace.agents.engines.protocol import Completion, Request
from headrace.agents.environments.text_env import (
    Step,
    Task,
    TextEnv,
    TextEnvSpec,
    checked_observation,
    checked_step,
    task_of,
)
from headrace.agents.episode import Play
from headrace.agents.limits import Limits
from headrace.agents.plan import GroupPlan, Ticket
from headrace.agents.records import ENV, FAILED, TIMEOUT, Episode, EpisodeError, Failure, Group
from headrace.agents.tool_calls import toolbox_of
from headrace.clock import now_s

T = TypeVar("T")

logger = logging.getLogger(__name__)


def _stepped(env: TextEnv, action: str) -> Step:
    return checked_step(env.step(action))


class EnvPool:
    """Environments that may be used again, by tag; those of other tags are built and closed for every episode."""

    def __init__(self, reusable: frozenset[str] = frozenset()) -> None:
        self._reusable = reusable
        self._free: dict[str, list[TextEnv]] = {}
        self._lock = threading.Lock()

    def take(self, spec: TextEnvSpec) -> TextEnv:
        """A used one if there is one, else a fresh one."""
        with self._lock:
            free = self._free.get(spec.tag)
            if free:
                return free.pop()
        return spec.build()

    def give(self, tag: str, env: TextEnv, is_sound: bool) -> None:
        """Keep it for the next episode, or close it: after a failure its state is unknown."""
        if is_sound and tag in self._reusable:
            with self._lock:
                self._free.setdefault(tag, []).append(env)
        else:
            env.close()

    def close(self) -> None:
        """Close all that are free, whatever the others do."""
        with self._lock:
            envs = [(tag, env) for tag, free in self._free.items() for env in free]
            self._free.clear()
        for tag, env in envs:
            try:
                env.close()
            except BaseException as error:  # in a thread of its own, as everything of an environment's
                logger.warning("%s raised in close: %s: %s", tag, type(error).__name__, error)


class Seat:
    """One attempt at one episode."""

    def __init__(
        self,
        plan: GroupPlan,
        ticket: Ticket,
        member: int,
        codec: Codec,
        is_text_only: bool,
        pool: EnvPool,
        attempt: int,
    ) -> None:
        self.ticket, self.member, self.attempt = ticket, member, attempt
        self._plan, self._codec, self._is_text_only, self._pool = plan, codec, is_text_only, pool
        self._env: TextEnv | None = None
        self._play = self._new_play(Task())
        self._actions: tuple[str, ...] = ()
        self._is_sound, self._is_abandoned = True, False
        self.has_failed = False
        self._lock = threading.Lock()

    def open(self) -> Request | None:
        """The first question."""
        env = self._env = self._guard(
            "could not be built", lambda: self._pool.take(self._plan.spec_of(self.ticket.tag))
        )
        observation = self._guard("raised in reset", lambda: checked_observation(env.reset(self.ticket.seed)))
        task = self._guard("could not say what it is about", lambda: task_of(env))
        play = self._guard("could not say what it is about", lambda: self._new_play(task))
        with self._lock:
            self._require_owned()
            self._play = play
            return play.begin(observation)

    def answered(self, completion: Completion, engine_s: float) -> None:
        """What the policy said."""
        with self._lock:
            self._require_owned()
            self._actions = self._play.answered(completion, engine_s)

    def turn(self, completion: Completion, engine_s: float) -> Request | None:
        """What the policy said, and what comes of it."""
        self.answered(completion, engine_s)
        return self.act()

    def act(self) -> Request | None:
        """Take the answer's actions; the next question, or None: the episode is over."""
        env, steps, started = self._env, list[Step](), now_s()
        assert env is not None, "open first"
        for action in self._actions:
            steps.append(self._guard("raised in step", partial(_stepped, env, action)))
            if steps[-1].is_done:
                break
        took_s = now_s() - started
        with self._lock:
            self._require_owned()
            return self._play.stepped(steps, took_s)

    def close(self) -> None:
        """Give the environment back, or close it; may hang, as everything of an environment's may."""
        env, self._env = self._env, None
        if env is not None:
            self._guard("raised in close", lambda: self._pool.give(self.ticket.tag, env, self._is_sound))

    def abandoned(self) -> Seat:
        """The same attempt without its environment, which a thread is stuck in: that adds nothing to it."""
        with self._lock:
            self._is_abandoned, self._is_sound = True, False
            twin = copy.copy(self)
        twin._env, twin._lock, twin._is_abandoned = None, threading.Lock(), False
        return twin

    @property
    def is_abandoned(self) -> bool:
        """Whether its environment was given up."""
        return self._is_abandoned

    def _require_owned(self) -> None:
        """A thread that comes back from an environment after it was given up may not touch what happened."""
        if self._is_abandoned:
            raise EpisodeError(TIMEOUT, f"{self.ticket.tag} came back after it had been given up")

    def failed(self, failure: Failure) -> None:
        """The attempt ends here; its environment is not used again."""
        self._is_sound, self.has_failed = False, True
        self._play.failed(failure)

    def record(self) -> Episode:
        """What happened."""
        return self._play.record()

    def _guard(self, what: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except EpisodeError:
            self._is_sound = False
            raise
        except BaseException as error:  # in a thread of its own: Ctrl-C and cancelled tasks are never ours to see here
            self._is_sound = False
            raise EpisodeError(ENV, f"{self.ticket.tag} {what}: {type(error).__name__}: {error}") from error

    def _new_play(self, task: Task) -> Play:
        plan, ticket = self._plan, self.ticket
        rules = plan.rules_of(ticket.tag)
        tools = None if rules.answers == "tags" else toolbox_of(task, rules.answers)
        seed_of_turn = partial(plan.sampling_seed, ticket.number, self.member)
        return Play(
            ticket, self.member, rules, self._codec, seed_of_turn, task.instructions,
            task.actions, self._is_text_only, self.attempt, task.form, tools,
        )  # fmt: skip


@dataclass
class Table:
    """One group in play."""

    ticket: Ticket
    started_s: float
    episodes: dict[int, Episode] = field(default_factory=dict)  # by member

    @property
    def is_full(self) -> bool:
        """Whether every member has come in, returned or failed."""
        return len(self.episodes) == self.ticket.group_size

    def group(self, worker: int) -> Group:
        """The group as it is emitted."""
        ticket = self.ticket
        episodes = tuple(self.episodes[member] for member in range(ticket.group_size))
        return Group(ticket.number, ticket.tag, ticket.seed, episodes, worker, now_s() - self.started_s)


def failed_group(ticket: Ticket, failure: Failure, worker: int = 0) -> Group:
    """A group of which nothing came back: every member failed for the same reason."""
    episodes = tuple(
        Episode(ticket.number, member, ticket.tag, ticket.seed, FAILED, (), (), {}, failure, ticket.attempt)
        for member in range(ticket.group_size)
    )
    return Group(ticket.number, ticket.tag, ticket.seed, episodes, worker)


def as_failure(error: BaseException) -> EpisodeError:
    """What a call raised, by its boundary; what was not foreseen is the environment's, whose thread it was."""
    return error if isinstance(error, EpisodeError) else EpisodeError(ENV, f"{type(error).__name__}: {error}")


def too_slow(seat: Seat, limits: Limits) -> EpisodeError:
    """An environment's call did not come back."""
    ticket = seat.ticket
    return EpisodeError(
        TIMEOUT, f"{ticket.tag}, seed {ticket.seed}: the environment did not come back within {limits.env_s:g} s"
    )


def report_close(seat: Seat, what: str) -> None:
    """What close() does is not worth an episode, which is over either way: it is logged."""
    logger.warning("closing %s, group %d: %s", seat.ticket.tag, seat.ticket.number, what)
