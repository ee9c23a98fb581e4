"""Weights & Biases, in a process of its own: a failing or hanging W&B costs its own records, never the run's time.

    record ──a line of JSON──> pipe that never blocks ──> wandb_process ──wandb──> server, or wandb/offline-run-*
    wandb.json in the run directory: the id, so that a resumed run goes on in the same W&B run

The process ends when its input does, so also when the run is killed. Training imports nothing of wandb.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from headrace.clock import now_s
from headrace.errors import UsageError
from headrace.extras import require
from headrace.files import MAX_JSON_BYTES, parse_object, read_regular
from headrace.plain_text import printable
from headrace.telemetry.sinks import Record, json_record

_MODES = ("online", "offline", "disabled")
_MOST_WAITING_BYTES = 1 << 20
_LAST_BYTES = 2000
_ID = re.compile(r"[a-z0-9]{4,32}")


@dataclass(frozen=True)
class WandbConfig:
    """Where W&B keeps a run; what is empty is W&B's own choice."""

    project: str = "headrace"
    entity: str = ""
    name: str = ""
    mode: str = ""
    """online, offline or disabled; if not given, the environment variable WANDB_MODE, else online."""

    def __post_init__(self) -> None:
        if self.mode and self.mode not in _MODES:
            raise UsageError(f"wandb mode: expected {', '.join(_MODES[:-1])} or {_MODES[-1]}, got {self.mode!r}")
        if self.is_on:
            require("wandb", "wandb")

    @property
    def is_on(self) -> bool:
        """Whether anything is to be kept."""
        return (self.mode or os.environ.get("WANDB_MODE", "")) != "disabled"


def wandb_config(asked: Any) -> WandbConfig | None:
    """From what `learn(wandb=...)` takes: True, a project's name, or project, entity, name and mode as a dict."""
    if asked is None or asked is False:
        return None
    known = [field.name for field in fields(WandbConfig)]
    if asked is True or isinstance(asked, str):
        config = WandbConfig(asked) if isinstance(asked, str) else WandbConfig()
    elif isinstance(asked, Mapping) and set(asked) <= set(known):
        config = WandbConfig(**asked)
    else:
        raise UsageError(f"wandb: expected True, a project, or a dict with some of {', '.join(known)}, got {asked!r}")
    return config if config.is_on else None


def started(config: WandbConfig | None, folder: Path | None, about: Mapping[str, Any]) -> list[WandbSink]:
    """The sink that was asked for, if one was."""
    return [] if config is None else [WandbSink(config, folder, about)]


class WandbSink:
    """The records of a run, on their way to W&B."""

    title = "W&B"
    patience_s = 20.0  # for what is left at the end

    def __init__(self, config: WandbConfig, folder: Path | None, about: Mapping[str, Any]) -> None:
        self._log = None if folder is None else folder / "wandb.log"
        log = subprocess.DEVNULL if folder is None else (folder / "wandb.log").open("ab")
        command = [sys.executable, "-P", "-m", "headrace.telemetry.wandb_process"]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        finally:
            if not isinstance(log, int):
                log.close()
        assert self._process.stdin is not None
        self._pipe: int | None = os.dup(self._process.stdin.fileno())
        self._process.stdin.close()
        os.set_blocking(self._pipe, False)
        self._waiting = b""
        options = {key: value for key, value in asdict(config).items() if value}
        where = {} if folder is None else {"dir": str(folder)}
        self._send({**options, **where, "id": _run_id(folder), "resume": "allow", "config": dict(about)})

    def write(self, record: Record) -> None:
        """One more; an OSError if W&B has ended, or has not taken any for long."""
        self._send(json_record(record))

    def close(self) -> None:
        """Let it finish, for a while."""
        if self._pipe is None:
            return
        until_s = now_s() + self.patience_s
        with suppress(OSError):
            while self._waiting and now_s() < until_s:
                select.select([], [self._pipe], [], until_s - now_s())
                self._push()
        os.close(self._pipe)
        self._pipe = None
        try:
            code = self._process.wait(max(0.0, until_s - now_s()))
        except subprocess.TimeoutExpired:
            raise OSError(
                f"it did not finish within {self.patience_s:g} s; wandb sync sends what it has kept"
            ) from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # itself, and what wandb has started
            self._process.wait()
        if code:
            raise OSError(f"it ended with exit code {code}{self._why()}")

    def _send(self, data: Mapping[str, Any]) -> None:
        if len(self._waiting) > _MOST_WAITING_BYTES:
            self._push()
        if len(self._waiting) > _MOST_WAITING_BYTES:
            raise BlockingIOError("W&B takes no records")
        self._waiting += json.dumps(data).encode() + b"\n"
        self._push()

    def _push(self) -> None:
        """As much as the pipe takes now."""
        if self._pipe is None:
            raise ValueError("this sink is closed")
        try:
            while self._waiting:
                self._waiting = self._waiting[os.write(self._pipe, self._waiting) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            raise OSError(f"it has ended{self._why()}") from None

    def _why(self) -> str:
        """What W&B said last, if that is kept."""
        if self._log is None:
            return "; with a run_dir, wandb.log there would say why"
        with suppress(OSError):
            lines = self._log.read_bytes()[-_LAST_BYTES:].decode(errors="replace").strip().splitlines()
            if lines:
                return f": {printable(lines[-1], is_one_line=True)} (wandb.log in the run directory)"
        return "; wandb.log in the run directory says why"


def _run_id(folder: Path | None) -> str:
    """The id of the directory's W&B run, or a new one, which is kept there."""
    if folder is None:
        return secrets.token_hex(4)
    path = folder / "wandb.json"
    with suppress(OSError, ValueError):
        kept = parse_object(read_regular(path, MAX_JSON_BYTES)).get("id")
        if isinstance(kept, str) and _ID.fullmatch(kept):
            return kept
    new = secrets.token_hex(4)
    path.write_text(json.dumps({"id": new}) + "\n")
    return new
