"""What travels from actors to the learner, and the fleet size at which the link binds.

    bytes of a transition (schema, or shape and dtype) x steps/s = bandwidth of an actor · x actors = of the fleet
    link / bandwidth of an actor = the most actors that it carries

Three things push that limit back: compression (fewer bytes per transition), deltas (only what changed), and moving the
policy to the data, so that weights travel instead of observations. Pure. Does not know protocols.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.memory.schema import Field, Schema
from headrace.planning.checks import positive

_COMPLETED = ("log_prob", "value", "bootstrap_value")  # filled in by the learner


def transition_bytes(schema: Schema) -> float:
    """Bytes that a slab takes per environment step, what it holds per row and per environment shared out."""
    return schema.size_bytes / (schema.n_steps * schema.n_envs)


def sent_bytes(schema: Schema) -> float:
    """Bytes of one step that an actor writes: without what the learner fills in, and without final observations."""
    return _bytes_of([field for field in schema.fields if field.axes == "TB" and field.name not in _COMPLETED])


def observed_bytes(schema: Schema) -> float:
    """Of them, those of the observation."""
    return _bytes_of([field for field in schema.fields if field.name in schema.leaves])


def _bytes_of(fields: Sequence[Field]) -> float:
    return float(sum(math.prod(field.shape) * np.dtype(field.dtype).itemsize for field in fields))


@dataclass(frozen=True)
class Traffic:
    """What a fleet sends, and what a link carries."""

    actor_bytes_per_s: float
    fleet_bytes_per_s: float
    share_of_link: float
    """Above 1 the link binds."""
    most_actors: int
    """That the link carries; the next one makes it the bottleneck."""
    most_sps: float
    """Steps per second that the link carries."""


def traffic(step_bytes: float, actor_sps: float, actors: float, link_bytes_per_s: float) -> Traffic:
    """A fleet of equal actors behind one link."""
    of_actor = positive("bytes per transition", step_bytes) * positive("actor_sps", actor_sps)
    link = positive("link", link_bytes_per_s)
    of_fleet = positive("actors", actors, may_be_zero=True) * of_actor
    return Traffic(of_actor, of_fleet, of_fleet / link, math.floor(link / of_actor + 1e-9), link / step_bytes)


@dataclass(frozen=True)
class Lever:
    """A change that lets a link carry more, and how many actors it carries then."""

    name: str
    step_bytes: float
    most_actors: int


def levers(
    step_bytes: float,
    actor_sps: float,
    link_bytes_per_s: float,
    compression: float = 2.0,
    changed: float = 0.25,
    observation_bytes: float = 0,
) -> list[Lever]:
    """Compression by a factor, and deltas of which a share of the bytes changes from step to step.

    Only the observation gets smaller; `observation_bytes` 0: it is all that travels.
    """
    if not 0 < changed <= 1:
        raise ValueError(f"changed: expected a share of the bytes, above 0 and at most 1, got {changed}")
    observed = observation_bytes or step_bytes
    smaller = {
        f"compress observations {compression:g}x": step_bytes
        - observed
        + observed / positive("compression", compression),
        f"send deltas ({changed:.0%} of the bytes change)": step_bytes - observed + observed * changed,
    }
    return [
        Lever(name, size, traffic(size, actor_sps, 0, link_bytes_per_s).most_actors) for name, size in smaller.items()
    ]


def policy_to_the_data(weight_bytes: float, updates_per_s: float, link_bytes_per_s: float) -> int:
    """Machines that the link carries if a learner's weights travel to each of them at every update, and no rollout."""
    sent = positive("bytes of the weights", weight_bytes) * positive("updates per second", updates_per_s)
    return math.floor(positive("link", link_bytes_per_s) / sent + 1e-9)
