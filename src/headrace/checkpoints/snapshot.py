"""What a checkpoint holds, and its form on disk.

    Snapshot --save--> DIR/{weights,optimizer,episodes}.safetensors, state.json, manifest.json     --load--> Snapshot

    weights     parameters and buffers by name            optimizer   Adam's state
    episodes    last observations, noise counters, the journal's actions and checksums
    state       configuration, schema, counters, ledger, statistics        manifest   SHA-256 of every other file, and
                                                                           a proof that this user wrote them (proof)

Written into a fresh directory beside its final name, synced, then renamed: a reader sees the whole of it or nothing.
Every byte is covered by a hash, so damage is found before anything is used. Read are these five names only, regular
files within size limits, from no link. Does not know what the numbers mean.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save as save_arrays
from torch import Tensor, from_numpy

from headrace.checkpoints.arrays import read_tensors
from headrace.checkpoints.proof import CHECKPOINT, doubt_about, prove
from headrace.errors import CheckpointError
from headrace.files import MAX_ARRAY_BYTES, MAX_JSON_BYTES, is_real_directory, parse_object, read_regular

FORMAT = 5  # 1: no names of algorithms; 2: no width of seeds; 3: no checksums of running episodes; 4: fewer options
_TENSORS = ("weights", "optimizer", "episodes")
_FILES = {f"{part}.safetensors": MAX_ARRAY_BYTES for part in _TENSORS} | {"state.json": MAX_JSON_BYTES}
_STEP = re.compile(r"step_\d{1,20}")


@dataclass(frozen=True)
class Origin:
    """Where a snapshot was read from, and why it is not proved that this user wrote it; empty if it is."""

    source: Path
    doubt: str


@dataclass(frozen=True)
class Snapshot:
    """A run between two updates."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    episodes: dict[str, npt.NDArray[Any]]
    state: dict[str, Any]
    origin: Origin | None = None  # None: made by this process


def save(snapshot: Snapshot, target: Path) -> None:
    """Write atomically; whatever was at `target` stays until the new one is complete."""
    files = {
        "weights.safetensors": save_arrays(_arrays(snapshot.weights)),
        "optimizer.safetensors": save_arrays(_arrays(snapshot.optimizer)),
        "episodes.safetensors": save_arrays({k: np.asarray(v, order="C") for k, v in snapshot.episodes.items()}),
        "state.json": json.dumps(snapshot.state, sort_keys=True).encode(),
    }
    manifest: dict[str, Any] = {"format": FORMAT}
    manifest["sha256"] = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    proof = prove(CHECKPOINT, manifest)
    body = json.dumps(manifest if proof is None else manifest | {"proof": proof}, sort_keys=True)
    files["manifest.json"] = (body + "\n" + hashlib.sha256(body.encode()).hexdigest() + "\n").encode()
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        fresh.mkdir(parents=True)
        for name, data in files.items():
            _write_synced(fresh / name, data)
        _sync_directory(fresh)
        _put_in_place(fresh, target)
        _sync_directory(target.parent)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise CheckpointError(
            f"could not write a checkpoint to {target}: {error}; the previous one is untouched"
        ) from error


def load(source: Path) -> Snapshot:
    """Read and verify; any damage is an error that names the file."""
    if not source.exists():
        source = next(iter(_set_aside(source)), source)  # a save was killed between its two renames
    try:
        body, _, rest = read_regular(source / "manifest.json", MAX_JSON_BYTES).partition(b"\n")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(f"{source}: expected a checkpoint directory with manifest.json, found none") from error
    except OSError as error:
        raise CheckpointError(f"{source}/manifest.json can't be read: {error}; use an earlier checkpoint") from error
    if rest != hashlib.sha256(body).hexdigest().encode() + b"\n":
        raise CheckpointError(f"{source}/manifest.json is damaged: its hash does not match; use an earlier checkpoint")
    hashes, doubt = _read_manifest(source, body)
    data = {}
    for name, expected in hashes.items():
        try:
            data[name] = read_regular(source / name, _FILES[name])
        except OSError as error:
            raise CheckpointError(f"{source}/{name} can't be read: {error}; use an earlier checkpoint") from error
        got = hashlib.sha256(data[name]).hexdigest()
        if got != expected:
            raise CheckpointError(
                f"{source}/{name} is damaged: expected SHA-256 {expected[:12]}…, got {got[:12]}… "
                f"({len(data[name])} bytes); use an earlier checkpoint"
            )
    name = ""
    try:
        arrays = {part: read_tensors(data[name := f"{part}.safetensors"]) for part in _TENSORS}
        state = parse_object(data[name := "state.json"])
    except ValueError as error:
        raise CheckpointError(f"{source}/{name} can't be used: {error}; use an earlier checkpoint") from error
    return Snapshot(
        {name: from_numpy(array) for name, array in arrays["weights"].items()},
        {name: from_numpy(array) for name, array in arrays["optimizer"].items()},
        arrays["episodes"],
        state,
        Origin(source, doubt),
    )


