"""headrace doctor on runs that were built to be held up by a known cause: is its verdict right, are its predictions?

    drawn ──controls, by the clock──> a case that is what it claims to be ──files──> verdict, advice ──tried──> gain

Every case is a run of some seconds (verdict_cases.py). How strong a cause is, and which environment or worker is the
slow one, is drawn by --seed. Whether it is a cause is known from controls and not from the doctor: without it the run
must be faster by a stated factor. A draw that fails its controls is reported and drawn again, at most three times; a
case without a valid draw is reported and not counted.

The doctor sees the files of a run and nothing else. The verdict is right if the causes that it ranks first are those
that were built in, all of them named. Then the best advice that is an option is tried: short runs without and with it,
in alternation. Every run without it is also what a prediction is made from; medians of both are compared. A prediction
is right within 25 % of the gain that the clock shows.

slow disk    every append to metrics and events takes some milliseconds more
slow env     one that sleeps, so that it is slow on a busy machine as well
accelerator  the emulated one: one queue, no CPU

--only I ... runs some of the cases, and with --json FILE joins them with what is in the file already.
"""

import argparse
import json
import logging
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import harness
import torch
from verdict_cases import CASES, COMPARABLE, Case, Disk, drawn

from headrace.api.model import Model
from headrace.cli.doctor_measuring import learning_costs, short_run
from headrace.cli.train_command import changed
from headrace.planning import verdict as causes
from headrace.planning.advice import advise
from headrace.planning.evidence import Evidence
from headrace.planning.verdict import Verdict, judge
from headrace.run_config import RunConfig, SessionConfig

DRAWS = 3
NAMES = list(CASES)


@dataclass(frozen=True)
class Ran:
    """A short run: what its files say, and what the clock says."""

    evidence: Evidence
    sps: float
    appends: float
    """To files of metrics, per update."""

    @property
    def update_s(self) -> float:
        return self.evidence.steps / self.sps


def ran(
    config: RunConfig, session: SessionConfig, disk_s: float, seconds: float, expected_sps: float | None = None
) -> Ran:
    """For some seconds; how many steps that is has to be seen first, if it isn't known."""
    if expected_sps is None:
        expected_sps = ran(config, session, disk_s, seconds / 4, 500.0).sps
    clock: list[tuple[float, float]] = []

    def seen(record: Mapping[str, float]) -> None:
        clock.append((time.perf_counter(), record["time/total_timesteps"]))

    disk = Disk()
    with disk.slowed(disk_s):
        evidence = short_run(config, session, expected_sps, seconds, seen)
    (begun, before), (ended, after) = clock[1], clock[-1]  # processes start and code is compiled in the first update
    return Ran(evidence, (after - before) / (ended - begun), disk.appends / len(clock))


def ran_case(case: Case, seconds: float, expected_sps: float | None = None) -> Ran:
    return ran(*case.configs(), case.disk_s, seconds, expected_sps)


def fitted(case: Case, seconds: float) -> Case:
    """A strength that is given as a share becomes one in seconds: the run is measured without it."""
    if case.fitted is None:
        return case
    alone = ran_case(case, seconds)
    return case.with_strength(alone.update_s, alone.appends)


def controlled(case: Case, before: Ran, seconds: float) -> tuple[dict[str, float], list[str]]:
    """The gain of every control, and why the case is not what it claims to be, if so."""
    gains = {one.what: ran_case(case.changed(one.changes), seconds).sps / before.sps for one in case.controls}
    refusals = [text for one in case.controls if (text := one.refusal(gains[one.what]))]
    if len(case.expected) > 1:
        parts = [(one.what, 1.0 - 1.0 / gains[one.what]) for one in case.controls]  # of an update
        for (one, a), (other, b) in combinations(parts, 2):
            if min(a, b) > 0 and max(a, b) > COMPARABLE * min(a, b):
                refusals.append(f"not comparable: {one} saves {a:.0%} of an update, {other} {b:.0%}")
    return gains, refusals


def built(name: str, seed: int, seconds: float) -> tuple[Case | None, Ran | None, dict[str, Any]]:
    """A case that passed its controls, and its run; None if no draw did."""
    refused: list[str] = []
    for attempt in range(DRAWS):
        case = fitted(drawn(name, seed, attempt), seconds)
        first = ran_case(case, seconds)
        gains, refusals = controlled(case, first, seconds)
        if not refusals:
            return case, first, {"controls": gains, "refused_draws": refused, "drawn": strength(case)}
        refused += refusals
        print(f"   invalid  {name}, draw {attempt + 1}: {'; '.join(refusals)}", flush=True)
    return None, None, {"refused_draws": refused}


def strength(case: Case) -> dict[str, Any]:
    """What was drawn, for the report."""
    told = {name: value for name, value in asdict(case).items() if value and name not in ("expected", "controls")}
    return json.loads(json.dumps(told))  # type: ignore[no-any-return]


