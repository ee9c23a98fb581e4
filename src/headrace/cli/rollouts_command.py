"""`headrace rollouts RUN --to FILE`: the recorded episodes of a run as Parquet or as a Minari dataset."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

import tyro

from headrace.cli.named_env import named_env
from headrace.cli.options import OF_ENV, parse, require_with, translate
from headrace.cli.printing import say
from headrace.clock import now_s


@dataclass(frozen=True)
class RolloutsOptions:
    """Write the recorded episodes of a run to a file for other tools. They are executed again for it and compared."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run directory."""
    to: Annotated[str, tyro.conf.arg(metavar="FILE")]
    """FILE.parquet, or minari:ID such as minari:cartpole/mine-v0."""
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
    quiet: bool = False
    """Show no progress."""


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    options = parse(RolloutsOptions, translate(argv), "rollouts")
    require_with(argv, OF_ENV)
    from headrace.api.replay import admitted_env
    from headrace.api.rollouts import export_rollouts, require_target
    from headrace.cli.own_modules import find_own_modules

    require_target(options.to)
    given = named_env(options.env, options.env_kwargs, options.wrappers, options.action_repeat)
    spec = admitted_env(options.run, given, options.trust)
    find_own_modules(spec.encode())
    with _Shown(options.quiet) as shown:
        done = export_rollouts(options.run, options.to, spec, progress=shown)
    print(f"{done.episodes:,} episodes, {done.steps:,} steps, identical to the recorded ones, in {options.to}")
    return 0


class _Shown:
    """A line that is written over on a terminal, a new one every ten seconds elsewhere; a short export shows none."""

    def __init__(self, is_quiet: bool) -> None:
        self._is_quiet = is_quiet or sys.stderr is None
        self._is_terminal = not self._is_quiet and sys.stderr.isatty()
        self._shown_s, self._first = now_s(), (0.0, 0, 0)  # when the first episode was done: what came before is set-up

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._write("\r\x1b[K")

    def __call__(self, episodes: int, total: int, steps: int) -> None:
        now = now_s()
        if not self._first[1]:
            self._first = now, episodes, steps
        elif self._is_quiet or now - self._shown_s < (0.5 if self._is_terminal else 10.0):
            return
        else:
            self._shown_s = now
            self._show(now, episodes, total, steps)

    def _show(self, now: float, episodes: int, total: int, steps: int) -> None:
        began_s, first, before = self._first
        left_s = (now - began_s) * (total - episodes) / max(1, episodes - first)
        speed = f"{(steps - before) / (now - began_s):,.0f} steps/s"
        text = f"{episodes:,} of {total:,} episodes, {steps:,} steps, {speed}, {left_s:,.0f} s left"
        if self._is_terminal:
            self._write(f"\r{text}\x1b[K")
        else:
            say(text)

    def _write(self, text: str) -> None:
        if self._is_terminal:
            with suppress(OSError):
                print(text, end="", file=sys.stderr, flush=True)
