"""Supply and demand: how fast actors produce transitions, how fast the learner consumes them.

    S = M r_a      supply of M actors, each of r_a steps a second
    D = b / t_l    demand of a learner that takes t_l seconds for b transitions
    M >= D / r_a   actors that keep it busy

A learner that uses a transition once demands its minibatch per gradient step (`demand`). PPO uses every transition
n_epochs times, so what it demands of its actors is one rollout per update (`rollout_demand`): n_epochs times less.
Pure: seconds and counts in, rates out. Does not know where they were measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.planning.checks import positive

_SLACK = 1e-9  # 64.00000000001 actors are 64


def supply(actors: float, actor_sps: float) -> float:
    """Transitions per second of so many actors."""
    return positive("actors", actors, may_be_zero=True) * positive("actor_sps", actor_sps)


def demand(batch: float, update_s: float) -> float:
    """Transitions per second of a learner that takes `update_s` seconds for a batch and uses it once."""
    return positive("batch", batch) / positive("update time", update_s)


def rollout_demand(batch: float, update_s: float, n_epochs: float, rollout: float) -> float:
    """Transitions per second of PPO: a rollout is used n_epochs times, in minibatches of `batch`.

    The last minibatch of an epoch may be smaller and still counts as one.
    """
    minibatches = math.ceil(positive("rollout", rollout) / positive("batch", batch) - _SLACK)
    return rollout / (minibatches * positive("n_epochs", n_epochs) * positive("update time", update_s))


def actors_needed(rate: float, actor_sps: float) -> int:
    """The fewest actors whose supply meets a demand."""
    return max(1, math.ceil(positive("demand", rate) / positive("actor_sps", actor_sps) - _SLACK))


def utilisation(supplied: float, demanded: float) -> float:
    """The share of its time that the learner learns, 0 to 1."""
    return min(1.0, positive("supply", supplied, may_be_zero=True) / positive("demand", demanded))


@dataclass(frozen=True)
class Surplus:
    """What is produced beyond the demand, and where it goes."""

    per_s: float
    """Transitions per second that nobody learns from; 0 if the learner waits."""
    buffer_s: float
    """Seconds until a buffer is full of them; infinite without a surplus."""


def surplus(supplied: float, demanded: float, buffer_transitions: float) -> Surplus:
    """How fast a buffer of so many transitions fills up."""
    extra = max(0.0, supplied - demanded)
    room = positive("buffer", buffer_transitions, may_be_zero=True)
    return Surplus(extra, room / extra if extra else math.inf)


def vectorised(fixed_s: float, per_env_s: float, n_envs: float) -> float:
    """Steps per second of one process that steps B environments in a call: B / (fixed + B per_env)."""
    positive("seconds per environment", per_env_s, may_be_zero=bool(fixed_s))
    return n_envs / (positive("fixed seconds", fixed_s, may_be_zero=bool(per_env_s)) + n_envs * per_env_s)


def knee(fixed_s: float, per_env_s: float, share: float = 0.9) -> float:
    """The B at which a process reaches this share of the most it can do: there the fixed cost is amortised."""
    if not 0 < share < 1:
        raise ValueError(f"share: expected a number between 0 and 1, got {share}")
    return share / (1 - share) * fixed_s / positive("seconds per environment", per_env_s)
