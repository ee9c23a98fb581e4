"""The report of a run: report.png and report.html, from the files the run left in its directory.

    metrics.jsonl ──> records ──┬──> figure ────────────────────────┐
    result.json, config.json,   │                                   ├──> page ──> report.html, report.png
    versions.json ──────────────┴──> cards, tables, the doctor's ───┘
                                     verdict, a strip per role

Any of the files may be missing, short or full of nulls: a run that died early deserves a report most. They may also
come from elsewhere (`headrace report`): they are read as data, within limits. What result.json says goes before what
the last record says. The figure costs two seconds of CPU, most of it for matplotlib: a run that was broken off in its
first seconds goes without. This file does not know how a run is made, nor any setting by name.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.collecting.forecast import words
from headrace.extras import has
from headrace.files import MAX_JSON_BYTES, parse_object, read_regular, require_no_links
from headrace.plain_text import encodable
from headrace.planning.evidence import evidence_of
from headrace.planning.finding import Finding
from headrace.planning.recorded_diversity import start_finding
from headrace.planning.verdict import judge
from headrace.telemetry.sinks import STEP_TAG, Record, read_records
from headrace.views.number_format import MISSING, decimal, duration, whole
from headrace.views.page import Page, render_page
from headrace.views.role_strips import KINDS, strips_of, waiting_of
from headrace.views.time_split import reading, time_shares

logger = logging.getLogger(__name__)

_Pairs = list[tuple[str, str]]

# Keys of result.json that have a card or a worded row of their own; every other key is shown as it is.
_WORDED = frozenset(
    {
        "placement",
        "mean_return",
        "eval_mean_reward",
        "episodes",
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
_NAMES = {
    "exit_code": "Exit code",
    "env_failures": "Restarts because an environment raised",
    "env_check": "First episodes, played again",
    "where": "Where it ran",
    "not_closed": "Could not be closed",
}


def write_report(run_dir: Path, has_figure: bool = True) -> None:
    """Write report.html and, with a figure, report.png into run_dir; earlier ones are replaced."""
    require_no_links(run_dir, [_unfinished(run_dir / name).name for name in ("report.png", "report.html")])
    records = _read_metrics(run_dir / "metrics.jsonl")
    result, config = _read_json(run_dir / "result.json"), _read_json(run_dir / "config.json")
    title = encodable(run_dir.resolve().name, "utf-8")
    png, why = None, "This run ended within seconds, so no figure was drawn."
    if has_figure and not has("plots"):
        why = "No figure was drawn: pip install 'headrace[plots]' brings matplotlib."
    elif has_figure:
        try:
            from headrace.views.figure import draw_figure  # brings matplotlib, which takes a second to import

            png = draw_figure(records, title)
        except Exception as error:  # of matplotlib, on numbers that it can't draw: the rest of the page can be had
            why = f"The figure could not be drawn ({type(error).__name__})."
            logger.warning("the figure of the report could not be drawn", exc_info=error)
    page = Page(
        title=title,
        reading=reading(time_shares(records)),
        cards=_cards(result, records),
        results=_results(result, records),
        config=_flat(config),
        versions=_flat(_read_json(run_dir / "versions.json")),
        png=png,
        no_png=f"{why} Draw it with: headrace report {run_dir}",
        **_doctored(records, config, result, start_finding(run_dir)),
    )
    if png is None:
        (run_dir / "report.png").unlink(missing_ok=True)  # an earlier session's, which this page does not show
    else:
        _replace(run_dir / "report.png", png)
    _replace(run_dir / "report.html", encodable(render_page(page), "utf-8").encode())


def _doctored(
    records: Sequence[Record], config: Mapping[str, Any], result: Mapping[str, Any], starts: Finding
) -> dict[str, Any]:
    """What headrace doctor says of the run, and a strip per role.

    Nothing of a run that recorded too little, unless its environments begin alike, for which a few episodes are enough.
    """
    evidence, notes = evidence_of(records, config, result), [starts.sentence] if starts.level != "ok" else []
    if not evidence.is_enough and not notes:
        return {}
    verdict = judge(evidence, notes)
    if not evidence.is_enough:
        return {"verdict": verdict.sentence, "notes": verdict.notes}
    strips = strips_of(evidence)
    return {
        "verdict": verdict.sentence,
        "causes": [(one.name, one.evidence) for one in verdict.causes],
        "notes": verdict.notes,
        "strips": [(one.role, list(one.parts.items())) for one in strips],
        "kinds": list(KINDS.items()),
        "waiting": waiting_of(evidence, strips),
    }


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
        ("Episodes finished", whole(_number(result, "episodes", records, "headrace/episodes"))),
        ("Last evaluation", decimal(_number(result, "eval_mean_reward", records, "eval/mean_reward"))),
        ("Restarts", whole(_number(result, "restarts", records, "headrace/restarts"))),
        *_placement(result.get("placement")),
        ("Ledger, in steps", _ledger(result.get("ledger"), records)),
        ("SHA-256 of the weights", str(result.get("weights_sha256", MISSING))),
        ("SHA-256 of the optimiser", str(result.get("optimizer_sha256", MISSING))),
    ]
    named = [(name, _one_line(result[key])) for key, name in _NAMES.items() if result.get(key) not in (None, "", {})]
    return rows + named + _flat({key: value for key, value in result.items() if key not in _WORDED | _NAMES.keys()})


def _one_line(value: object) -> str:
    """A value of any kind as text; a dict as `name: value, name: value`."""
    pairs = _flat(value if isinstance(value, dict) else {"": value})
    return ", ".join(": ".join(filter(None, pair)) for pair in pairs)


def _placement(placement: object) -> _Pairs:
    """Where the policy ran, if that was measured; what a file says may be anything."""
    try:
        return [("Where the policy runs", words(placement))] if isinstance(placement, dict) and placement else []
    except (LookupError, TypeError, ValueError, ArithmeticError):
        return []


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
    if isinstance(value, int | float) and abs(value) < 1 << 63:  # a file may hold any whole number
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
    try:
        return parse_object(read_regular(path, MAX_JSON_BYTES))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        logger.warning("the report goes without %s: %s", path.name, error)
        return {}


def _read_metrics(path: Path) -> list[Record]:
    try:
        return read_records(path)
    except (OSError, ValueError) as error:
        logger.warning("the report goes without %s: %s", path.name, error)
        return []


def _replace(path: Path, data: bytes) -> None:
    """Whole or not at all: somebody may have the old report open."""
    unfinished = _unfinished(path)
    unfinished.write_bytes(data)
    os.replace(unfinished, path)


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.unfinished")
