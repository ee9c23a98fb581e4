"""Checkpoints as somebody else would write them: any state, any arrays, and every unkeyed hash as it must be."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
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


# ---------------------------------------------------------------------------------------------------------- at random

NASTY = [None, True, -1, 0, 1, 2**31, 2**63, 10**12, 10**400, -(10**30), 0.5, float("nan"), float("inf"),
         "", "x", "\x1b]0;x\x07",
         "../..", [], [[]], [1] * 50, {}, {"a": 1}, {"callable": "f"}, {"object": "o"}, ["os:system"],
         "9" * 500]  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield from places(one, (*at, key))


def malformed(state: dict[str, Any], chosen: random.Random) -> dict[str, Any]:
    """A copy in which one to five entries are removed, or are something nasty."""
    changed, all_places = copy.deepcopy(state), list(places(state))
    for _ in range(chosen.choice((1, 1, 2, 5))):
        at = chosen.choice(all_places)
        try:
            entry: Any = changed
            for key in at[:-1]:
                entry = entry[key]
            if not isinstance(entry, list if isinstance(at[-1], int) else dict):
                continue  # an earlier change made something else of it
            if chosen.random() < 0.2:
                del entry[at[-1]]
            else:
                entry[at[-1]] = copy.deepcopy(chosen.choice(NASTY))  # a later change may go into it
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change removed the place
    return changed
