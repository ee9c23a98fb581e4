"""Of a run that is to go on: its directory, and how long it was to train.

checkpoint --home_of--> run directory --saved_session--> what its config.json says of the session
"""

from __future__ import annotations

from pathlib import Path

from headrace.errors import CheckpointError, UsageError
from headrace.files import MAX_JSON_BYTES, parse_object, read_regular
from headrace.run_config import SessionConfig


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
