"""`headrace check ENV`: what headrace can guarantee for an environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from headrace.cli.options import env_kwargs, translate


@dataclass(frozen=True)
class CheckOptions:
    """Play a few episodes and find out an environment's spaces, class (A, B, C), step cost and guarantees."""

    env: Annotated[str, tyro.conf.Positional]
    """A Gymnasium id, or module:attribute."""
    env_kwargs: str = "{}"
    """Keyword arguments of the environment, as JSON."""
    wrappers: tuple[str, ...] = ()
    """Wrappers as module:attribute, the last one outermost."""
    action_repeat: int = 1
    """Send every action this many times."""
    seed: int = 1
    """Root of the check's random numbers."""


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    options = tyro.cli(CheckOptions, args=translate(argv), prog="headrace check")
    kwargs = env_kwargs(options.env_kwargs)
    from headrace.cli.own_modules import find_own_modules
    from headrace.envs.spec import EnvSpec
    from headrace.evaluation.check import check_env

    spec = EnvSpec(options.env, kwargs, options.wrappers, options.action_repeat)
    find_own_modules(spec.encode())
    print(check_env(spec, options.seed, progress=print).text())
    return 0
