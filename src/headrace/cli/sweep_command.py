"""`headrace sweep ENV`: throughput against the number of environments, and where it stops growing.

B = 1, 4, 16 ... --> environments alone · policy alone (CPU, emulated accelerator) · both (what a collector does)
                 --> a table with errors, the knee of every curve and why it is there · --json FILE · --plot FILE
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from headrace.cli.options import env_kwargs, parse, translate
from headrace.cli.printing import passing
from headrace.cli.writing import expect_to_write, picture_form, write_answer
from headrace.errors import UsageError
from headrace.planning.sweep import Curve, Point, curve_of, explained, moved

if TYPE_CHECKING:
    from headrace.build import Parts
    from headrace.envs.spec import EnvSpec

_BUDGET_S = 0.15  # of every repetition
_ROLLOUT, _ROWS = 2048, 8  # steps of a rollout that is collected for a repetition, and rows at least
_FEWEST_ROWS = 2  # of environments so slow that this takes longer than a repetition


@dataclass(frozen=True)
class SweepOptions:
    """Measure steps per second against the number of environments, and find the knee."""

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """A Gymnasium id, envpool:ID, or module:attribute."""
    n_envs: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N ...")] = (1, 4, 16, 64, 256, 1024)
    """Batch sizes: how many environments are stepped together."""
    workers: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N ...")] = ()
    """Worker processes to try as well, as in 1 2 4; without it everything runs in this process."""
    policy: str = "auto"
    """MlpPolicy, CnnPolicy, MultiInputPolicy or auto."""
    action_masks: bool = False
    """The environment says which actions it allows; no others are taken."""
    accelerator: str = "emulated:2ms+5us"
    """A device to measure the policy on beside the CPU; emulated: time of a batch and of each row."""
    repetitions: int = 5
    """Of every measurement; the table shows the median and the standard error."""
    env_kwargs: str = "{}"
    """Keyword arguments of the environment, as JSON."""
    wrappers: tuple[str, ...] = ()
    """Wrappers as module:attribute, the last one outermost; a wrapper's arguments follow it as JSON, in quotes."""
    seed: int = 1
    """Of environments and policy."""
    json: Path | None = None
    """Write every number here."""
    plot: Path | None = None
    """Draw the curves: .png, .svg or .pdf (needs matplotlib)."""


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    options, home = parse(SweepOptions, translate(argv), "sweep"), Path.cwd()
    picture = "" if options.plot is None else picture_form(options.plot)
    expect_to_write("--json", options.json)
    expect_to_write("--plot", options.plot)
    for name in ("n_envs", "workers"):
        if any(one < 1 for one in getattr(options, name)) or (name == "n_envs" and not options.n_envs):
            raise UsageError(f"--{name.replace('_', '-')}: expected numbers of at least 1, as in 1 4 16")
    if options.repetitions < 1:
        raise UsageError(f"--repetitions: expected at least 1, got {options.repetitions}")
    if options.workers and min(options.workers) > max(options.n_envs):
        raise UsageError(f"--workers: expected at most {max(options.n_envs)}, as many as environments (--n-envs)")
    if options.accelerator:
        _require_device(options.accelerator)
    from headrace.cli.own_modules import find_own_modules
    from headrace.envs.masks import masked
    from headrace.envs.spec import EnvSpec

    spec = EnvSpec(options.env, env_kwargs(options.env_kwargs), options.wrappers)
    spec = masked(spec) if options.action_masks else spec
    find_own_modules(spec.encode())
    curves = _measured(options, spec)
    passing("")
    print(_table(curves))
    for curve in curves:
        print(f"{curve.name}: {explained(curve)}")
    if device := _moved(curves):
        print(device)
    if options.json is not None:
        answer = {"env": options.env, "curves": [_encoded(curve) for curve in curves], "on_the_device": device}
        write_answer("--json", options.json, (json.dumps(answer, indent=1) + "\n").encode(), home)
    if options.plot is not None:
        from headrace.views.sweep_figure import draw_sweep

        write_answer("--plot", options.plot, draw_sweep(options.env, curves, picture), home)
        print(f"plot: {options.plot}")
    return 0


def _require_device(name: str) -> None:
    """Before anything is measured, and under the name of this command's option."""
    from headrace.inference.device_names import devices_of
    from headrace.inference.devices import open_device

    try:
        for one in devices_of(name):
            open_device(one, is_shared=False)
    except UsageError as error:
        what = str(error).replace("inference_device", "--accelerator", 1).partition("; use inference_device")[0]
        raise UsageError(f"{what}; an emulated one is 2 ms for a batch and 5 us for a row: emulated:2ms+5us") from error


