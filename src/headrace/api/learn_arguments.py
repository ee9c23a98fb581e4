"""Keyword arguments of learn, as users give them, and the folders that it writes to.

learn(...) --> SessionConfig · tensorboard_log/<name>_1, <name>_2 ...
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.api.arguments import of_learn, require_known
from headrace.api.other_names import learn_hint
from headrace.errors import UsageError, whole
from headrace.extras import require
from headrace.run_config import SessionConfig

_OF_FILES = ("tags", "checkpoint_every", "keep_checkpoints", "keep_episodes_mb", "stall_after_s")
"""Options of a session that say something about its run directory."""


def learn_config(total_timesteps: Any, tb_log_name: Any, **options: Any) -> SessionConfig:
    """The keywords of learn; a number of steps may be written as 1e5."""
    if not isinstance(tb_log_name, str):
        raise UsageError(f"tb_log_name: expected a text, got {tb_log_name!r}")
    for name in options:
        if hint := learn_hint(name):
            raise UsageError(f"learn: unknown option {name}: {hint}")
    require_known("learn", options, of_learn())
    if isinstance(total_timesteps, float) and total_timesteps.is_integer():
        total_timesteps = int(total_timesteps)
    return SessionConfig(whole("total_timesteps", total_timesteps, 1), **options)


def require_effect(options: Mapping[str, Any], tb_log_name: str, run_dir: Any, log_folder: Path | None) -> None:
    """Refuse options of learn that change nothing: about files where none are written, about evaluations that are not
    made. A name of TensorBoard's without its folder is a warning: SB3 takes it.
    """
    for name in options:
        if name in _OF_FILES and options[name] and run_dir is None and log_folder is None:
            raise UsageError(f"{name}: expected run_dir as well; without one, learn writes no files")
    if "n_eval_episodes" in options and not options.get("eval_every"):
        raise UsageError("n_eval_episodes: expected eval_every as well; without it, learn does not evaluate")
    if tb_log_name and (run_dir is not None or log_folder is None):
        why = "without tensorboard_log" if run_dir is None else "beside run_dir, which names the directory"
        warnings.warn(f"tb_log_name={tb_log_name!r} has no effect {why}", stacklevel=4)


def shown(verbose: Any, tensorboard_log: Any) -> tuple[int, Path | None]:
    """SB3's keywords that say what is seen of a model's runs."""
    if tensorboard_log is not None:
        require("tensorboard", "tensorboard_log")
    return whole("verbose", verbose, 0), None if tensorboard_log is None else folder("tensorboard_log", tensorboard_log)


def log_run(home: Path, last: Path | None, name: str, default: str) -> Path:
    """The folder of a learn in tensorboard_log: the last one, unless there is none or it has another name."""
    goes_on = last is not None and name in ("", str(last.relative_to(home)).rpartition("_")[0])
    return last if last is not None and goes_on else next_folder(home, name or default)


def next_folder(folder: Path, name: str) -> Path:
    """The next of <folder>/<name>_1, <name>_2 ..., as Stable-Baselines3 numbers them."""
    taken = [path.name.removeprefix(f"{Path(name).name}_") for path in folder.glob(f"{name}_*")]
    return folder / f"{name}_{1 + max((int(one) for one in taken if one.isdecimal()), default=0)}"


def folder(name: str, given: Any) -> Path:
    """A path, as text or as such."""
    if not isinstance(given, str | os.PathLike):
        raise UsageError(f"{name}: expected a folder, got {given!r}")
    return Path(given)
