"""`headrace doctor`: checks the machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.cli.machine_check import check_machine
from headrace.cli.options import parse, translate
from headrace.planning.quantities import parse_bytes


@dataclass(frozen=True)
class DoctorOptions:
    """Check this machine: shared memory, cores, threads, limits, clock, leftovers. Exit code 1 on a problem."""

    clean: bool = False
    """Remove shared-memory segments of dead runs; those of live ones, of other users and of other programs stay."""
    need: str = ""
    """Shared memory that a run will ask for, as in 2GB; headrace plan prints the memory of rollouts."""
    json: Path | None = None
    """Write the findings here, too."""


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    options = parse(DoctorOptions, translate(argv), "doctor")
    needed_bytes = parse_bytes("--need", options.need) if options.need else 0.0
    return check_machine(options.clean, needed_bytes, options.json)
