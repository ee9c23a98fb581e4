"""Central inference: what a round trip costs, where the policy should run, how waiting and workers behave.

round_trip: a worker asks for 8 rows of 4 numbers and waits for an instant server (nothing is computed). On a core each:
            headrace's slots, a bare ping-pong of two shared words that waits in the same way, and a ping-pong that
            carries the same bytes. Where the kernel puts them: the slots, and the same loop over pipes, pyzmq, gRPC
            and Ray actor calls.
transports: steps/s and round trips of that loop with 16 environments on 1 to 8 workers, a 64 x 64 MLP on CartPole and
            the Nature CNN on made-up frames, on the CPU and on an emulated accelerator (2 ms a batch, 5 us a row).
collect:    steps/s of headrace itself on the same tasks, inference=central beside inference=local. Local inference on
            the accelerator means that every worker queues its own batches there.
waiting:    1 to 16 ping-pongs at once: round trips/s with the spin that adapts, always spinning, never spinning.
workers:    memory and start of 8 workers that hold no policy and no torch.

Everyone takes turns in one run. `--only` runs some parts; with an existing FILE, `--json` keeps the parts it has.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import harness
import torch
from harness import Claim
from inference_loop import DEVICE, Cell, env_of, module_of

import headrace as hr

OURS, PEERS = ("local", "slots", "pipes"), ("pyzmq", "gRPC", "Ray")
NETWORKS = {"mlp": "MLP 64 x 64", "cnn": "Nature CNN"}
DEVICES = {"cpu": "CPU", DEVICE: "emulated accelerator"}
DRIVER = str(harness.PEERS / "transports.py")
Results = dict[str, dict[str, float]]


class Sizes:
    """How long everything is measured."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.is_smoke, is_quick = arguments.smoke, arguments.quick
        self.rounds = 1 if self.is_smoke or is_quick else 3
        self.round_trips = 1 if self.is_smoke else self.rounds + 2  # some rounds meet both on one core
        self.seconds = 0.1 if self.is_smoke else 0.4 if is_quick else 0.6
        self.workers = (2,) if self.is_smoke else (1, 2, 4, 8)
        self.pairs = (1, 4) if self.is_smoke else (1, 2, 4, 8, 16)
        self.peers = () if self.is_smoke else PEERS

    def grid(self) -> list[Cell]:
        devices = [DEVICE] if self.is_smoke else list(DEVICES)
        return [Cell(n, d, w, self.seconds) for n in NETWORKS for d in devices for w in self.workers]


def compared(
    name: str, value: float, unit: str, baseline: float, at_least: float | None = None, at_most: float | None = None
) -> Claim:
    """A ratio, and whether it is what it should be; without a goal it is only reported."""
    ratio = value / baseline
    if at_least is not None:
        return Claim(name, value, unit, baseline, ratio, f">= {at_least:g}x", ratio >= at_least)
    if at_most is not None:
        return Claim(name, value, unit, baseline, ratio, f"<= {at_most:g}x", ratio <= at_most)
    return Claim(name, value, unit, baseline, ratio, "-", None)


def name_of(cell: Cell) -> str:
    return f"{NETWORKS[cell.network]}, {DEVICES[cell.device]}, {cell.workers} workers"


def run_way(way: str, cells: Sequence[Cell]) -> list[dict[str, float]]:
    """The cells of one way, in a fresh process."""
    arguments = [way, json.dumps([asdict(cell) for cell in cells])]
    timeout_s = 90.0 + 10.0 * len(cells)
    if way in OURS:
        return harness.run_script(DRIVER, *arguments, timeout_s=timeout_s)["results"]
    return harness.run_peer("transports", *arguments, timeout_s=timeout_s)["results"]


def in_turns(
    ways: Sequence[str], cells: Sequence[Cell], rounds: int, absent: dict[str, str]
) -> dict[str, list[Results]]:
    """way -> cell -> the medians of its rounds."""
    series: dict[str, list[list[dict[str, float]]]] = {way: [] for way in ways}

    def measured(way: str) -> float:
        results = run_way(way, cells)
        series[way].append(results)
        return results[0]["p50_us"]

    kept = harness.alternate(
        {f"{way}, round trip in us": lambda way=way: measured(way) for way in ways}, rounds, absent=absent
    )
    return {
        way: [
            {key: median(results[i][key] for results in rounds_of) for key in rounds_of[0][i]}
            for i in range(len(cells))
        ]
        for way, rounds_of in series.items()
        if f"{way}, round trip in us" in kept
    }  # fmt: skip


