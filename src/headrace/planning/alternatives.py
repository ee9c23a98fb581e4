"""What else could be done about a sizing, where the numbers for it are known: the link, a surplus, cheaper machines.

    Job, Sizing + bytes of the weights, a buffer, machines with prices --alternatives--> Alternatives

Each is a formula of its own (link, throughput, cost); the ones whose numbers are missing are left out. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from headrace.planning.cost import Fleet, MachineType, cheapest, per_million_steps
from headrace.planning.link import Lever, levers, policy_to_the_data
from headrace.planning.quantities import counted, price_of, with_digits, with_unit
from headrace.planning.sizing import Job, Sizing
from headrace.planning.throughput import Surplus, surplus

_SAME = 1 + 1e-9  # of two rates: what lies below is rounding


@dataclass(frozen=True)
class Moved:
    """The policy acts where the environments are, and weights travel instead of observations."""

    weight_bytes: float
    updates_per_s: float
    """Of a learner that never waits."""
    most_machines: int
    """That the link carries the weights to."""


@dataclass(frozen=True)
class Alternatives:
    """Empty or None: the numbers for it are not known."""

    levers: tuple[Lever, ...] = ()
    moved: Moved | None = None
    surplus: Surplus | None = None
    buffer: float = 0
    """Transitions of the buffer that a surplus would fill; 0: there is none."""
    cheapest: Fleet | None = None
    """Meets the learner's demand at the least price; without the learner."""
    price_per_million: float = 0
    """Of a million steps of that fleet, the learner included."""


def alternatives(
    job: Job, sizing: Sizing, weight_bytes: float = 0, buffer: float = 0, kinds: Sequence[MachineType] = ()
) -> Alternatives:
    """Everything that the given numbers answer. `kinds`: machines that could be rented instead."""
    wanted, updates_per_s = sizing.rollout_demand, sizing.rollout_demand / (job.rollout or job.batch)
    has_link = math.isfinite(sizing.link_sps)
    moved = None
    if has_link and weight_bytes:
        most = policy_to_the_data(weight_bytes, updates_per_s, job.link_bytes_per_s)
        moved = Moved(weight_bytes, updates_per_s, most)
    arriving = min(sizing.supply, sizing.link_sps)
    beyond = surplus(arriving, wanted, buffer) if buffer or arriving > wanted * _SAME else None
    fleet, price = cheapest(wanted, kinds) if kinds else None, 0.0
    if fleet is not None:
        rate = min(fleet.sps, wanted, sizing.link_sps)
        price = per_million_steps(fleet.price_per_hour + job.learner_price, rate)
    pushed = partial(levers, job.step_bytes, job.actor_sps, job.link_bytes_per_s)
    return Alternatives(
        levers=tuple(pushed(observation_bytes=job.observation_bytes)) if has_link else (),
        moved=moved,
        surplus=beyond,
        buffer=buffer,
        cheapest=fleet,
        price_per_million=price,
    )


def rows_of(others: Alternatives) -> list[tuple[str, str]]:
    """The same as lines of a table."""
    rows = [("link would carry", f"{one.most_actors:,} actors: {one.name}") for one in others.levers]
    if (moved := others.moved) is not None:
        often = f"{with_digits(moved.updates_per_s, 1)} times a second"
        weights = f"{with_unit(moved.weight_bytes, 'B')} of weights to each, {often}"
        machines = f"{moved.most_machines:,} machine{'s'[: moved.most_machines != 1]}"
        rows.append(("link would carry", f"{machines}: move the policy to the data ({weights})"))
    if (extra := others.surplus) is not None and (others.buffer or extra.per_s > 0):
        text = f"{counted(extra.per_s)} transitions/s more than the learner uses"
        if others.buffer:
            full = f"is full of them after {extra.buffer_s:,.3g} s" if math.isfinite(extra.buffer_s) else "stays empty"
            text += f"; a buffer of {others.buffer:,.0f} {full}"
        rows.append(("surplus", text))
    if (fleet := others.cheapest) is not None:
        machines = ", ".join(f"{count:,} {name}" for name, count in fleet.machines.items())
        price = f"{price_of(fleet.price_per_hour, others.price_per_million)} with the learner"
        rows.append(("cheapest fleet", f"{machines} ({counted(fleet.sps)} steps/s): {price}"))
    return rows
