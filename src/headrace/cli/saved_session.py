"""Of a run that is to go on: its directory, how long it was to train, and which of its options may change.

checkpoint --home_of--> run directory --saved_session--> what its config.json says of the session
its place --with_places_open--> without what a new place makes meaningless · its options --require_same--> or refused
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headrace.cli.options import flat, value_of
from headrace.cli.tuning import given
from headrace.collecting.moving import left_open
from headrace.collecting.topology import DEVICES, PLACES, TopologyConfig
from headrace.errors import CheckpointError, UsageError
from headrace.files import MAX_JSON_BYTES, parse_object, read_regular
from headrace.run_config import RunConfig, SessionConfig, encode


def home_of(checkpoint: Path) -> Path | None:
    """The run directory that a checkpoint belongs to; None if it was saved on its own."""
    if checkpoint.parent.name == "checkpoints":
        return checkpoint.parent.parent
    return checkpoint.parent if (checkpoint.parent / "config.json").is_file() else None


def saved_session(home: Path | None) -> SessionConfig:
    """The defaults if there is no config.json."""
    if home is None or not (home / "config.json").is_file():
        return SessionConfig()
    try:
        session = parse_object(read_regular(home / "config.json", MAX_JSON_BYTES))["session"]
        if any(isinstance(value, int) and value >= 1 << 63 for value in session.values()):
            raise ValueError("a number of the session is too large")
        return SessionConfig(**session)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        raise CheckpointError(
            f"{home / 'config.json'} can't be read: {type(error).__name__}: {error}; mend it, or remove it and say "
            f"--total-timesteps again"
        ) from error


def with_places_open(saved: TopologyConfig, argv: list[str], file: str | None) -> TopologyConfig:
    """A run's place as defaults of what is typed: `--topology inline` alone has no workers and no inference servers."""
    names = ("topology", "workers", "inference", "inference_servers")
    asked = {name: value_of(f"--{name.replace('_', '-')}", argv) for name in names}
    found = left_open(saved, {name: value for name, value in asked.items() if value is not None})
    if asked["inference_servers"] is not None:
        found.pop("inference_servers", None)
    if value_of("--device", argv) == "cpu" and not saved.inference_device.startswith("emulated"):
        found["inference_device"] = "cpu"
    in_file = given([], None if file is None else Path(file))
    return replace(saved, **{name: value for name, value in found.items() if name not in in_file})


def require_same(saved: RunConfig, asked: RunConfig, algorithm: str) -> None:
    """Refuse options that decide a run's bits: it goes on as it was."""
    was, now = flat(encode(saved)), flat(encode(asked)) | {"algorithm": algorithm}
    for name, value in was.items():
        if now[name] != value and name not in (*PLACES, *DEVICES):
            raise UsageError(
                f"--resume goes on with the run as it was: {name} is {value!r}, got {now[name]!r}; "
                f"for another one start a new run (--config RUN/config.json takes over its options)"
            )
