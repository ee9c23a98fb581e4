"""`headrace train --tune`: which options stay, what is printed, and what is left of it in the run directory.

options that were typed, or stand in a TOML file --given--> stay as they are · the others --tune--> a table, the choice
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.options import CLEANRL_NAMES, flat, read_config, require_switch
from headrace.cli.printing import passing
from headrace.errors import UsageError
from headrace.run_config import RunConfig

if TYPE_CHECKING:
    from headrace.api.model import Model
    from headrace.api.tuning import Tuned


@dataclass(frozen=True)
class TuneOptions:
    """Before training, find out where it is fastest."""

    tune: bool = False
    """Try n_envs, workers, topology and inference, and train with the fastest. The batch (n_envs * n_steps) and every
    option given here stay as they are; the run's config.json keeps the choice."""
    tune_seconds: float = 20.0
    """How long that may take, building environments included; what is being imported, built or tried when it is over
    is finished first. EnvPool's import alone may take seconds."""
    tune_max_lag: int = 0
    """Try asynchronous training up to this max_lag, too; it changes what is learnt."""

    def __post_init__(self) -> None:
        if not 0 < self.tune_seconds <= 3600:
            raise UsageError(f"--tune-seconds: expected more than 0 and at most 3,600, got {self.tune_seconds:g}")
        if self.tune_max_lag < 0:
            raise UsageError(f"tune_max_lag: expected 0 or more, got {self.tune_max_lag}")


def given(argv: list[str], file: Path | None) -> set[str]:
    """Names of the options that the user gave. A run's config.json names all of them, so it fixes none."""
    typed = {one[2:].partition("=")[0] for one in argv if one.startswith("--")}
    if file is not None and file.suffix != ".json":
        typed |= {CLEANRL_NAMES.get(key.replace("_", "-"), key) for key in flat(read_config(file)[0])}
    return {name.replace("-", "_") for name in typed}


def require_fitting(options: TuneOptions, names: set[str], is_replay: bool) -> None:
    """Refuse what does not go together."""
    if options.tune and is_replay:
        raise UsageError("--tune: a replay runs inline, as its schedule has it; leave --tune or --schedule out")
    require_switch("tune", names, options.tune)


def require_no_tuning(names: set[str]) -> None:
    """Refuse it for a run that goes on."""
    for name in ("tune", "tune_seconds", "tune_max_lag"):
        if name in names:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"--resume goes on with what was chosen: leave {option} out, or begin a new run with it")


def tuned(config: RunConfig, options: TuneOptions, names: set[str]) -> Tuned:
    """Try, and print what was tried and what was chosen."""
    from headrace.api.tuning import tune

    try:
        found = tune(config, options.tune_seconds, names, options.tune_max_lag, progress=passing)
    finally:
        passing("")
    print(found.text(), flush=True)
    return found


def intended(config: RunConfig, options: TuneOptions, names: set[str]) -> str:
    """A line of the plan, for --dry-run."""
    from headrace.api.tuning import intended

    return f"{'tune':<12} {intended(config, options.tune_seconds, names, options.tune_max_lag)}"


def note(model: Model, found: Tuned) -> None:
    """What log.txt says about where the run is, and what tuning.json has."""
    model.tuned, topology = found, model.parts.topology
    model.parts.topology = replace(topology, reasons=(*topology.reasons, f"tune: {found.why}"))
