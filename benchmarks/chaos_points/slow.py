"""Point 14, short or for as long as you like: one side ten times slower than the other, by waiting.

    headrace train, a process of its own ──> looked at from outside every so often: PSS, CPU time, its shared memory

Both sides wait instead of working: an environment's step sleeps, and so does the learner after an update. What CPU time
is left is that of waiting for one another. Judged by the second half of the time.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import Claim

from chaos_points.kit import Scale, Shown, below, equal, say, wait_until
from chaos_points.proc import cpu_s, family, growth, memory, name_of
from support.command import PATHS
from support.waiting import is_gone, segments_of_processes

FAST_S, SLOW_S = 0.03, 0.3  # a rollout of a worker, or an update of the learner
WORKERS, N_ENVS, N_STEPS = 2, 4, 16
MAX_GROWTH_MB, MAX_CPU_PERCENT = 2.0, 5.0
SETTLE_S = 6.0  # in a short run: the second half of it is all that is judged

LEARNER = """
import sys, time
from headrace.cli.main import main
from headrace.learning.ppo import Ppo
wait_s, learn = float(sys.argv.pop(1)), Ppo.learn
def slowly(self, *arguments, **options):
    begun = time.monotonic()
    record = learn(self, *arguments, **options)
    time.sleep(max(0.0, wait_s - (time.monotonic() - begun)))
    return record
