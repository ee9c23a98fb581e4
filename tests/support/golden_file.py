"""Golden results on disk: what a run gave, by machine and library versions, and what differs from it now.

    machine + versions --tag--> golden.json[tag]["runs"][name] --differences(recorded, got)--> lines, or none

Bits are promised on one type of processor with the same library versions, so a tag names both, and results of another
tag say nothing. What is recorded is replaced only with a decision record, which is kept beside it.
Does not know what is run.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

Parts = dict[str, Any]  # what a run gave, as JSON; nested, so that a difference has a name

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "determinism" / "golden.json"
DECISIONS = ROOT / "docs" / "decisions"
HOW_TO_RECORD = "cd tests && python -m support.golden --record"
PACKAGES = ("torch", "numpy", "numba", "llvmlite", "gymnasium")


class Refused(Exception):
    """What is recorded is not to be changed so."""


# ---------------------------------------------------------------------------------------------------- tags and digests


def tag_of(packages: Iterable[str] = ()) -> str:
    """This machine and what is installed on it, as far as bits may depend on it."""
    versions = [f"{name} {version_of(name)}" for name in (*PACKAGES, *packages)]
    libc = " ".join(platform.libc_ver())
    return ", ".join(
        [
            processor(),
            torch.backends.cpu.get_cpu_capability(),
            libc,
            f"python {platform.python_version()[:4]}",
            *versions,
        ]
    )


def processor() -> str:
    """Name, family and model: virtual machines often hide all but the numbers."""
    wanted = ("model name", "cpu family", "model")
    found: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    name, family, model = (found.get(one, "unknown") for one in wanted)
    return f"{name} family {family} model {model}"


def version_of(package: str) -> str:
    """Installed version, or absent."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def digest(values: Any) -> str:
    """Of anything that JSON holds; floats by all their digits."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def array_digest(arrays: Iterable[Any]) -> str:
    """Of arrays in their order: shapes and values. Floats keep their width; how wide whole numbers are is no result."""
    found = hashlib.sha256()
    for one in arrays:
        array = np.asarray(one)
        exact = np.ascontiguousarray(array if array.dtype.kind == "f" else array.astype(np.int64))
        found.update(f"{exact.dtype}{exact.shape};".encode() + exact.tobytes())
    return found.hexdigest()[:16]


# --------------------------------------------------------------------------------------------------------- comparisons


def differences(recorded: Parts, got: Parts) -> list[str]:
    """A line for everything recorded that is not there or not the same; what is new beside it does not count."""
    want, have = flat(recorded), flat(got)
    return [
        f"{name}: recorded {value!r}, got {have.get(name, 'nothing')!r}"
        for name, value in want.items()
        if name not in have or have[name] != value
    ]


def flat(parts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested parts by dotted names; something empty is a value too."""
    found: dict[str, Any] = {}
    for key, value in parts.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


# ------------------------------------------------------------------------------------------------------------ the file


class Golden:
    """golden.json: per tag the runs' parts, and when and why they were recorded."""

    def __init__(self, file: Path = FILE, decisions: Path = DECISIONS) -> None:
        self._file, self._decisions = file, decisions
        self.tags: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}

    def runs(self, tag: str) -> dict[str, Parts] | None:
        """What is recorded under a tag; None if nothing is."""
        entry = self.tags.get(tag)
        return None if entry is None else entry["runs"]

    def record(self, tag: str, results: Mapping[str, Parts], commit: str, decision: str = "") -> list[str]:
        """Keep results; a change of what is recorded needs a decision. Returns the names that are new or changed."""
        entry = self.tags.get(tag, {"recorded": [], "runs": {}})
        runs = entry["runs"]
        changed = {name: differences(runs[name], got) for name, got in results.items() if name in runs}
        changed = {name: lines for name, lines in changed.items() if lines}
        if changed and not decision:
            lines = [f"{name}: {line}" for name, lines in changed.items() for line in lines]
            raise Refused(
                "these results are recorded already and differ; they change only with a decision record: "
                '--replace "docs/decisions/NNNN-title.md: why"\n' + "\n".join(f"  {line}" for line in lines)
            )
        if changed:
            self._require_record(decision)
        kept = sorted({*changed, *(results.keys() - runs.keys())})
        if kept:
            why = {"decision": decision} if changed else {}
            entry["recorded"].append({"commit": commit, "runs": kept, **why})
            runs |= {name: results[name] for name in kept}
            self.tags[tag] = entry
            self._file.write_text(json.dumps(self.tags, indent=1, sort_keys=True) + "\n")
        return kept

    def _require_record(self, decision: str) -> None:
        path = decision.split(":")[0].strip()
        reason = decision.partition(":")[2].strip()
        if not reason or Path(path).suffix != ".md" or not (self._decisions / Path(path).name).is_file():
            raise Refused(
                f'--replace: expected "docs/decisions/NNNN-title.md: why" with a file that is there, got {decision!r}'
            )


def source_commit(package: Path) -> str:
    """The commit that the imported package is of; refused if it is of none."""
    if not package.is_relative_to(ROOT / "src"):
        raise Refused(f"expected headrace from {ROOT / 'src'}, got {package}: set PYTHONPATH")
    if _git("status", "--porcelain", "--", "src"):
        raise Refused("src has changes that are not committed: record from a commit")
    return _git("log", "-1", "--format=%h", "--", "src")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
