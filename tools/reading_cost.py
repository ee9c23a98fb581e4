"""What a reader has to open to follow a path through the code, by call trace: files, lines, and ways back.

    route (reading_routes.py) in a traced process ──> logs of all its processes (call_trace/) ──> Cost ──> table, JSON

    processes, inline    env.step -> weights         loky, threading    LLM turn -> record

Only what runs after a warm-up counts: building, launching and configuration do not. Of what runs,
- a file is *on the path* if it runs in a worker, in a thread, or below `train.py`;
- it is *around* it, if it only runs outside of an update (the session, its sinks);
- it runs *by the clock*, if only functions of BY_THE_CLOCK call it: the watch over hung workers, which looks five times
  a second, however many steps and updates there are in it. A test stops the clock of a real run, and it does not run;
- it is a *glance*, if no more than GLANCE_LINES of its lines run: an accessor, a constant function. Its name says it.
The path is counted, the others are listed, the path with what runs by the clock is printed beside it, and all are
summed as "every file". Lines are those of whole files, since that is what is opened; "ran" are the lines that did run
(of compiled functions: all).

The walk opens every file of the path when it is first called, from the file that calls it: worker first, then the
reader's side. A *hop* goes from one file to another, a hop *back* to one that was open before.

Commit 41203e7 was also walked by hand, with worker processes: 27 files, 3,563 lines, 42 hops, 16 back, nine times
train.py. This ruler says 31, 3,875, 47, 17 and nine there (every file: 44 and 5,491). LLM agents with loky: by hand 21
files and 3,486 lines, by this ruler 21 and 3,672.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from call_log import Call, Event, ProcessLog, TraceError, calls_of, trace

TOOLS = Path(__file__).resolve().parent
SPINE, WITH_SPINE = "train.py", ("processes", "inline")
GLANCE_LINES = 3
BY_THE_CLOCK = frozenset({("collecting/watch.py", "look_after")})

ROUTES = {
    "processes": "env.step -> weights, two worker processes",
    "inline": "env.step -> weights, inline",
    "loky": "LLM turn -> record, loky",
    "threading": "LLM turn -> record, threads",
}
# The environment that plays stands for the user's own, which is not ours to read.
PLAYED = ("agents/environments/frozen_lake.py",)

# What must hold: a ratchet, lowered when the house gets shorter. `spine_visits`: how often the walk comes to train.py.
LIMITS: dict[str, dict[str, int]] = {
    "processes": {"files": 19, "lines": 2_597, "spine_lines": 150, "spine_visits": 4},
    "loky": {"files": 16},
}
# What is aimed at and not reached yet.
GOALS: dict[str, dict[str, int]] = {"processes": {"files": 18, "lines": 2_600}}

# The rooms that one observation goes through, in its order; each has to be on the path of ROOMS_ROUTE.
ROOMS_ROUTE = "processes"
ROOMS = (
    "train.py",
    "collecting/reader.py",
    "collecting/host.py",
    "acting/actor.py",
    "envs/serial.py",
    "memory/slab.py",
    "memory/ring.py",
    "learning/assembly.py",
    "learning/advantages.py",
    "learning/ppo.py",
    "weights/store.py",
)
ROOMS_LINES = 1_560


@dataclass(frozen=True)
class FileCost:
    """One file that ran."""

    lines: int
    ran: int
    functions: int
    where: str  # path, glance, clock, around


@dataclass(frozen=True)
class Walk:
    """The files in the order in which they are opened, each as often as one comes to it."""

    files: tuple[str, ...]

    @property
    def hops(self) -> int:
        """From one file to another."""
        return max(0, len(self.files) - 1)

    @property
    def back(self) -> int:
        """Hops to a file that was open before."""
        return len(self.files) - len(set(self.files))


@dataclass(frozen=True)
class Cost:
    """What a route costs its reader."""

    files: dict[str, FileCost]
    walk: Walk
    spine_lines: int
    spine_calls: float  # from other files, per update
    disputed: tuple[str, ...]  # files that the trace of calls or that of lines has missed

    def of(self, *where: str) -> dict[str, FileCost]:
        """The files of some kinds."""
        return {path: one for path, one in self.files.items() if one.where in where}

    def figures(self) -> dict[str, float]:
        """The numbers that limits are about, and those for information."""
        path = self.of("path").values()
        return {
            "files": len(path),
            "lines": sum(one.lines for one in path),
            "ran": sum(one.ran for one in path),
            "hops": self.walk.hops,
            "back": self.walk.back,
            "spine_lines": self.spine_lines,
            "spine_visits": self.walk.files.count(SPINE),
            "spine_calls": self.spine_calls,
            "files_with_clock": len(self.of("path", "clock")),
            "lines_with_clock": sum(one.lines for one in self.of("path", "clock").values()),
            "every_file": len(self.files),
            "every_line": sum(one.lines for one in self.files.values()),
        }


def measure(route: str, package: Path) -> Cost:
    """Run a route and count."""
    logs, watched = trace([str(TOOLS / "reading_routes.py"), route], package)
    return cost_of(logs, package, watched, SPINE if route in WITH_SPINE else None)


def cost_of(logs: Sequence[ProcessLog], package: Path, watched: int, spine: str | None = None) -> Cost:
    """Files, lines, and the walk. With a spine, what the program's own thread does outside of it is around the path."""
    logs = _without_newcomers(logs)
    ordered = sorted(logs, key=lambda one: one.is_program)
    calls = [call for log in ordered for call in calls_of(log, spine, BY_THE_CLOCK)]
    functions = {one for log in logs for event in log.events for one in (event.function, event.caller) if one}
    if late := sorted({one.file for one in functions if one.name == "<module>"}):
        raise TraceError(f"{', '.join(late)}: imported within the window, so its start would count; warm up longer")
    lines = {line for log in logs for line in log.lines}
    lines |= {(one.file, line) for one in functions if one.kind == "compiled" for line in one.lines}
    on_path = {one.file for call in calls for one in call if one is not None}
    on_path |= {file for log in logs if not log.is_program for file, _ in log.lines}
    in_updates = {one.file for log in ordered for call in calls_of(log, spine) for one in call if one is not None}
    files = {}
    for path in sorted({one.file for one in functions} | {file for file, _ in lines}):
        if path not in PLAYED:
            ran = sum(file == path for file, _ in lines)
            where = "path" if path in on_path else "clock" if path in in_updates else "around"
            if where != "around" and ran <= GLANCE_LINES:
                where = "glance"
            files[path] = FileCost(_length(package / path), ran, sum(one.file == path for one in functions), where)
    walk = walk_of(calls, {path for path, one in files.items() if one.where == "path"})
    entries = sum(callee.file == spine and (caller is None or caller.file != spine) for caller, callee in calls)
    by_call = {one.file for one in functions if one.kind != "generated"}
    disputed = sorted(by_call ^ {file for file, _ in lines})
    return Cost(files, walk, _length(package / spine) if spine else 0, entries / max(1, watched), tuple(disputed))


