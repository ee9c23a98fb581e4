"""The answer of `headrace plan` as a table: a name and a value a line. Computes nothing."""

from __future__ import annotations

import math

from headrace.planning.alternatives import Alternatives, rows_of
from headrace.planning.quantities import counted, price_of, with_unit
from headrace.planning.sizing import Job, Sizing, what_helps


def table(job: Job, sizing: Sizing, others: Alternatives) -> str:
    """The sizing, what else could be done, and what would help."""
    rows = [
        ("demand b / t_l", f"{counted(sizing.demand)} transitions/s, each used once"),
        ("an actor supplies", f"{counted(job.actor_sps)} steps/s"),
        ("actors needed", f"{sizing.actors_needed:,}"),
        ("supply", f"{counted(sizing.supply)} steps/s from {sizing.actors:,} actor{'s'[: sizing.actors > 1]}"),
        ("learner is busy", f"{sizing.utilisation:.0%} of the time"),
    ]
    if job.n_epochs > 1 or job.rollout:
        uses = f"every transition used {job.n_epochs} times" if job.n_epochs > 1 else "one rollout per update"
        rows.insert(1, ("PPO's own demand", f"{counted(sizing.rollout_demand)} transitions/s, {uses}"))
    if job.step_bytes:
        rows.append(("a transition", with_unit(job.step_bytes, "B")))
        rows.append(("bandwidth", f"{_rate(sizing.actor_bytes_per_s)} an actor, {_rate(sizing.fleet_bytes_per_s)} all"))
        rows.append(("memory of rollouts", f"{with_unit(sizing.ring_bytes, 'B')} ({job.ring_rollouts} at a time)"))
    if math.isfinite(sizing.link_sps):
        share = sizing.fleet_bytes_per_s / job.link_bytes_per_s
        rows.append(
            ("link", f"{_rate(job.link_bytes_per_s)}: {share:.0%} used; carries {sizing.link_actors:,.0f} actors")
        )
    if sizing.price_per_hour:
        rows.append(("price", price_of(sizing.price_per_hour, sizing.price_per_million)))
    rows += rows_of(others)
    rows.append(("rate of the whole", f"{counted(sizing.rate)} steps/s; bound by the {sizing.binding}"))
    helps = what_helps(job, sizing)
    lines = [f"{name:<19} {value}" for name, value in rows]
    lines += [
        f"{'what would help':<19} {name}: {counted(rate)} steps/s ({rate / sizing.rate:.2f}x)"
        for name, rate in helps[:3]
    ]
    return "\n".join(lines)


def _rate(bytes_per_s: float) -> str:
    return f"{with_unit(bytes_per_s, 'B')}/s"
