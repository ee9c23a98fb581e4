"""`headrace check ENV`: what headrace can guarantee for an environment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

import tyro

from headrace.cli.options import translate
from headrace.errors import UsageError


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
    try:
        kwargs = json.loads(options.env_kwargs)
    except ValueError as error:
        raise UsageError(f"--env-kwargs: expected JSON, got {options.env_kwargs!r}: {error}") from error
    from headrace.envs.spec import EnvSpec
    from headrace.evaluation.check import check_env

    spec = EnvSpec(options.env, kwargs, options.wrappers, options.action_repeat)
    print(check_env(spec, options.seed, progress=print).text())
    return 0