def _measured(options: SweepOptions, spec: EnvSpec) -> list[Curve]:
    from headrace.launch.sweeping import environment_sps, looked_at, policy_sps

    found: dict[str, list[Point]] = {}
    spec, many = looked_at(spec, options.seed), options.repetitions
    devices = {"policy": "cpu"} | (
        {f"policy on {options.accelerator}": options.accelerator} if options.accelerator else {}
    )
    for n_envs in sorted(set(options.n_envs)):

        def note(name: str, rates: tuple[float, ...], n_envs: int = n_envs) -> None:
            found.setdefault(name, []).append(Point(n_envs, rates))

        passing(f"{n_envs} environments ...")
        alone = environment_sps(spec, options.seed, n_envs, many, _BUDGET_S)
        note("environments", alone)
        n_steps = _rows(n_envs, max(alone))
        parts, rates = _collected(options, spec, n_envs, n_steps, 0)
        for name, device in devices.items():
            passing(f"{n_envs} environments, {name} ...")
            note(name, policy_sps(parts.module, parts.observation, parts.action, n_envs, many, _BUDGET_S, device))
        note("both", rates)
        for workers in (one for one in sorted(set(options.workers)) if one <= n_envs):
            passing(f"{n_envs} environments, {workers} workers ...")
            note(f"both, {workers} worker{'s'[: workers > 1]}", _collected(options, spec, n_envs, n_steps, workers)[1])
    return [curve_of(name, points) for name, points in found.items()]


def _rows(n_envs: int, sps: float) -> int:
    """Of a rollout: enough to weigh what comes once in it, and no more than slow environments take in a repetition."""
    steps = min(max(_ROLLOUT, _ROWS * n_envs), sps * _BUDGET_S)
    return max(_FEWEST_ROWS, math.ceil(steps / n_envs))


def _collected(
    options: SweepOptions, spec: EnvSpec, n_envs: int, n_steps: int, workers: int
) -> tuple[Parts, tuple[float, ...]]:
    """Steps per second of collecting, environments and policy together; and what was collected with."""
    from headrace.api.collector import Collector
    from headrace.clock import now_s

    place: dict[str, Any] = {"topology": "processes", "workers": workers} if workers else {"topology": "inline"}
    place |= {"inference": "local", "action_masks": options.action_masks}
    rates = list[float]()
    with Collector(spec, options.policy, n_envs, n_steps, options.seed, **place) as rollouts:
        next(rollouts)
        for _ in range(options.repetitions):
            before, steps = now_s(), 0
            while now_s() - before < _BUDGET_S:
                steps += next(rollouts).steps
            rates.append(steps / (now_s() - before))
        return rollouts.parts, tuple(rates)


def _moved(curves: list[Curve]) -> str:
    """What the accelerator does to the knee of the policy; empty without one."""
    here = next(curve for curve in curves if curve.name == "policy")
    there = next((curve for curve in curves if curve.name.startswith("policy on ")), None)
    return "" if there is None else moved(here, there)


def _encoded(curve: Curve) -> dict[str, Any]:
    """With all that the table has."""
    points = [asdict(one) | {"median": one.typical, "error": one.error} for one in curve.points]
    return asdict(curve) | {"points": points, "gain": curve.gain, "explained": explained(curve)}


def _table(curves: list[Curve]) -> str:
    """A row for every B, a column for every curve; the knee is marked."""
    sizes = sorted({point.batch for curve in curves for point in curve.points})
    cells = [["B", *(curve.name for curve in curves)]]
    for size in sizes:
        row = [f"{size:,}"]
        for curve in curves:
            point = next((one for one in curve.points if one.batch == size), None)
            mark = " *" if curve.knee == size and len(curve.points) > 1 else "  "
            row.append("" if point is None else f"{point.typical:,.0f}{_error(point)}{mark}")
        cells.append(row)
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    is_once = all(point.error is None for curve in curves for point in curve.points)
    said = "measured once (--repetitions 5 shows errors)" if is_once else "median +- standard error"
    knee = "; * the knee" if len(sizes) > 1 else ""
    return "\n".join([*lines, f"steps per second, {said}{knee}", ""])


def _error(point: Point) -> str:
    return "" if point.error is None else f" +- {point.error:,.0f}"
