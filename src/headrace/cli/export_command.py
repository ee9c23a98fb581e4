"""`headrace export RUN --to FILE.onnx`: the policy of a run for programs without torch."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from headrace.cli.options import parse, translate
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.policies.policy import Module


@dataclass(frozen=True)
class ExportOptions:
    """Write the policy of a run as an ONNX file: observations in, best actions out."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run directory, a checkpoint, or what PPO.save wrote."""
    to: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """The file to write, as in policy.onnx."""
    policy: Annotated[str | None, tyro.conf.arg(metavar="POLICY")] = None
    """Your own policy, if the run had one: module:attribute of a class or function that makes it."""


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    options = parse(ExportOptions, translate(argv), "export")
    from headrace.api.export import export_policy

    path = export_policy(options.run, options.to, None if options.policy is None else _made(options.policy))
    print(f"policy in {path} ({path.stat().st_size:,} bytes), checked with onnxruntime")
    return 0


def _made(name: str) -> Module:
    """What the user named on the command line."""
    from headrace.cli.own_modules import find_modules

    module, _, attribute = name.partition(":")
    find_modules([name])
    try:
        made: Module = getattr(import_module(module), attribute)()
    except Exception as error:
        raise UsageError(
            f"--policy {name}: expected module:attribute of a class or function that makes a policy without arguments; "
            f"{type(error).__name__}: {error}"
        ) from error
    return made
