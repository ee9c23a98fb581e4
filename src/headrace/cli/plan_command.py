"""`headrace plan`: how many actors feed a learner, from numbers that are given or measured, and what binds.

options --Job--> planning/sizing --> a table, the binding constraint, what would help · --json FILE · --plot FILE
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from headrace.cli.options import parse, translate
from headrace.cli.printing import passing
from headrace.cli.writing import write_answer
from headrace.errors import UsageError
from headrace.extras import require
from headrace.planning.quantities import parse_bytes, parse_rate, step_bytes, with_unit
from headrace.planning.sizing import Job, Sizing, size, what_helps

if TYPE_CHECKING:
    from headrace.launch.prediction import Forecast
    from headrace.launch.rehearsal import Rehearsal
    from headrace.memory.spaces import ObservationSpace, Space


@dataclass(frozen=True)
class PlanOptions:
    """Size a fleet: how many actors keep a learner busy, what binds, what would help, what it costs."""

    measure: Annotated[str | None, tyro.conf.arg(metavar="ENV")] = None
    """Measure the numbers with this environment: a Gymnasium id, envpool:ID, or module:attribute."""
    n_envs: int = 8
    """With --measure: environments of a run; one actor is one process with as many of them."""
    n_steps: int = 128
    """With --measure: steps of each environment per update."""
    policy: str = "auto"
    """With --measure: MlpPolicy, CnnPolicy, MultiInputPolicy or auto."""
    net_arch: tuple[int, ...] | None = None
    """With --measure: sizes of the policy's hidden layers, as in 64 64."""
    batch: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Transitions of one gradient step."""
    update_ms: float | None = None
    """Milliseconds of one gradient step."""
    actor_sps: float | None = None
    """Environment steps per second of one actor."""
    actors: int | None = None
    """How many there are; as many as the learner needs if not given."""
    n_epochs: int | None = None
    """How often every transition is used (PPO); once if not given, 10 times with --measure."""
    rollout: int | None = None
    """Transitions of one update, n_steps * n_envs; a batch if not given."""
    observation: str = ""
    """Shape and dtype of an observation, as in 84x84x4:uint8; for the link and for memory."""
    transition: str = ""
    """Instead of --observation: bytes of one transition, as in 28KB."""
    link: str = ""
    """What carries transitions to the learner, per second, as in 10GB or 25Gbit."""
    actor_price: float | None = None
    """Price of one actor's machine per hour, in any currency."""
    learner_price: float | None = None
    """Price of the learner's machine per hour."""
    json: Path | None = None
    """Write the answer here, too."""
    plot: Path | None = None
    """Draw supply, demand and link against the number of actors, as a PNG (needs matplotlib)."""


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    options = parse(PlanOptions, translate(argv), "plan")
    if options.plot is not None:
        require("plots", "--plot")
    forecast: list[Forecast] = []
    if options.measure is not None:
        job, forecast = _measured(options, options.measure)
    else:
        job = _job(options)
    sizing = size(job)
    print(_text(job, sizing))
    if forecast:
        print(_places(forecast))
    if options.json is not None:
        answer: dict[str, object] = {
            "job": asdict(job),
            "sizing": asdict(sizing),
            "what_helps": dict(what_helps(job, sizing)),
        }
        answer["forecast"] = [asdict(one) for one in forecast]
        write_answer("--json", options.json, (json.dumps(_finite(answer), indent=1) + "\n").encode())
    if options.plot is not None:
        from headrace.views.plan_figure import draw_plan

        write_answer("--plot", options.plot, draw_plan(job, sizing))
        print(f"plot: {options.plot}")
    return 0


def _job(options: PlanOptions) -> Job:
    given = options.batch, options.update_ms, options.actor_sps
    for name, value in zip(("batch", "update_ms", "actor_sps"), given, strict=True):
        if not value:
            raise UsageError(
                f"--{name.replace('_', '-')}: expected a number larger than 0; "
                f"headrace plan needs three of them, as in --batch 512 --update-ms 8 --actor-sps 1000"
            )
    if options.link and not (options.observation or options.transition):
        raise UsageError("--link: expected --observation or --transition as well, for the bytes that travel")
    return Job(
        options.batch or 0,
        (options.update_ms or 0) / 1e3,
        options.actor_sps or 0,
        options.actors or 0,
        options.n_epochs or 1,
        options.rollout or 0,
        parse_bytes("--transition", options.transition) if options.transition else step_bytes(options.observation),
        parse_rate("--link", options.link),
        options.actor_price or 0,
        options.learner_price or 0,
    )


