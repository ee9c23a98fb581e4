"""Checkpoints as somebody else would write them: any state, any arrays, and every unkeyed hash as it must be."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

PARTS = ("weights", "optimizer", "episodes")


def doctor(
    saved: Path,
    target: Path,
    state: Callable[[dict[str, Any]], object] = lambda state: None,
    arrays: Callable[[dict[str, dict[str, np.ndarray]]], object] = lambda arrays: None,
    manifest: Callable[[dict[str, Any]], object] = lambda manifest: None,
) -> Path:
    """A copy of a checkpoint with changes that its hashes know of; a proof stays as it was."""
    shutil.copytree(saved, target)
    told = json.loads((target / "state.json").read_text())
    parts = {part: load((target / f"{part}.safetensors").read_bytes()) for part in PARTS}
    state(told)
    arrays(parts)
    for part in PARTS:
        (target / f"{part}.safetensors").write_bytes(save(parts[part]))
    (target / "state.json").write_text(json.dumps(told, sort_keys=True))
    rehash(target, manifest)
    return target


def rehash(target: Path, change: Callable[[dict[str, Any]], object] = lambda manifest: None) -> None:
    """Make the manifest fit the files again."""
    body = json.loads((target / "manifest.json").read_bytes().partition(b"\n")[0])
    for name in body["sha256"]:
        if (target / name).is_file():
            body["sha256"][name] = hashlib.sha256((target / name).read_bytes()).hexdigest()
    change(body)
    write_manifest(target, json.dumps(body, sort_keys=True))


def write_manifest(target: Path, body: str) -> None:
    digest = hashlib.sha256(body.encode()).hexdigest()
    (target / "manifest.json").write_text(f"{body}\n{digest}\n")


def names_env(**env: Any) -> Callable[[dict[str, Any]], None]:
    """A state whose environment is another one."""

    def change(state: dict[str, Any]) -> None:
        state["config"]["env"] |= env

    return change


def proof_of(checkpoint: Path) -> str:
    return str(json.loads((checkpoint / "manifest.json").read_bytes().partition(b"\n")[0])["proof"])