def round_trip(sizes: Sizes, absent: dict[str, str]) -> tuple[list[Claim], dict[str, Any]]:
    cells = [Cell("instant", seconds=sizes.seconds, is_pinned=True), Cell("instant", seconds=sizes.seconds)]
    script = str(harness.ROOT / "benchmarks" / "ping_pong.py")
    floors: dict[str, list[float]] = {"bare ping-pong": [], "ping-pong with the same bytes": []}

    def ping_pong(kind: str, *options: str) -> float:
        done = harness.run_script(script, "--pinned", *options, "--seconds", str(sizes.seconds), timeout_s=60)
        floors[kind].append(done["p50_us"])
        return floors[kind][-1]

    ways: dict[str, Any] = {
        kind: lambda kind=kind, options=options: ping_pong(kind, *options)
        for kind, options in zip(floors, ((), ("--carry",)), strict=True)
    }
    series: dict[str, list[list[dict[str, float]]]] = {}
    for way in ("slots", "pipes", *(("gRPC unary",) if sizes.peers else ()), *sizes.peers):
        series[way] = []

        def measured(way: str = way) -> float:
            series[way].append(run_way(way, cells if way == "slots" else cells[1:]))
            return series[way][-1][0]["p50_us"]

        ways[way] = measured
    harness.alternate({f"round trip, {way}, us": once for way, once in ways.items()}, sizes.round_trips, absent=absent)
    mine = median(one[0]["p50_us"] for one in series["slots"])
    claims = [
        compared(f"round trip, a core each: headrace / {kind}", mine, "us", median(series), at_most=limit)
        for (kind, series), limit in zip(floors.items(), (1.5, None), strict=True)
    ]
    free = {way: median(one[-1]["p50_us"] for one in rounds) for way, rounds in series.items() if rounds}
    tails = {way: median(one[-1]["p99_us"] for one in rounds) for way, rounds in series.items() if rounds}
    for way, other in free.items():
        if way != "slots":
            limit = 0.1 if way in ("gRPC", "gRPC unary", "Ray") else None
            claims.append(compared(f"round trip: headrace / {way}", free["slots"], "us", other, at_most=limit))
    return claims, {
        "p50_us": free,
        "p99_us": tails,
        "ping_pong_p50_us": floors,
        "a_core_each": [one[0] for one in series["slots"]],
    }


def transports(sizes: Sizes, absent: dict[str, str]) -> tuple[list[Claim], dict[str, Any]]:
    cells = sizes.grid()
    found = in_turns((*OURS, *sizes.peers), cells, sizes.rounds, absent)
    claims = []
    for i, cell in enumerate(cells):
        mine = found["slots"][i]["sps"]
        best = max((way for way in found if way not in ("local", "slots")), key=lambda way: found[way][i]["sps"])
        for what, other in ((f"the fastest other transport ({best})", best), ("local inference", "local")):
            name = f"loop: {name_of(cell)}: slots / {what}"
            claims.append(compared(name, mine, "steps/s", found[other][i]["sps"]))
    table = {name_of(cell): {way: results[i] for way, results in found.items()} for i, cell in enumerate(cells)}
    return claims, {"table": table}


def collect(sizes: Sizes, absent: dict[str, str]) -> tuple[list[Claim], dict[str, Any]]:
    claims, speeds = [], {}
    for cell in sizes.grid():
        contenders = {
            f"{name_of(cell)}, {inference}": lambda cell=cell, i=inference: steps_per_s(cell, i, 2 * sizes.seconds)
            for inference in ("central", "local")
        }
        values = harness.alternate(contenders, sizes.rounds, absent=absent)
        central, local = (median(series) for series in values.values())
        goal = 3.0 if cell.device != "cpu" and cell.workers >= 4 else None
        claims.append(compared(f"{name_of(cell)}: central / local", central, "steps/s", local, at_least=goal))
        speeds |= values
    return claims, {"steps_per_s": speeds}


