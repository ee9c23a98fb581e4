"""What the user typed, kept apart from what a --config file says: only the first is consent.

    what is resolved - what was typed = what the file decides --> nothing to ask for, or an error that names it

A file may set every number. What it names to import, call or open (an environment by module:attribute, kwargs,
wrappers, run_dir, schedule) needs the same words on the command line, --trust, or a proof: the config.json that a run
of this user's wrote carries one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.cli.options import read_config
from headrace.envs.consent import parts_to_ask_for, require_consent, shown
from headrace.envs.spec import EnvSpec

_HOW = (
    "if it is what you want, give the same on the command line (ENV, --env-kwargs, --wrappers, --run-dir, --schedule), "
    "or look at the file and add --trust"
)


def require_own_words(
    path: Path, spec: EnvSpec, typed: EnvSpec, places: Mapping[str, tuple[Path | None, Path | None]]
) -> None:
    """Raise if the file decides what is imported, called or opened, and nothing says that it may.

    `places` are the other options that name a path, each as it is resolved and as it was typed.
    """
    parts = parts_to_ask_for(spec.encode(), typed)
    parts += [f"{name} {shown(str(value))}" for name, (value, by_hand) in places.items() if value != by_hand]
    if parts:
        _, doubt = read_config(path)
        require_consent(parts if doubt else [], f"--config {path}", doubt, _HOW)
