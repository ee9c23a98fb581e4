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
from headrace.cli.plan_table import table
from headrace.cli.writing import expect_to_write, picture_form, write_answer
from headrace.errors import UsageError
from headrace.planning.alternatives import alternatives
from headrace.planning.checks import positive
from headrace.planning.cost import MachineType
from headrace.planning.quantities import (
    OTHERS,
    memory_bytes,
    observation_bytes,
    parse_bytes,
    parse_machine,
    parse_rate,
)
from headrace.planning.sizing import Job, size, what_helps

if TYPE_CHECKING:
    from headrace.launch.prediction import Forecast


_ONLY_MEASURED = ("n_envs", "n_steps", "policy", "net_arch", "action_masks", "env_kwargs", "wrappers", "preset")
_ONLY_GIVEN = ("update_ms", "actor_sps", "rollout", "observation", "transition", "weights")  # what --measure finds out
_NUMBERS = ("n_envs", "n_steps", "batch", "update_ms", "actor_sps", "actors", "n_epochs", "rollout", "buffer")
_PRICES = ("actor_price", "learner_price")


@dataclass(frozen=True)
class PlanOptions:
    """Size a fleet: how many actors keep a learner busy, what binds, what would help, what it costs."""

    measure: Annotated[str | None, tyro.conf.arg(metavar="ENV")] = None
    """Measure the numbers with this environment: a Gymnasium id, envpool:ID, or module:attribute."""
    n_envs: int | None = None
    """With --measure: environments of a run, 8 if not given; one actor is one process with as many of them."""
    n_steps: int | None = None
    """With --measure: steps of each environment per update, 128 if not given."""
    policy: str | None = None
    """With --measure: MlpPolicy, CnnPolicy, MultiInputPolicy or auto (which it is if not given)."""
    net_arch: tuple[int, ...] | None = None
    """With --measure: sizes of the policy's hidden layers, as in 64 64."""
    action_masks: bool = False
    """With --measure: the environment says which actions it allows, as for headrace train --action-masks."""
    env_kwargs: str | None = None
    """With --measure: keyword arguments of the environment, as JSON."""
    wrappers: tuple[str, ...] = ()
    """With --measure: wrappers as module:attribute, the last one outermost; their arguments follow as JSON."""
    preset: str | None = None
    """With --measure: defaults for a family of environments: atari (Gymnasium's wrappers, PPO's usual numbers)."""
    batch: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Transitions of one gradient step."""
    update_ms: float | None = None
    """Milliseconds of one gradient step."""
    actor_sps: float | None = None
    """Environment steps per second of one actor."""
    actors: int | None = None
    """How many there are; as many as the learner needs if not given."""
    n_epochs: int | None = None
    """How often every transition is used (PPO); once if not given, as PPO does by default with --measure."""
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
    machines: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KIND ...")] = ()
    """Machines that could be rented, NAME=PRICE:STEPS/S or NAME=PRICE:STEPS/S:AT_MOST, for the cheapest fleet."""
    weights: Annotated[str, tyro.conf.arg(metavar="BYTES")] = ""
    """With --link: bytes of the policy's weights, which travel if the policy acts where the environments are."""
    buffer: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Transitions of a buffer that takes what the learner does not use at once."""
    json: Path | None = None
    """Write the answer here, too."""
    plot: Path | None = None
    """Draw supply, demand and link against the number of actors: .png, .svg or .pdf (needs matplotlib)."""


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    options, home = parse(PlanOptions, translate(argv), "plan"), Path.cwd()
    picture = "" if options.plot is None else picture_form(options.plot)
    expect_to_write("--json", options.json)
    expect_to_write("--plot", options.plot)
    _require_one_form(options)
    forecast: list[Forecast] = []
    weight_bytes = _bytes("--weights", options.weights) if options.weights else 0.0
    if options.measure is not None:
        from headrace.cli.plan_measuring import measured_job

        job, forecast, weight_bytes = measured_job(options, options.measure)
    else:
        job = _job(options)
    sizing = size(job)
    others = alternatives(job, sizing, weight_bytes, options.buffer or 0, _machines(options, job))
    print(table(job, sizing, others))
    if forecast:
        print(_places(forecast))
    if options.json is not None:
        answer: dict[str, object] = {
            "job": asdict(job),
            "sizing": asdict(sizing),
            "what_helps": dict(what_helps(job, sizing)),
            "alternatives": asdict(others),
        }
        answer["forecast"] = [asdict(one) for one in forecast]
        write_answer("--json", options.json, (json.dumps(_finite(answer), indent=1) + "\n").encode(), home)
    if options.plot is not None:
        from headrace.views.plan_figure import draw_plan

        write_answer("--plot", options.plot, draw_plan(job, sizing, picture), home)
        print(f"plot: {options.plot}")
    return 0


def _require_one_form(options: PlanOptions) -> None:
    """Numbers are measured or given: what belongs to the other form would change nothing, so it is refused."""
    is_measured = options.measure is not None
    strange = [_flag(name) for name in (_ONLY_GIVEN if is_measured else _ONLY_MEASURED) if _is_given(options, name)]
    if strange and is_measured:
        raise UsageError(f"{', '.join(strange)}: --measure finds that out; leave it out, or leave --measure out")
    if strange:
        raise UsageError(
            f"{', '.join(strange)}: expected --measure ENV, too, to measure with; without it leave that out, "
            "and give --rollout for n_envs * n_steps"
        )
    if options.observation and options.transition:
        raise UsageError("--observation, --transition: expected one of them, got both; --transition has all bytes")
    for name in (*_NUMBERS, *_PRICES):
        value, is_price = getattr(options, name), name in _PRICES
        if value is not None:
            positive(_flag(name), value, may_be_zero=is_price)


def _is_given(options: PlanOptions, name: str) -> bool:
    return bool(getattr(options, name) != getattr(PlanOptions, name))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _job(options: PlanOptions) -> Job:
    batch, update_ms, actor_sps = options.batch, options.update_ms, options.actor_sps
    if batch is None or update_ms is None or actor_sps is None:
        missing = next(name for name in ("batch", "update_ms", "actor_sps") if getattr(options, name) is None)
        raise UsageError(
            f"{_flag(missing)}: expected a number larger than 0; "
            f"headrace plan needs three of them, as in --batch 512 --update-ms 8 --actor-sps 1000"
        )
    if options.weights and not options.link:
        raise UsageError("--weights: expected --link, too, on which they would travel")
    if options.link and not (options.observation or options.transition):
        raise UsageError("--link: expected --observation or --transition as well, for the bytes that travel")
    observed = observation_bytes(options.observation)
    return Job(
        batch,
        update_ms / 1e3,
        actor_sps,
        options.actors or 0,
        1 if options.n_epochs is None else options.n_epochs,
        options.rollout or 0,
        _bytes("--transition", options.transition) if options.transition else observed and observed + OTHERS,
        parse_rate("--link", options.link),
        options.actor_price or 0,
        options.learner_price or 0,
        observed,
        observed and memory_bytes(observed),
    )


def _bytes(name: str, text: str) -> float:
    return positive(name, parse_bytes(name, text))


def _machines(options: PlanOptions, job: Job) -> list[MachineType]:
    """That the cheapest fleet is chosen from: the ones that were named, and the actor's own if it has a price."""
    named = [parse_machine(text) for text in options.machines]
    own = [MachineType("actor", options.actor_price, job.actor_sps)] if options.actor_price is not None else []
    kinds = named + own
    if len({kind.name for kind in kinds}) < len(kinds):
        raise UsageError(f"--machines: expected a name of its own for each{' (actor has --actor-price)' * bool(own)}")
    return kinds


def _places(forecast: list[Forecast]) -> str:
    """What the places of this machine would reach."""
    lines = ["", "on this machine     predicted steps/s"]
    for one in forecast:
        workers = "" if one.topology == "inline" else f" {one.workers}, max_lag {one.max_lag}"
        lines.append(f"  {one.topology + workers:<22} {one.sps:>10,.0f}")
    return "\n".join(lines)


def _finite(value: object) -> object:
    """JSON has no infinity: what is not bounded is null."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