def is_right(case: Case, verdict: Verdict, evidence: Evidence) -> bool:
    """The causes that are ranked first are those that were built in; a slow environment is also the one that is."""
    if set(verdict.names[: len(case.expected)]) != set(case.expected):
        return False
    return causes.SLOW_ENV not in case.expected or evidence.slow_envs == case.slow


def judged(name: str, seed: int, seconds: float, rounds: int) -> dict[str, Any]:
    """A case: its verdict, and the best advice tried. Every round has a run of each kind: both see the same machine."""
    case, first, row = built(name, seed, seconds)
    row |= {"case": name, "seed": seed, "load_average": harness.host()["load_average"][0]}
    if case is None or first is None:
        return row | {"is_valid": False, "is_right": False, "predicted": None}
    config, session = case.configs()
    verdict = judge(first.evidence)
    costs = {}
    if verdict.shares.get(causes.LEARNER, 0.0) >= 0.15:
        with tempfile.TemporaryDirectory(prefix="headrace-verdict-") as scratch, Model.from_config(config) as model:
            model.save(Path(scratch) / "run")
            costs = learning_costs(Path(scratch) / "run", first.evidence)
    shares = {cause: own for cause, own in verdict.shares.items() if own > 0.02}
    row |= {"is_valid": True, "is_right": is_right(case, verdict, first.evidence), "expected": case.expected,
            "verdict": verdict.names, "sentence": verdict.sentence, "shares": shares,
            "free_cores": first.evidence.free_cores, "starved": verdict.is_starved}  # fmt: skip
    best = next((one for one in advise(first.evidence, costs) if one.is_applicable), None)
    if best is None:
        return row | {"options": "", "predicted": None, "achieved": None}
    other, later = changed(config, session, list(best.options))
    pairs = []
    for number in range(rounds):
        before = first if not number else ran_case(case, seconds, first.sps)
        found = [one.gain for one in advise(before.evidence, costs) if one.options == best.options]
        after = ran(other, later, case.disk_s, seconds, best.sps)
        pairs.append((found[0] if found else 1.0, after.sps / before.sps))
    predicted, achieved = (median(column) for column in zip(*pairs, strict=True))
    return row | {"options": " ".join(best.options), "predicted": predicted, "achieved": achieved, "pairs": pairs}


def off(row: dict[str, Any]) -> float:
    """How far a prediction is from what was achieved."""
    return abs(row["predicted"] / row["achieved"] - 1.0) if row["predicted"] else float("inf")


def told(index: int, row: dict[str, Any]) -> str:
    if not row["is_valid"]:
        return f"{index:2} INVALID {row['case']}: no draw passed its controls"
    controls = ", ".join(f"{what} {gain:.2f}x" for what, gain in row["controls"].items())
    text = f"{index:2} {'right' if row['is_right'] else 'WRONG'}  {row['case']} ({controls}): {row['sentence']}"
    if not row["predicted"]:
        return text
    mark = "within" if off(row) <= 0.25 else "OFF"
    what = f"predicted {row['predicted']:.2f}x, achieved {row['achieved']:.2f}x"
    return f"{text}\n         {mark}: {row['options']}: {what}"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1, help="draws the causes")
    parser.add_argument("--only", nargs="*", type=int, metavar="I", help=f"only these cases, of {len(NAMES)}")


def main() -> None:
    arguments = harness.arguments(__doc__, add=options)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    chosen = arguments.only or ([0] if arguments.smoke else range(len(NAMES)))
    seconds, rounds = (0.5, 1) if arguments.smoke else (1.5, 1) if arguments.quick else (2.0, 3)
    kept = harness.earlier(arguments.json, bool(arguments.only), "rows") or []
    rows = {row["case"]: row for row in kept if row["seed"] == arguments.seed and row["rounds"] == rounds}
    for index in chosen:
        row = judged(NAMES[index], arguments.seed, seconds, rounds) | {"rounds": rounds}
        rows[row["case"]] = row
        print(told(index, row), flush=True)
        if arguments.json:  # what was measured is kept if a later case is broken off
            arguments.json.write_text(json.dumps({"extra": {"rows": list(rows.values())}}))
    rows = {name: rows[name] for name in NAMES if name in rows}
    valid = [row for row in rows.values() if row["is_valid"]]
    right, close = sum(row["is_right"] for row in valid), sum(off(row) <= 0.25 for row in valid)
    is_whole = len(rows) == len(NAMES) and len(valid) >= 12
    harness.report(
        [
            harness.Claim("verdicts that are right", right, f"of {len(valid)}", None, None, "all",
                          right == len(valid) if is_whole else None),
            harness.Claim("predictions within 25 %", close, f"of {len(valid)}", None, None, "at least 9",
                          close >= 9 if is_whole else None),
        ],
        arguments.json,
        {name: f"invalid: {'; '.join(row['refused_draws'])}" for name, row in rows.items() if not row["is_valid"]},
        {"seed": arguments.seed, "rows": json.loads(json.dumps(list(rows.values())))},
    )  # fmt: skip


if __name__ == "__main__":
    main()