Ppo.learn = slowly
sys.exit(main())
"""


def start(folder: Path, learner_s: float, actor_s: float) -> subprocess.Popen[str]:
    """A run that lasts until it is interrupted; an update and a rollout take about as long as they are told."""
    delay_s = actor_s / (N_ENVS // WORKERS * N_STEPS)
    return subprocess.Popen(
        [
            sys.executable, "-c", LEARNER, str(learner_s), "train", "support.worker_envs:dawdling", "--run-dir", "run",
            "--env-kwargs", json.dumps({"delay_s": delay_s}), "--n-envs", str(N_ENVS), "--n-steps", str(N_STEPS),
            "--batch-size", "64", "--n-epochs", "2", "--seed", "1", "--total-timesteps", str(10**9), "--max-lag", "1",
            "--topology", "processes", "--workers", str(WORKERS), "--quiet",
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PATHS},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def watch(side: str, seconds: float, progress: Callable[[str], object] = say) -> dict[str, Any]:
    """Run it and look at it; `side` is who is slow: learner or actors."""
    learner_s, actor_s = (SLOW_S, FAST_S) if side == "learner" else (FAST_S, SLOW_S)
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        process = start(folder, learner_s, actor_s)
        records = folder / "run" / "metrics.jsonl"
        try:
            wait_until(lambda: process.poll() is not None or (records.exists() and records.stat().st_size > 0))
            if process.poll() is not None:
                raise RuntimeError(f"the run ended:\n{process.communicate()[1][-2000:]}")
            time.sleep(min(SETTLE_S, seconds / 2))  # warm spares come up
            found = look(process.pid, seconds, side, progress)
            process.send_signal(signal.SIGINT)
            begun, members = time.monotonic(), family(process.pid)
            _, err = process.communicate(timeout=60)
            wait_until(lambda: all(map(is_gone, members)), 60)
            found["end_s"] = time.monotonic() - begun
        finally:
            process.kill()
            process.communicate()
        updates = [json.loads(line) for line in records.read_text().splitlines()]
    found |= {"exit_code": process.returncode, "stderr": err[-500:], "updates": len(updates)}
    return found


def look(pid: int, seconds: float, side: str, progress: Callable[[str], object]) -> dict[str, Any]:
    """Samples of memory, and CPU time of the second half."""
    begun, every_s = time.monotonic(), min(5.0, max(0.25, seconds / 40))
    pss: list[tuple[float, int]] = []
    own: list[tuple[float, int]] = []
    segments: list[int] = []
    half_way: dict[int, float] = {}
    half_at = said_at = 0.0
    while (at := time.monotonic() - begun) < seconds:
        members = {pid, *family(pid)}
        now = memory(members)
        pss.append((at, now.pss))
        own.append((at, now.own))
        segments.append(sum(path.stat().st_size for path in segments_of_processes(members) if path.exists()))
        if at >= seconds / 2 and not half_way:
            half_at, half_way = at, {one: cpu_s(one) for one in members if not is_gone(one)}
        if at - said_at >= 60:
            said_at = at
            progress(f"slow {side}: {at / 60:.0f} of {seconds / 60:.0f} min, PSS {now.pss / 1e6:.1f} MB, of that "
                     f"not files {now.own / 1e6:.2f} MB")  # fmt: skip
        time.sleep(every_s)
    elapsed = time.monotonic() - begun - half_at
    names = roles(pid)
    percents = {
        f"{names.get(one, name_of(one))} {one}": 100 * (cpu_s(one) - before) / elapsed
        for one, before in half_way.items()
        if not is_gone(one)
    }
    return {
        "seconds": seconds,
        "samples": len(pss),
        "pss_mb": statistics.median(value for _, value in pss) / 1e6,
        "pss_growth_mb": growth(pss, seconds / 2) / 1e6,
        "own_growth_mb": growth(own, seconds / 2) / 1e6,
        "own_mb": [round(value / 1e6, 2) for _, value in own[:: max(1, len(own) // 40)]],
        "cpu_percent": {name.rpartition(" ")[0] + f" {i}": round(value, 3)
                        for i, (name, value) in enumerate(sorted(percents.items()))},
        "segment_bytes": sorted(set(segments)),
    }  # fmt: skip


def roles(pid: int) -> dict[int, str]:
    """Learner, fork server, workers and spares of a run that we did not build: by who is whose child."""
    known = {pid: "learner"}
    for child in family(pid):
        is_server = bool(family(child))
        known[child] = name_of(child) if name_of(child) == "resource tracker" else "server" if is_server else "worker"
    return known


def claims_of(found: dict[str, Any], side: str) -> list[Claim]:
    """The waiting ones are all but the slow side."""
    slow = "learner" if side == "learner" else "worker"
    waiting = {name: value for name, value in found["cpu_percent"].items() if not name.startswith(slow)}
    who, most = max(waiting.items(), key=lambda item: item[1])
    length = f"{found['seconds'] / 60:.3g} min"
    return [
        below(f"slow {side}, {length}: growth of memory in the second half", found["own_growth_mb"], MAX_GROWTH_MB,
              "MB"),
        below(f"slow {side}, {length}: CPU of the busiest who waits ({who.rpartition(' ')[0]})", most,
              MAX_CPU_PERCENT, "%"),
        equal(f"slow {side}, {length}: sizes that the shared memory had", len(found["segment_bytes"]), 1, "sizes"),
    ]  # fmt: skip


def both(scale: Scale) -> Shown:
    """The small form of point 14."""
    claims: list[Claim] = []
    extra: dict[str, Any] = {}
    for side in ("learner", "actors"):
        extra[side] = watch(side, scale.slow_s)
        say(f"slow {side}: {json.dumps(extra[side]['cpu_percent'])}")
        claims += claims_of(extra[side], side)
    return Shown(
        "14",
        "A slow learner, slow actors",
        "`headrace train` with 2 workers and max_lag=1; the learner, then the actors, take "
        f"{SLOW_S / FAST_S:g} times as "
        f"long as the other side, by waiting. PSS (without files that other programs map too) and CPU time of every "
        f"process from /proc, over the second half of {scale.slow_s:g} s.",
        claims,
        extra=extra,
    )


def long_run(side: str, minutes: float) -> Shown:
    """The long form."""
    found = watch(side, 60 * minutes)
    return Shown(
        f"14, slow {side}, long",
        f"{minutes:g} minutes with {'a slow learner' if side == 'learner' else 'slow actors'}",
        f"The same for {minutes:g} minutes, {found['updates']} updates; judged by the second half.",
        claims_of(found, side),
        extra={side: found},
    )