def _read_manifest(source: Path, body: bytes) -> tuple[dict[str, str], str]:
    """The hash of every file, and why it is not proved that this user wrote them."""
    where = f"{source}/manifest.json can't be used"
    try:
        manifest = parse_object(body)
    except ValueError as error:
        raise CheckpointError(f"{where}: {error}; use an earlier checkpoint") from error
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{source}: expected checkpoint format {FORMAT}, got {str(manifest.get('format'))[:80]}")
    hashes, proof = manifest.get("sha256"), manifest.pop("proof", None)
    if not isinstance(hashes, dict) or not all(isinstance(one, str) for one in hashes.values()):
        raise CheckpointError(f"{where}: expected a SHA-256 for each file; use an earlier checkpoint")
    if hashes.keys() != _FILES.keys() or manifest.keys() != {"format", "sha256"}:
        got = ", ".join(sorted(repr(name[:80]) for name in [*hashes, *manifest][:16]))
        raise CheckpointError(
            f"{where}: expected format and sha256 of {', '.join(_FILES)}, got {got}; use an earlier checkpoint"
        )
    return hashes, doubt_about(CHECKPOINT, manifest, proof)


def find_latest(run_dir: Path) -> tuple[Path, Snapshot, list[str]]:
    """The newest checkpoint of a run that is whole, and a line for each newer one that is not."""
    if (run_dir / "manifest.json").is_file() or (not run_dir.exists() and _set_aside(run_dir)):
        return run_dir, load(run_dir), []
    folder = run_dir / "checkpoints"
    if folder.is_symlink():
        raise CheckpointError(f"{folder} is a link, which is not followed; name the directory it leads to")
    names = {path.name for path in folder.glob("step_*")}
    names |= {path.name.removeprefix(".").partition(".")[0] for path in folder.glob(".step_*.old")}  # see `load`
    names = {name for name in names if _STEP.fullmatch(name)}
    links = {name for name in names if (folder / name).is_symlink()}
    damaged = [f"{folder / name} is a link, which is not followed" for name in sorted(links, reverse=True)]
    for candidate in (folder / name for name in sorted(names - links, reverse=True)):
        try:
            return candidate, load(candidate), damaged
        except CheckpointError as error:
            damaged.append(str(error))
    if damaged:
        raise CheckpointError(f"{run_dir}: no checkpoint is whole: " + "; ".join(damaged))
    raise CheckpointError(f"{run_dir}: expected a checkpoint or a run directory with checkpoints/step_*, found none")


def _arrays(tensors: dict[str, Tensor]) -> dict[str, npt.NDArray[Any]]:
    return {name: np.asarray(tensor.detach().cpu().numpy(), order="C") for name, tensor in tensors.items()}


def _put_in_place(fresh: Path, target: Path) -> None:
    """Rename onto the final name; an older checkpoint of that name is set aside first and removed last."""
    aside = None
    if target.exists() and not _is_empty(target):  # an empty directory is replaced by the rename
        if not (target / "manifest.json").is_file():
            raise FileExistsError(f"{target} exists and is no checkpoint")
        aside = target.rename(target.with_name(f".{target.name}.{secrets.token_hex(4)}.old"))
    try:
        fresh.rename(target)
    except OSError:
        if aside is not None:
            aside.rename(target)
        raise
    for old in _set_aside(target):
        shutil.rmtree(old, ignore_errors=True)


def _is_empty(target: Path) -> bool:
    return is_real_directory(target) and not any(target.iterdir())


def _set_aside(target: Path) -> list[Path]:
    """Older checkpoints of that name that a save moved out of the way and has not removed yet."""
    return sorted(filter(is_real_directory, target.parent.glob(f".{glob.escape(target.name)}.*.old")))


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
