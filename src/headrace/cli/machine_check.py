"""`headrace doctor` without a run: looks at this machine and prints a line for every matter.

    read_machine · segments in sight · folders left ──judge──> findings ──> lines, or --json FILE

With --clean, segments of dead runs are removed first; nothing else is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from headrace.cli.writing import write_answer
from headrace.memory.orphans import remove_orphans, sightings
from headrace.memory.segment import DIRECTORY
from headrace.plain_text import printable
from headrace.planning.finding import Finding
from headrace.planning.machine import judge
from headrace.planning.quantities import with_unit
from headrace.runtime.folder import AGENTS, left_folders
from headrace.runtime.machine import read_machine

_MARKS = {"ok": "OK", "warning": "warning", "problem": "PROBLEM"}


def check_machine(clean: bool = False, needed_bytes: float = 0.0, json_file: Path | None = None) -> int:
    """Print what is found; returns the exit code: 1 if there is a problem, 0 otherwise."""
    removed = remove_orphans(DIRECTORY) if clean else []
    folders = [str(path) for path in left_folders(AGENTS)]
    findings = judge(read_machine(DIRECTORY), sightings(DIRECTORY), folders, needed_bytes)
    if clean:
        total = with_unit(sum(one.size_bytes for one in removed), "B")
        print(f"removed {len(removed)} shared-memory segment{'s'[: len(removed) != 1]} of dead runs, {total}")
    print(text_of(findings))
    if json_file is not None:
        answer = {"findings": [asdict(one) for one in findings], "removed": [one.name for one in removed]}
        write_answer("--json", json_file, (json.dumps(answer, indent=1) + "\n").encode(), Path.cwd())
    return int(any(one.level == "problem" for one in findings))


def text_of(findings: Sequence[Finding]) -> str:
    """A line for each, with what to do below it; then the count."""
    lines = []
    for one in findings:
        lines.append(f"{_MARKS[one.level]:<8} {one.name:<14} {printable(one.found, is_one_line=True)}")
        if one.advice:
            lines.append(f"{'':<8} {'':<14} -> {printable(one.advice, is_one_line=True)}")
    counts = {level: sum(one.level == level for one in findings) for level in ("problem", "warning")}
    words = [f"{count} {level}{'s'[: count > 1]}" for level, count in counts.items() if count]
    return "\n".join([*lines, f"this machine: {', '.join(words) or 'nothing to complain of'}"])