def steps_per_s(cell: Cell, inference: str, seconds: float) -> float:
    place = {"topology": "processes", "workers": cell.workers, "shards": cell.workers, "spares": 0}
    with hr.Collector(
        env_of(cell), module_of(cell), n_envs=cell.rows * cell.workers, n_steps=32, seed=1, inference=inference,
        inference_device=cell.device, **place,
    ) as collector:  # fmt: skip
        next(collector)
        begun, steps = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            steps += next(collector).steps
        return steps / (time.perf_counter() - begun)


def waiting(sizes: Sizes, absent: dict[str, str]) -> tuple[list[Claim], dict[str, Any]]:
    script = str(harness.ROOT / "benchmarks" / "ping_pong.py")
    claims, table = [], {}

    def per_s(pairs: int, spin: str) -> float:
        return harness.run_script(
            script, "--pairs", str(pairs), "--spin", spin, "--seconds", str(sizes.seconds), timeout_s=60
        )["per_s"]

    for pairs in sizes.pairs:
        spins = ("adaptive", "always", "never")
        contenders = {f"{pairs} pairs, {spin}": lambda p=pairs, s=spin: per_s(p, s) for spin in spins}
        values = harness.alternate(contenders, sizes.rounds, absent=absent)
        mine, always, never = (median(series) for series in values.values())
        table[str(pairs)] = {"adaptive": mine, "always": always, "never": never}
        is_crowded = 2 * pairs > len(os.sched_getaffinity(0))
        name, unit = f"{pairs} waiting pairs: adaptive", "round trips/s"
        claims.append(compared(f"{name} / never spinning", mine, unit, never, at_least=0.7 if is_crowded else 3.0))
        claims.append(compared(f"{name} / always spinning", mine, unit, always))
    return claims, {"round_trips_per_s": table}


def workers(sizes: Sizes, absent: dict[str, str]) -> tuple[list[Claim], dict[str, Any]]:
    count = 2 if sizes.is_smoke else 8
    begun = time.perf_counter()
    with hr.Collector(
        "CartPole-v1", "MlpPolicy", n_envs=16, n_steps=32, seed=1, topology="processes", workers=count, shards=count,
        inference="central", spares=0,
    ) as collector:  # fmt: skip
        next(collector)
        took_s = time.perf_counter() - begun
        for _ in range(3):
            next(collector)
        pss = {}
        for pid in collector.parts.reader.place.workers.pids:
            assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text(), "a worker has torch"
            pss[pid] = pss_mb(pid)
        assert len(pss) == count, pss
    most = max(pss.values())
    return [
        Claim("memory of a worker without torch, CartPole (PSS)", most, "MB", None, None, "<= 150", most <= 150),
        Claim(f"{count} such workers, time to the first rollout", took_s, "s", None, None, "< 5", took_s < 5),
    ], {"pss_mb": sorted(pss.values())}


def pss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


PARTS = {"round_trip": round_trip, "transports": transports, "collect": collect, "waiting": waiting, "workers": workers}


def main() -> None:
    arguments = harness.arguments(
        __doc__, add=lambda parser: parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    )
    torch.set_num_threads(1)
    sizes, parts, absent = Sizes(arguments), {}, {}
    if sizes.peers and {"round_trip", "transports"} & set(arguments.only):
        found = harness.peer("transports")
        if isinstance(found, harness.Absent):
            sizes.peers, absent = (), dict.fromkeys(PEERS, found.reason)
    if arguments.json and arguments.json.exists() and len(arguments.only) < len(PARTS):
        parts = json.loads(arguments.json.read_text())["extra"]["parts"]
    for name in arguments.only:
        missing = dict(absent)
        claims, extra = PARTS[name](sizes, missing)
        parts[name] = {
            "host": harness.host(),
            "claims": [asdict(one) for one in claims],
            "absent": missing,
            "extra": extra,
        }
    parts = {name: parts[name] for name in PARTS if name in parts}
    claims = [Claim(**one) for part in parts.values() for one in part["claims"]]
    absent = {name: reason for part in parts.values() for name, reason in part["absent"].items()}
    harness.report(claims, arguments.json, absent, {"parts": parts})


if __name__ == "__main__":
    sys.exit(main())
