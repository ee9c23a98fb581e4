"""Is this tree slower than the commit before it? Old, new and old again, in turns, with old-against-old as the control.

    round: three fresh processes (old, new, old'), each warm -> slices of 0.1 s, the three in turn, in every order
           -> new / old and old' / old, each the median over the slices               no slice and no round is discarded
    all rounds -> the median of new / old, beside a band of what old' / old does by itself

"old" is the base commit in a temporary folder, "new" is this tree; Python, libraries and work are the same. A slice of
one contender is compared with the slices of the others beside it, so a machine that gets slower does so for all three.
Slices are short, since noise is: many of them say more than few long ones. Processes are fresh in every round, since a
process may be quicker or slower for its whole life.

The band. In a round, let a, b and n be the logarithms of the speeds of old, old' and new. The control is b - a, the
result n - (a + b) / 2, which varies less. Over all rounds, s is the root mean square of the control, and the band is
1 +- k s with k such that of equal trees one in 200 is called slower. k hangs on the number of rounds alone; it is found
by simulation of just this procedure, normal noise assumed. The claim holds if the median of new / old is not below the
band. Where the band is wider than +-5 %, or there are fewer than three rounds, nothing is claimed: run more rounds on a
quieter machine. The median of old' / old is printed too.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import math
import os
import select
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Self

import harness
import numpy as np

BASE = "41203e7"  # the last commit of the first house
WORKLOADS = (
    "training, inline",
    "training, 2 workers, max_lag 0",
    "training, 1 worker, max_lag 1",
    "training, inline, autograd",
    "collecting, 8 envs",
    "collecting, 64 envs",
    "burning 200 us, 2 workers",
    "hand-over of 8 MiB rollouts",
    "agents, scripted engine",
    "agents, tiny model",
)
IN_SMOKE = ("training, inline", "agents, scripted engine")
SIDE = 0.005  # of equal trees, the share that is called slower
WIDEST = 0.05  # a band that says anything
FEWEST = 3  # rounds that say anything
TIMEOUT_S = 600.0  # for one answer; machine code is made in the first
NAMES = ("old", "new", "old again")


class ContenderError(RuntimeError):
    """A contender ended or went silent; the message ends with its last words."""


class Contender:
    """A process that runs one workload of one tree, a slice at a time."""

    def __init__(self, source: Path, workload: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._said = b""
        environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(harness.ROOT / "benchmarks" / "paired_workloads.py"), workload],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):
            self._pipe("stdin").close()  # it ends by itself; children and all that do not are killed
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._pipe("stdout").close()
        self._errors.close()

    def wait_ready(self) -> None:
        """Until it is built and warm."""
        self._answer()

    def run(self, units: int) -> tuple[int, float]:
        """Steps and seconds."""
        with suppress(BrokenPipeError):  # the answer says why
            self._pipe("stdin").write(f"{units}\n".encode())
            self._pipe("stdin").flush()
        answer = self._answer()
        return answer["steps"], answer["seconds"]

    def _pipe(self, name: str) -> Any:
        return getattr(self._process, name)

    def _answer(self) -> dict[str, Any]:
        stdout, deadline = self._pipe("stdout").fileno(), time.monotonic() + TIMEOUT_S
        while b"\n" not in self._said:
            ready = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))[0]
            more = os.read(stdout, 65536) if ready else b""
            if not more:
                self._errors.seek(0)
                tail = self._errors.read().decode(errors="replace").strip().splitlines()[-3:]
                raise ContenderError(f"{'ended' if ready else f'silent for {TIMEOUT_S:.0f} s'}: {' / '.join(tail)}")
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass(frozen=True)
class Round:
    """Speeds in steps/s, slice by slice, of three contenders."""

    old: list[float]
    new: list[float]
    again: list[float]

    @property
    def result(self) -> float:
        """log(new / old), old being both of them."""
        slices = zip(self.old, self.new, self.again, strict=True)
        return median(math.log(new / math.sqrt(old * again)) for old, new, again in slices)

    @property
    def control(self) -> float:
        """log(old' / old)."""
        return median(math.log(again / old) for old, again in zip(self.old, self.again, strict=True))


@dataclass(frozen=True)
class Verdict:
    """What the rounds of one workload say, as ratios."""

    ratio: float
    control: float
    low: float
    high: float
    holds: bool | None
    goal: str

    @classmethod
    def of(cls, rounds: Sequence[Round]) -> Self:
        """From at least one round."""
        spread = math.sqrt(sum(one.control**2 for one in rounds) / len(rounds))
        half = factor(len(rounds)) * spread
        ratio = median(one.result for one in rounds)
        low, high = math.exp(-half), math.exp(half)
        holds: bool | None = ratio >= -half
        goal = f">= {low:.4f}x, the control's band"
        if len(rounds) < FEWEST or half > WIDEST:
            holds, goal = None, f"none: the band is {low:.2g} to {high:.2g}x, of {len(rounds)} rounds"
        return cls(math.exp(ratio), math.exp(median(one.control for one in rounds)), low, high, holds, goal)


def factor(rounds: int, draws: int = 400_000) -> float:
    """k: the median result of equal contenders lies below -k times the control's spread in SIDE of all cases."""
    old, new, again = np.random.default_rng(rounds).standard_normal((3, draws, rounds), np.float32)
    results = np.median(new - (old + again) / 2, axis=1)
    spreads = np.sqrt(np.mean((again - old) ** 2, axis=1))
    return float(np.quantile(np.abs(results) / spreads, 1 - 2 * SIDE))


def play(workload: str, sources: Sequence[Path], units: int, slices: int, turn: int) -> Round:
    """One round: three fresh processes, slices in turn."""
    with ExitStack() as stack:
        start = [stack.enter_context(Contender(source, workload)) for source in sources]
        for one in start:
            one.wait_ready()
        for one in start:
            one.run(1)
        speeds: list[list[float]] = [[], [], []]
        orders = list(itertools.permutations(range(3)))
        for index in range(slices):
            for which in orders[(turn + index) % len(orders)]:
                steps, seconds = start[which].run(units)
                speeds[which].append(steps / seconds)
    return Round(*speeds)


def sized(workload: str, sources: Sequence[Path], seconds: float) -> int:
    """Units of a slice that takes about so long; also leaves machine code on disk, so that no round has to make it."""
    units = 1
    for source in dict.fromkeys(reversed(sources)):  # the old tree is the last to be looked at
        with Contender(source, workload) as one:
            one.wait_ready()
            units, spent = 1, one.run(1)[1]
            while spent < seconds / 2:
                units = max(2 * units, round(units * seconds / spent / 2))
                spent = one.run(units)[1]
            units = max(1, round(units * seconds / spent))
    return units


def check_out(commit: str, folder: Path) -> Path:
    """The sources of a commit of this repository."""
    done = subprocess.run(
        ["git", "-C", str(harness.ROOT), "archive", "--format=tar", commit, "src"], capture_output=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"--base {commit}: git has no such commit: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def measured(
    workload: str, sources: Sequence[Path], rounds: int, slices: int, seconds: float
) -> tuple[harness.Claim, dict[str, Any]]:
    """All rounds of a workload."""
    units = sized(workload, sources, seconds) if seconds else 1
    played: list[Round] = []
    for turn in range(rounds):
        played.append(play(workload, sources, units, slices, turn))
        one = played[-1]
        print(
            f"[{turn + 1}/{rounds}] {workload}: new / old {math.exp(one.result):.4f}, "
            f"old' / old {math.exp(one.control):.4f}",
            flush=True,
        )
    verdict = Verdict.of(played)
    said = {True: "holds", False: "SLOWER", None: "no claim"}[verdict.holds]
    print(
        f"{workload}: new / old {verdict.ratio:.4f}, old' / old {verdict.control:.4f}, "
        f"band {verdict.low:.4f} to {verdict.high:.4f}: {said}",
        flush=True,
    )
    new, old = (median(speed for one in played for speed in which(one)) for which in (lambda r: r.new, lambda r: r.old))
    unit = "episodes/s" if workload.startswith("agents") else "steps/s"
    claim = harness.Claim(workload, new, unit, old, verdict.ratio, verdict.goal, verdict.holds)
    return claim, asdict(verdict) | {"units": units, "rounds": [asdict(one) for one in played]}


def options(parser: argparse.ArgumentParser) -> None:
    """What this script has beside the others'."""
    parser.add_argument("--base", default=BASE, metavar="COMMIT", help=f"the tree before; {BASE} without it")
    parser.add_argument("--tree", type=Path, default=harness.ROOT, help="the checkout to judge; this one without it")
    parser.add_argument("--rounds", type=int, help="instead of 12 (quick: 6)")
    parser.add_argument("--only", default="", metavar="TEXT", help="workloads whose name has this in it")


def main() -> None:
    arguments = harness.arguments(__doc__, add=options)
    rounds, slices, seconds = (1, 1, 0.0) if arguments.smoke else (6, 24, 0.1) if arguments.quick else (12, 40, 0.1)
    rounds = arguments.rounds or rounds
    named = [one for one in WORKLOADS if arguments.only == one] or [one for one in WORKLOADS if arguments.only in one]
    chosen = IN_SMOKE if arguments.smoke else named
    at_start = harness.host()
    claims, absent, extra = list[harness.Claim](), dict[str, str](), dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="paired-") as folder:
        new = arguments.tree.resolve() / "src"
        # A smoke test needs no history, which a shallow clone has not got.
        old = new if arguments.smoke else check_out(arguments.base, Path(folder))
        for workload in chosen:
            try:
                claim, extra[workload] = measured(workload, (old, new, old), rounds, slices, seconds)
                claims.append(claim)
            except ContenderError as error:
                absent[workload] = str(error)
                print(f"{workload}: {error}", flush=True)
    shared = {"base": arguments.base, "slices": slices, "slice_s": seconds, "factor": factor(rounds)}
    harness.report(claims, arguments.json, absent, {"host_at_start": at_start} | shared | {"workloads": extra})


if __name__ == "__main__":
    main()