def _without_newcomers(logs: Sequence[ProcessLog]) -> list[ProcessLog]:
    """Without children that came up within the window: joblib may start one more process, which finds nothing to do.

    A process imports the package itself only once. One that was up before it must have seen the path that is counted.
    """
    stayed = [log for log in logs if log.is_program or not any(_is_first_import(event) for event in log.events)]
    if len(stayed) < len(logs) and all(log.is_program for log in stayed):
        raise TraceError("every child was started within the window, so its start would count; warm up longer")
    return stayed


def _is_first_import(event: Event) -> bool:
    return (event.function.file, event.function.name) == ("__init__.py", "<module>")


def walk_of(calls: Iterable[Call], path: set[str]) -> Walk:
    """Every file of the path, opened when it is first called, from its caller's."""
    opened: list[str] = []
    for caller, callee in calls:
        if callee.file in path and callee.file not in opened:
            way = [caller.file] if caller is not None and caller.file in path else []
            for file in (*way, callee.file):
                if opened[-1:] != [file]:
                    opened.append(file)
    return Walk(tuple(opened))


def _length(path: Path) -> int:
    return len(path.read_text().splitlines())


def rooms_of(cost: Cost, package: Path) -> dict[str, dict[str, Any]]:
    """The listed rooms: their lines, None if there is no such file, and whether they are on the path."""
    found = {}
    for room in ROOMS:
        lines = _length(package / room) if (package / room).exists() else None
        found[room] = {"lines": lines, "is_on_path": room in cost.of("path", "glance")}
    return found