def _measured(options: PlanOptions, env: str) -> tuple[Job, list[Forecast]]:
    """The numbers of a run of PPO with this environment on this machine, and what its places would reach."""
    from headrace.build import acting_policy, build_algorithm
    from headrace.cli.own_modules import find_own_modules
    from headrace.collecting.topology import TopologyConfig
    from headrace.envs.spec import EnvSpec
    from headrace.launch.auto import cpus
    from headrace.launch.prediction import forecasts, look_at
    from headrace.launch.rehearsal import rehearse
    from headrace.learning.config import PpoConfig
    from headrace.memory.schema import rollout_schema
    from headrace.planning.link import sent_bytes
    from headrace.policies.config import PolicyConfig
    from headrace.policies.masks import built
    from headrace.run_config import RunConfig

    learning = PpoConfig(
        batch_size=options.batch or PpoConfig.batch_size, n_epochs=options.n_epochs or PpoConfig.n_epochs
    )
    place = TopologyConfig(n_envs=options.n_envs, n_steps=options.n_steps)
    config = RunConfig(EnvSpec(env), 1, PolicyConfig(policy=options.policy, net_arch=options.net_arch), learning, place)
    find_own_modules(config.env.encode())
    passing(f"measuring {env} ...")

    def rehearsed(observation: ObservationSpace, action: Space) -> Rehearsal:
        policy = acting_policy(built(config.policy, observation, action, 0), config, observation, action)
        return rehearse(policy, observation, action, place, 0, learning, build_algorithm)

    look = look_at(config.env, config.seed, place, rehearsed)
    passing("")
    measured, rollout = look.measured, place.n_envs * place.n_steps
    minibatches = math.ceil(rollout / learning.batch_size) * learning.n_epochs
    row_s = place.n_envs * measured.step_s + measured.policy.act_s
    job = Job(
        learning.batch_size,
        measured.policy.update_s / minibatches,
        place.n_envs / row_s,
        options.actors or 0,
        learning.n_epochs,
        rollout,
        sent_bytes(rollout_schema(look.observation, look.action, place.n_steps, place.n_envs)),
        parse_rate("--link", options.link),
        options.actor_price or 0,
        options.learner_price or 0,
    )
    return job, forecasts(measured, place, cpus())


def _places(forecast: list[Forecast]) -> str:
    """What the places of this machine would reach."""
    lines = ["", "on this machine     predicted steps/s"]
    for one in forecast:
        workers = "" if one.topology == "inline" else f" {one.workers}, max_lag {one.max_lag}"
        lines.append(f"  {one.topology + workers:<22} {one.sps:>10,.0f}")
    return "\n".join(lines)


def _text(job: Job, sizing: Sizing) -> str:
    """The sizing as a table."""
    rows = [
        ("demand b / t_l", f"{sizing.demand:,.0f} transitions/s, each used once"),
        ("an actor supplies", f"{job.actor_sps:,.0f} steps/s"),
        ("actors needed", f"{sizing.actors_needed:,}"),
        ("supply", f"{sizing.supply:,.0f} steps/s from {sizing.actors:,} actor{'s'[: sizing.actors > 1]}"),
        ("learner is busy", f"{sizing.utilisation:.0%} of the time"),
    ]
    if job.n_epochs > 1 or job.rollout:
        uses = f"every transition used {job.n_epochs} times" if job.n_epochs > 1 else "one rollout per update"
        rows.insert(1, ("PPO's own demand", f"{sizing.rollout_demand:,.0f} transitions/s, {uses}"))
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
        rows.append(("price", f"{sizing.price_per_hour:,.2f} an hour, {sizing.price_per_million:,.4f} a million steps"))
    rows.append(("rate of the whole", f"{sizing.rate:,.0f} steps/s; bound by the {sizing.binding}"))
    helps = what_helps(job, sizing)
    lines = [f"{name:<19} {value}" for name, value in rows]
    lines += [
        f"{'what would help':<19} {name}: {rate:,.0f} steps/s ({rate / sizing.rate:.2f}x)" for name, rate in helps[:3]
    ]
    return "\n".join(lines)


def _rate(bytes_per_s: float) -> str:
    return f"{with_unit(bytes_per_s, 'B')}/s"


def _finite(value: object) -> object:
    """JSON has no infinity: what is not bounded is null."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
