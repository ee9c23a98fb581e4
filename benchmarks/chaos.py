"""The reliability report: everything that may go wrong, done on purpose, beside calm runs of the same configuration.

    points of the reliability bar, one after the other ──> claims ──> benchmarks/results/chaos.json ──> docs/chaos.md

A point is a function in chaos_points/; it does the damage, and measures what followed by the system's means (/proc,
clocks, exit codes). All points in their small form take about ten minutes on two quiet cores. `--only 1,4` picks some;
what is not run keeps its place in the JSON. `--long slow-learner`, `slow-actors` and `kills` are the long forms.
Without --quick, --smoke and --json the results and the page of the repository are written.
"""

import argparse
import io
import json
import logging
import os
import sys
import time
import traceback
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(1, str(ROOT / "tests"))  # what breaks things there breaks them here: tests/support

import harness  # noqa: E402
from chaos_points import data, endings, hangs, kills, kit, learners, page, slow, sockets, storage  # noqa: E402

RESULTS, PAGE = ROOT / "benchmarks" / "results" / "chaos.json", ROOT / "docs" / "chaos.md"
POINTS: dict[str, kit.Point] = {
    "1": kills.named_points,
    "2": learners.random_kills,
    "3": learners.learner_killed,
    "4": hangs.hung,
    "5": hangs.slow_is_not_hung,
    "6": hangs.raising,
    "7": kills.silent_deaths,
    "8": data.not_finite,
    "9": data.odd_returns,
    "10": storage.little_shared_memory,
    "11": storage.checkpoints_survive,
    "12": storage.damaged_bytes,
    "13": data.clock_jumps,
    "14": slow.both,
    "15": endings.signals,
    "16": hangs.leaking,
    "17": endings.scripts,
    "18": sockets.sockets,
    "19": storage.hostile_files,
    "20": storage.one_writer,
    "21": learners.nothing_outlives,
    "22": learners.any_child,
}
SMOKE_POINTS = ["1", "4", "7", "8", "9", "16", "18", "20"]
MINUTES = 20.0


def long_kills(scale: kit.Scale) -> kit.Shown:
    """Point 2 for several minutes."""
    shown = learners.random_kills(replace(scale, rounds=5, seconds=60.0, every_s=5.0))
    return replace(shown, number="2, long", title=f"{shown.title}, for 5 minutes")


def chosen(arguments: argparse.Namespace) -> dict[str, kit.Point]:
    """What is to be run, by name."""
    if arguments.long:
        long_runs: dict[str, kit.Point] = {
            "slow-learner": lambda scale: slow.long_run("learner", arguments.minutes),
            "slow-actors": lambda scale: slow.long_run("actors", arguments.minutes),
            "kills": long_kills,
        }
        return {name: long_runs[name] for name in arguments.long}
    numbers = arguments.only or (SMOKE_POINTS if arguments.smoke else list(POINTS))
    return {number: POINTS[number] for number in numbers}


def shown_by(name: str, point: kit.Point, scale: kit.Scale) -> dict[str, Any]:
    """A point's entry. One that ends in an error does not hold, and the others go on."""
    begun = time.monotonic()
    try:
        shown = point(scale)
    except Exception as error:
        traceback.print_exc()
        failed = harness.Claim("ended with an error", 1, "errors", None, None, "0", False)
        shown = kit.Shown(name, "Point that ended with an error", f"{type(error).__name__}.", [failed])
    entry = asdict(shown) | {"seconds": round(time.monotonic() - begun), "load": os.getloadavg()[0]}
    for claim in entry["claims"]:
        claim["name"] = f"{shown.number}. {claim['name']}"
    return entry


def in_order(entries: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """By number; the long forms behind the short ones."""
    return [entries[name] for name in sorted(entries, key=lambda name: (int(name.partition(",")[0]), name))]


def main() -> None:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--only", type=numbers, metavar="1,2,5", help="points to run")
        parser.add_argument("--long", nargs="+", choices=("slow-learner", "slow-actors", "kills"), help="long forms")
        parser.add_argument("--minutes", type=float, default=MINUTES, help="of a long run with a slow side")
        parser.add_argument("--page", type=Path, metavar="FILE", help="also write the page here")

    arguments = harness.arguments(__doc__, add=add)
    if not (arguments.smoke or arguments.quick or arguments.json):
        arguments.json, arguments.page = RESULTS, arguments.page or PAGE
    scale = kit.SMOKE if arguments.smoke else kit.QUICK if arguments.quick else kit.FULL
    logging.getLogger("headrace").addHandler(logging.NullHandler())  # warnings are expected, and counted
    logging.lastResort = None
    entries: dict[str, dict[str, Any]] = {}
    if arguments.json is not None and arguments.json.exists():
        entries = {entry["number"]: entry for entry in page.entries_of(json.loads(arguments.json.read_text()))}
    points = chosen(arguments)
    for index, (name, point) in enumerate(points.items(), 1):
        print(f"[{index}/{len(points)}] point {name} ...", flush=True)
        entry = shown_by(name, point, scale)
        entries[entry["number"]] = entry
        holds = [claim["holds"] for claim in entry["claims"]]
        kit.say(f"{entry['title']}: {holds.count(True)} of {len(holds)} figures hold ({entry['seconds']} s)")
        with redirect_stdout(io.StringIO()):
            write(in_order(entries), arguments.json, arguments.page)  # what is done is kept, whatever comes
    write(in_order(entries), arguments.json, arguments.page)


def write(entries: list[dict[str, Any]], json_path: Path | None, page_path: Path | None) -> None:
    """The table, the JSON and the page."""
    claims = [harness.Claim(**claim) for entry in entries for claim in entry["claims"]]
    points = [entry | {"claims": [claim["name"] for claim in entry["claims"]]} for entry in entries]
    harness.report(claims, json_path, {}, {"points": points})
    if page_path is not None and json_path is not None:
        page_path.write_text(page.rendered(json.loads(json_path.read_text())))


def numbers(text: str) -> list[str]:
    """Of --only."""
    found = [number.strip() for number in text.split(",")]
    for number in found:
        if number not in POINTS:
            raise argparse.ArgumentTypeError(f"expected numbers from 1 to {len(POINTS)}, got {number!r}")
    return found


if __name__ == "__main__":
    main()