def judged(costs: Mapping[str, Cost], rooms: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every limit beside its figure."""
    found = []
    for route, limits in LIMITS.items():
        if route in costs:
            figures = costs[route].figures()
            found += [_limit(f"{route}: {name}", figures[name], most) for name, most in limits.items()]
    for route, cost in costs.items():
        found.append(_limit(f"{route}: files where call and line trace differ", len(cost.disputed), 0))
    if rooms:
        strays = sum(one["lines"] is None or not one["is_on_path"] for one in rooms.values())
        found.append(_limit("rooms that do not exist or did not run", strays, 0))
        found.append(_limit("lines of the rooms", sum(one["lines"] or 0 for one in rooms.values()), ROOMS_LINES))
    return found


def _limit(name: str, value: float, most: int) -> dict[str, Any]:
    return {"name": name, "value": value, "limit": most, "holds": value <= most}


def table(route: str, cost: Cost) -> str:
    """One route, a line per file."""
    figures = cost.figures()
    lines = [f"{route}: {ROUTES.get(route, '')}", f"  {'file':<36}{'lines':>7}{'ran':>6}{'functions':>11}"]
    titles = {"glance": f"glances, at most {GLANCE_LINES} lines ran", "clock": "by the clock", "around": "around"}
    for where, title in {"path": "", **titles}.items():
        if title and cost.of(where):
            lines.append(f"  -- {title}")
        for path, one in cost.of(where).items():
            lines.append(f"  {path:<36}{one.lines:>7,}{one.ran:>6}{one.functions:>11}")
    lines.append(
        f"  path: {figures['files']} files, {figures['lines']:,} lines, of which {figures['ran']} ran; "
        f"with what runs by the clock: {figures['files_with_clock']} and {figures['lines_with_clock']:,}; "
        f"every file: {figures['every_file']} and {figures['every_line']:,}"
    )
    lines.append(f"  walk: {figures['hops']} hops, {figures['back']} of them back: {' > '.join(cost.walk.files)}")
    if cost.spine_lines:
        lines.append(
            f"  {SPINE}: {cost.spine_lines} lines, {figures['spine_visits']} visits on the walk, "
            f"{cost.spine_calls:g} calls from elsewhere per update"
        )
    lines += [f"  {path}: seen by one of call and line trace, not by the other" for path in cost.disputed]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--route", action="append", choices=list(ROUTES), help="only this one; may be given again")
    parser.add_argument("--tree", type=Path, default=TOOLS.parent, help="a checkout; this one without it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a limit does not hold")
    arguments = parser.parse_args(argv)
    routes, package = arguments.route or list(ROUTES), arguments.tree.resolve() / "src" / "headrace"
    with ThreadPoolExecutor(2) as pool:  # each route is a process of its own
        costs = dict(zip(routes, pool.map(lambda route: measure(route, package), routes), strict=True))
    for route, cost in costs.items():
        print(table(route, cost), end="\n\n")
    rooms = rooms_of(costs[ROOMS_ROUTE], package) if ROOMS_ROUTE in costs else {}
    for room, one in rooms.items():
        state = "no such file" if one["lines"] is None else "" if one["is_on_path"] else "did not run"
        print(f"  room {room:<31}{one['lines'] or 0:>7,}  {state}".rstrip())
    limits = judged(costs, rooms)
    for one in limits:
        print(f"{'ok ' if one['holds'] else 'NO '} {one['name']}: {one['value']:g}, at most {one['limit']:,}")
    for route, goals in GOALS.items():
        for name, goal in goals.items() if route in costs else ():
            value = costs[route].figures()[name]
            print(f"{'ok ' if value <= goal else '-- '} aim, {route}: {name}: {value:g}, at most {goal:,}")
    if arguments.json is not None:
        measured = {
            route: {"figures": cost.figures(), "walk": cost.walk.files, "disputed": cost.disputed}
            | {"files": {path: asdict(one) for path, one in cost.files.items()}}
            for route, cost in costs.items()
        }
        document = {"routes": measured, "rooms": rooms, "limits": limits}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    return int(arguments.check and not all(one["holds"] for one in limits))


if __name__ == "__main__":
    sys.exit(main())
