"""The sizing of a fleet: how many actors a learner needs, what binds, and what each change would do.

    Job (batch, update time, actor's steps/s, what is known of bytes, link, prices) --size--> Sizing

The rate of the whole is the least of three: what the actors supply, what the learner demands, what the link carries.
The least one is the binding constraint, and only changes to it help. Pure; printing is the command's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from headrace.planning.checks import positive
from headrace.planning.cost import per_million_steps
from headrace.planning.link import traffic
from headrace.planning.throughput import actors_needed, demand, rollout_demand, supply, utilisation

ACTORS, LEARNER, LINK = "actors", "learner", "link"


@dataclass(frozen=True)
class Job:
    """What is known. Rates are per second; 0 stands for "not given" where a default says so."""

    batch: float
    """Transitions of one gradient step."""
    update_s: float
    """Seconds of one gradient step."""
    actor_sps: float
    """Steps per second of one actor, its environments and its policy included."""
    actors: int = 0
    """How many there are; 0: as many as the learner needs."""
    n_epochs: int = 1
    rollout: float = 0
    """Transitions of one update, each used n_epochs times; 0: a batch."""
    step_bytes: float = 0
    """Of one transition, as it travels; 0: the link is not looked at."""
    link_bytes_per_s: float = 0
    actor_price: float = 0
    """Of one actor's machine, per hour."""
    learner_price: float = 0
    observation_bytes: float = 0
    """Of step_bytes, those of the observation, which could be made smaller; 0: all."""
    memory_bytes: float = 0
    """Of one transition in a buffer of rollouts, which also has room for final observations; 0: as it travels."""
    ring_rollouts: int = 2
    """Rollouts that are in memory at a time: one is learnt from, one is collected."""


@dataclass(frozen=True)
class Sizing:
    """The answer."""

    demand: float
    """b / t_l: transitions per second, each used once."""
    rollout_demand: float
    """What PPO takes of its actors: every transition is used n_epochs times."""
    actors_needed: int
    actors: int
    """That the following numbers are of."""
    supply: float
    link_sps: float
    """Transitions per second that the link carries; infinite if there is none."""
    rate: float
    """Transitions per second of the whole."""
    binding: str
    """actors, learner or link."""
    utilisation: float
    """Of the learner."""
    actor_bytes_per_s: float
    fleet_bytes_per_s: float
    link_actors: float
    """The most actors that the link carries."""
    ring_bytes: float
    price_per_hour: float
    price_per_million: float


def size(job: Job) -> Sizing:
    """Size a fleet of equal actors for one learner."""
    rollout = job.rollout or job.batch
    wanted = rollout_demand(job.batch, job.update_s, job.n_epochs, rollout)
    needed = actors_needed(wanted, job.actor_sps)
    actors = job.actors or needed
    supplied = supply(positive("actors", actors), job.actor_sps)
    sent = None
    if job.step_bytes and job.link_bytes_per_s:
        sent = traffic(job.step_bytes, job.actor_sps, actors, job.link_bytes_per_s)
    link_sps = sent.most_sps if sent else math.inf
    rate = min(supplied, wanted, link_sps)
    # Where two are equal nothing is gained by more actors, so they are named last.
    binding = next(name for name, own in ((LINK, link_sps), (LEARNER, wanted), (ACTORS, supplied)) if own <= rate)
    price = actors * job.actor_price + job.learner_price
    return Sizing(
        demand=demand(job.batch, job.update_s),
        rollout_demand=wanted,
        actors_needed=needed,
        actors=actors,
        supply=supplied,
        link_sps=link_sps,
        rate=rate,
        binding=binding,
        utilisation=utilisation(rate, wanted),
        actor_bytes_per_s=job.step_bytes * job.actor_sps,
        fleet_bytes_per_s=job.step_bytes * supplied,
        link_actors=sent.most_actors if sent else math.inf,
        ring_bytes=job.ring_rollouts * rollout * (job.memory_bytes or job.step_bytes),
        price_per_hour=price,
        price_per_million=per_million_steps(price, rate),
    )


def curve(job: Job, most: int) -> list[tuple[int, Sizing]]:
    """The sizing at every number of actors up to some, for a plot; at most some 200 points."""
    step = max(1, most // 200)
    return [(actors, size(replace(job, actors=actors))) for actors in range(1, most + 1, step)]


def what_helps(job: Job, sizing: Sizing) -> list[tuple[str, float]]:
    """Changes and the rate that each would bring, the best one first; those that bring nothing are left out."""
    changes = {
        f"{sizing.actors_needed} actors instead of {sizing.actors}": replace(job, actors=sizing.actors_needed),
        "actors twice as fast (more environments per process, a compiled one)": replace(
            job, actors=sizing.actors, actor_sps=2 * job.actor_sps
        ),
        "gradient steps twice as fast": replace(job, actors=sizing.actors, update_s=job.update_s / 2),
    }
    if job.n_epochs > 1:
        fewer = job.n_epochs // 2
        changes[f"n_epochs {fewer} instead of {job.n_epochs}"] = replace(job, actors=sizing.actors, n_epochs=fewer)
    if math.isfinite(sizing.link_sps):
        smaller = job.step_bytes - (job.observation_bytes or job.step_bytes) / 2
        changes["observations compressed 2x"] = replace(job, actors=sizing.actors, step_bytes=smaller)
    rates = [(name, size(changed).rate) for name, changed in changes.items()]
    return sorted(((name, rate) for name, rate in rates if rate > sizing.rate * 1.01), key=lambda one: -one[1])
