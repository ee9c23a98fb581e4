"""The report of a run: report.png and report.html, from the files the run left in its directory.

    metrics.jsonl ──> records ──┬──> figure (twice: light, dark) ──┐
    result.json, config.json,   │                                  ├──> page ──> report.html, report.png
    versions.json ──────────────┴──> cards, tables, one sentence ──┘

Any of the files may be missing, short or full of nulls: a run that died early deserves a report most. What result.json
says goes before what the last record says. This file does not know how a run is made, nor any setting by name.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.telemetry.sinks import STEP_TAG, Record, read_records
from headrace.views.number_format import MISSING, decimal, duration, whole
from headrace.views.page import Page, render_page
from headrace.views.time_split import reading, time_shares

logger = logging.getLogger(__name__)

_Pairs = list[tuple[str, str]]

# Keys of result.json that have a card or a worded row of their own; every other key is shown as it is.
_WORDED = frozenset(
    {
        "mean_return",
        "steps",
        "sps",
        "wall_time_s",
        "exit_reason",
        "updates",
        "restarts",
        "ledger",
        "weights_sha256",
        "optimizer_sha256",
    }
)


def write_report(run_dir: Path) -> None:
    """Write report.png and report.html into run_dir; earlier ones are replaced."""
    from headrace.views.figure import DARK, LIGHT, draw_figure  # brings matplotlib, which takes a second to import

    records = read_records(run_dir / "metrics.jsonl")
    result = _read_json(run_dir / "result.json")
    title = run_dir.resolve().name
    light_png = draw_figure(records, LIGHT, title)
    page = Page(
        title=title,
        reading=reading(time_shares(records)),
        cards=_cards(result, records),
        results=_results(result, records),
        config=_flat(_read_json(run_dir / "config.json")),
        versions=_flat(_read_json(run_dir / "versions.json")),
        light_png=light_png,
        dark_png=draw_figure(records, DARK, title),
    )
    _replace(run_dir / "report.png", light_png)
    _replace(run_dir / "report.html", render_page(page).encode())


def _cards(result: Mapping[str, Any], records: Sequence[Record]) -> _Pairs:
    return [
        ("Episode return", decimal(_number(result, "mean_return", records, "rollout/ep_rew_mean"))),
        ("Environment steps", whole(_number(result, "steps", records, STEP_TAG))),
        ("Steps per second", whole(_number(result, "sps", records, "time/fps"))),
        ("Wall time", duration(_number(result, "wall_time_s", records, "time/time_elapsed"))),
    ]


def _results(result: Mapping[str, Any], records: Sequence[Record]) -> _Pairs:
    rows = [
        ("Ended", str(result.get("exit_reason", "no result.json: the run is still going on, or was killed"))),
        ("Updates", whole(_number(result, "updates", records, "time/iterations"))),
        ("Episodes finished", whole(_number({}, "", records, "headrace/episodes"))),
        ("Last evaluation", decimal(_number({}, "", records, "eval/mean_reward"))),
        ("Restarts", whole(_number(result, "restarts", records, "headrace/restarts"))),
        ("Ledger, in steps", _ledger(result.get("ledger"), records)),
        ("SHA-256 of the weights", str(result.get("weights_sha256", MISSING))),
        ("SHA-256 of the optimiser", str(result.get("optimizer_sha256", MISSING))),
    ]
    return rows + _flat({key: value for key, value in result.items() if key not in _WORDED})


def _ledger(ledger: object, records: Sequence[Record]) -> str:
    """`307,200 produced = 305,152 consumed + 2,048 rejected + 0 discarded`, with the reasons if they are known."""
    entries: dict[str, Any] = dict(ledger) if isinstance(ledger, dict) else {}
    reasons = entries.get("discarded")
    note = ""
    if isinstance(reasons, dict):
        counts = [count for count in reasons.values() if isinstance(count, int | float)]
        entries["discarded"] = sum(counts)
        note = "".join(f"; {reason}: {count}" for reason, count in reasons.items() if count)
    words = {
        name: f"{whole(_number(entries, name, records, f'headrace/ledger/{name}'))} {name}"
        for name in ("produced", "consumed", "rejected", "discarded")
    }
    return f"{words['produced']} = {words['consumed']} + {words['rejected']} + {words['discarded']}{note}"


def _number(result: Mapping[str, Any], key: str, records: Sequence[Record], tag: str) -> float | None:
    """result[key] if it is a number, else the last finite value of the tag, else None."""
    value = result.get(key)
    if isinstance(value, int | float) and math.isfinite(value):
        return value
    return next((record[tag] for record in reversed(records) if math.isfinite(record.get(tag, math.nan))), None)


def _flat(nested: Mapping[str, Any], prefix: str = "") -> _Pairs:
    """Leaves of a nested dict as (dotted name, text), in the order they are written."""
    pairs: _Pairs = []
    for key, value in nested.items():
        if isinstance(value, dict) and value:
            pairs += _flat(value, f"{prefix}{key}.")
        else:
            pairs.append((f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)))
    return pairs


def _read_json(path: Path) -> dict[str, Any]:
    """The object in the file; nothing if it is not there, nothing and a warning if it can't be read."""
    if not path.exists():
        return {}
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        logger.warning("the report goes without %s: %s", path.name, error)
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _replace(path: Path, data: bytes) -> None:
    """Whole or not at all: somebody may have the old report open."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_bytes(data)
    os.replace(unfinished, path)
