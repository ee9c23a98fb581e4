"""A table: the episodes of one group as they come in, and how a failure there is told. Knows no threads, no loops."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from headrace.agents.failures import EpisodeError
from headrace.agents.limits import Limits
from headrace.agents.plan import Ticket
from headrace.agents.records import ENV, FAILED, TIMEOUT, Episode, Failure, Group
from headrace.agents.seat import Seat
from headrace.clock import now_s

logger = logging.getLogger(__name__)


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
    """What a call raised, by its boundary; what nobody foresaw is the environment's, whose thread it was."""
    return error if isinstance(error, EpisodeError) else EpisodeError(ENV, f"{type(error).__name__}: {error}")


def too_slow(seat: Seat, limits: Limits) -> EpisodeError:
    """An environment's call did not come back."""
    ticket = seat.ticket
    return EpisodeError(
        TIMEOUT, f"{ticket.tag}, seed {ticket.seed}: the environment did not come back within {limits.env_s:g} s"
    )


def told_close(seat: Seat, what: str) -> None:
    """What close() does is not worth an episode, which is over either way: it is logged."""
    logger.warning("closing %s, group %d: %s", seat.ticket.tag, seat.ticket.number, what)
