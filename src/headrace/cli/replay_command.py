"""`headrace replay RUN EPISODE`: executes a recorded episode again and compares it; --list and --diff show others."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from headrace.cli.named_env import named_env
from headrace.cli.options import OF_ENV, parse, require_with, translate
from headrace.errors import UsageError
from headrace.plain_text import printable

if TYPE_CHECKING:
    from headrace.episodes.recorded import RecordedEpisode
    from headrace.evaluation.replay import Replayed


@dataclass(frozen=True)
class ReplayOptions:
    """Execute a recorded episode again and compare every observation, reward and flag. Exit code 1 if one differs."""

    run: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    """A run directory."""
    episode: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="EPISODE")] = ""
    """ENVIRONMENT:NUMBER, as --list shows it, such as 3:17."""
    list: bool = False
    """Show the recorded episodes instead."""
    sort: Literal["update", "return", "length", "worker", "version"] = "update"
    """The order of --list; returns and lengths with the largest first."""
    limit: int = 0
    """Show this many at most; 0 for all."""
    json: bool = False
    """Print JSON."""
    diff: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN RUN")] = ()
    """Show where two runs (directories) of one seed part ways. Exit code 1 if they do."""
    render: Path | None = None
    """Also write a video: a name that ends in .gif, .png or .webp."""
    env: str | None = None
    """The environment, if the run's own is not to be built (id or module:attribute)."""
    env_kwargs: str = "{}"
    """Its keyword arguments, as JSON."""
    wrappers: tuple[str, ...] = ()
    """Its wrappers as module:attribute, the last one outermost."""
    action_repeat: int = 1
    """How many times it was sent every action."""
    trust: bool = False
    """Import and call what the run names (module:attribute, kwargs, wrappers) without asking."""


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    options = parse(ReplayOptions, translate(argv), "replay")
    require_with(argv, OF_ENV | {"sort": "list", "limit": "list"})
    if options.diff:
        if len(options.diff) != 2:
            raise UsageError(f"--diff: expected two run directories, got {len(options.diff)}; as in --diff RUN RUN")
        return _diff(*options.diff, options.json)
    if options.run is None:
        raise UsageError("expected a run directory: headrace replay RUN EPISODE, RUN --list, or --diff RUN RUN")
    if options.list:
        return _list(options.run, options)
    if not options.episode:
        if not options.run.is_dir():
            raise UsageError(f"{options.run}: expected a run directory, found none")
        raise UsageError(f"expected an episode such as 3:17; headrace replay {options.run} --list shows them")
    from headrace.api.replay import admitted_env, replay
    from headrace.cli.own_modules import find_own_modules

    given = named_env(options.env, options.env_kwargs, options.wrappers, options.action_repeat)
    spec = admitted_env(options.run, given, options.trust)
    find_own_modules(spec.encode())
    result = replay(options.run, options.episode, spec, render=options.render)
    print(json.dumps(_as_json(result), indent=2) if options.json else _text(result))
    if options.render is not None and not options.json:
        print(f"video in {options.render}")
    return 0 if result.is_identical else 1


def _list(run: Path, options: ReplayOptions) -> int:
    from headrace.api.replay import recorded_episodes

    if options.limit < 0:
        raise UsageError(f"--limit: expected at least 0, got {options.limit}")
    keys = {
        "update": lambda one: one.update,
        "return": lambda one: -one.total_reward,
        "length": lambda one: -one.length,
        "worker": lambda one: one.worker,
        "version": lambda one: one.first_version,
    }
    found = recorded_episodes(run)
    shown = sorted(found, key=keys[options.sort])[: options.limit or None]
    if options.json:
        print(json.dumps([_row(one) for one in shown]))
        return 0
    print(f"{'episode':>10} {'return':>12} {'length':>8} {'ended':>10} {'worker':>6} {'versions':>11} {'update':>7}")
    for one in shown:
        versions = f"{one.first_version}-{one.last_version}"
        print(
            f"{one.name:>10} {one.total_reward:>12.2f} {one.length:>8} {_end(one.terminated, one.truncated):>10} "
            f"{one.worker:>6} {versions:>11} {one.update:>7}"
        )
    print(f"{len(shown)} of {len(found)} recorded episodes")
    return 0


def _diff(a: Path, b: Path, as_json: bool) -> int:
    from headrace.api.replay import compare_runs

    parting, differs = compare_runs(a, b)
    if as_json:
        print(json.dumps({"parting": None if parting is None else asdict(parting), "options": differs}))
    else:
        print(f"a is {a}, b is {b}")
        for line in differs:
            print(f"another option: {printable(line, is_one_line=True)}")
        print("identical in all that both have recorded" if parting is None else parting.text())
    return 0 if parting is None else 1


def _text(result: Replayed) -> str:
    was, now = result.recorded, result.replayed
    rows = [
        ("length", str(was.length), str(now.length)),
        ("return", f"{was.total_reward:g}", f"{now.total_reward:g}"),
        ("ended", _end(was.terminated, was.truncated), _end(now.terminated, now.truncated)),
        ("checksum", f"{was.checksum:016x}", f"{now.checksum:016x}"),
    ]
    return "\n".join(
        [
            f"episode {was.name}, seed {result.seed}, recorded by worker {was.worker} up to update {was.update}, "
            f"policy versions {was.first_version} to {was.last_version}",
            f"{'':<10} {'recorded':<18} replayed",
            *(f"{name:<10} {recorded:<18} {replayed}" for name, recorded, replayed in rows),
            "identical" if result.difference is None else f"differs: {result.difference}",
        ]
    )


def _row(one: RecordedEpisode) -> dict[str, Any]:
    names = ("env_index", "episode", "length", "total_reward", "terminated", "truncated", "worker")
    fields = {name: getattr(one, name) for name in (*names, "first_version", "last_version", "update")}
    return fields | {"checksum": f"{one.checksum:016x}"}


def _as_json(result: Replayed) -> dict[str, Any]:
    replayed = asdict(result.replayed) | {"checksum": f"{result.replayed.checksum:016x}"}
    return {
        "is_identical": result.is_identical,
        "difference": result.difference,
        "seed": result.seed,
        "recorded": _row(result.recorded),
        "replayed": replayed,
    }


def _end(terminated: bool, truncated: bool) -> str:
    return "terminated" if terminated else "truncated" if truncated else "not ended"
