"""What every benchmark script shares: our numbers beside a peer's, from one run, as ratios.

    arguments() -> peer(name): a venv of its own under .venvs/, made once -> run_peer(name, ...): its driver's numbers
                -> alternate(): everyone in turn, so that a noisy machine is noisy for all
                -> Claim: value, baseline, ratio, goal, does it hold -> report(): a table, and the same as JSON

A peer that can't be installed or fails is reported as absent with the reason; its number is never guessed.
Knows nothing of headrace: scripts bring the functions that measure.
"""

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "benchmarks" / "peers"
VENVS = ROOT / ".venvs"
# Always installed first and by itself: a resolver that is free to choose brings gigabytes of CUDA.
TORCH = "torch==2.13.0"
INSTALL_TIMEOUT_S = 1200.0
MOST_OF_OTHERS, MOST_REPEATS = 0.05, 2  # of one core; a run beside more than that is made again, so many times


@dataclass(frozen=True)
class Claim:
    """One public number. `ratio` is value / baseline; `holds` is None where there was nothing to judge it by."""

    name: str
    value: float | None
    unit: str
    baseline: float | None
    ratio: float | None
    goal: str
    holds: bool | None


@dataclass(frozen=True)
class PeerPython:
    name: str
    executable: Path


@dataclass(frozen=True)
class Absent:
    reason: str


NOT_IN_SMOKE = Absent("peers do not run in a smoke test")


class PeerError(RuntimeError):
    """A peer's subprocess failed; the message says how and ends with the tail of its stderr."""


def arguments(
    description: str,
    argv: Sequence[str] | None = None,
    add: Callable[[argparse.ArgumentParser], object] = lambda parser: None,
) -> argparse.Namespace:
    """The options of every script, and those that `add` adds."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a first look")
    parser.add_argument("--smoke", action="store_true", help="seconds, for CI: installs no peer, proves no number")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report here")
    add(parser)
    return parser.parse_args(argv)


def host() -> dict[str, Any]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": _installed_version("torch"),
        "gymnasium": _installed_version("gymnasium"),
        "load_average": os.getloadavg(),
    }


def alternate(
    contenders: Mapping[str, Callable[[], float]],
    rounds: int,
    progress: Callable[[str], object] = print,
    absent: dict[str, str] | None = None,
    others: Callable[[], float] | None = None,
) -> dict[str, list[float]]:
    """Run every contender once per round. One that raises leaves the race: it is not in the result, and its reason
    goes into `absent`. With `others` (see `Others`), a run beside which other processes were busy is made again."""
    values: dict[str, list[float]] = {name: [] for name in contenders}
    for round_index in range(rounds):
        # There and back, so that nobody always runs right after the same neighbour.
        order = list(values) if round_index % 2 == 0 else list(reversed(values))
        for name in order:
            start = time.perf_counter()
            try:
                value = float(contenders[name]())
                for _ in range(MOST_REPEATS if others is not None else 0):
                    share = others() if others is not None else 0.0
                    if share <= MOST_OF_OTHERS:
                        break
                    progress(f"[{round_index + 1}/{rounds}] {name}: others took {share:.0%} of a core, once more")
                    start = time.perf_counter()
                    value = float(contenders[name]())
            except Exception as error:
                reason = _anonymous(f"failed in round {round_index + 1} of {rounds}: {type(error).__name__}: {error}")
                del values[name]
                if absent is not None:
                    absent[name] = reason
                progress(f"[{round_index + 1}/{rounds}] {name}: {reason}")
                continue
            values[name].append(value)
            progress(
                f"[{round_index + 1}/{rounds}] {name}: {_number(value)}"
                f"  (median {_number(median(values[name]))}, took {time.perf_counter() - start:.1f} s)"
            )
    return values


class Others:
    """What other processes took of one core since the last call: all that was busy, less our own and our children."""

    def __init__(self) -> None:
        self._before = self._now()

    def __call__(self) -> float:
        now = self._now()
        busy_s, own_s, wall_s = (after - before for after, before in zip(now, self._before, strict=True))
        self._before = self._now()
        return max(0.0, busy_s - own_s) / max(wall_s, 1e-9)

    def _now(self) -> tuple[float, float, float]:
        fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        idle = fields[3] + fields[4]  # idle, iowait
        return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK"), sum(os.times()[:4]), time.perf_counter()


def report(
    claims: Sequence[Claim],
    json_path: Path | None,
    absent: Mapping[str, str],
    extra: Mapping[str, Any] | None = None,
) -> None:
    machine = host()
    rows = [("name", "value", "baseline", "ratio", "goal", "holds")]
    for claim in claims:
        ratio = "-" if claim.ratio is None else f"{claim.ratio:.2f}x"
        holds = {True: "yes", False: "NO", None: "-"}[claim.holds]
        value = f"{_number(claim.value)} {claim.unit}".rstrip()
        rows.append((claim.name, value, _number(claim.baseline), ratio, str(claim.goal), holds))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    print()
    print(
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, torch {machine['torch']}, "
        f"Gymnasium {machine['gymnasium']}, load {machine['load_average'][0]:.2f}"
    )
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for name, reason in absent.items():
        print(f"absent: {name}: {reason}")
    if json_path is not None:
        document = {
            "host": machine,
            "claims": [asdict(claim) for claim in claims],
            "absent": dict(absent),
            "extra": dict(extra or {}),
        }
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps(document, indent=2) + "\n")


def earlier(json_path: Path | None, is_part: bool, key: str) -> Any:
    """What an earlier run of some of the parts left in the report, by its key of `extra`; None if all are run anew."""
    if not is_part or json_path is None or not json_path.exists():
        return None
    return json.loads(json_path.read_text())["extra"].get(key)


def peer(name: str, install: bool = True, progress: Callable[[str], object] = print) -> PeerPython | Absent:
    """The peer's Python, installing it the first time; never raises."""
    try:
        return _peer(name, install, progress)
    except Exception as error:
        return Absent(_anonymous(str(error)))


def run_peer(name: str, *args: str, timeout_s: float) -> dict[str, Any]:
    """Run the driver of an installed peer; its last line of stdout is the answer. Never installs: call peer() first."""
    found = peer(name, install=False)
    if isinstance(found, Absent):
        raise PeerError(f"{name}: {found.reason}")
    # -I keeps our PYTHONPATH out, and the driver's own folder: tianshou.py there is not the library.
    return _driven(name, [str(found.executable), "-I", str(PEERS / f"{name}.py"), *args], timeout_s)


def run_ours(*args: str, timeout_s: float) -> dict[str, Any]:
    """headrace in a fresh process of its own, as the peers are."""
    return run_script(str(ROOT / "benchmarks" / "ours.py"), *args, timeout_s=timeout_s)


def run_script(path: str, *args: str, timeout_s: float) -> dict[str, Any]:
    """A script that prints a JSON object as its last line, in a fresh process of this Python."""
    return _driven("headrace", [sys.executable, path, *args], timeout_s)


def _driven(name: str, command: Sequence[str], timeout_s: float) -> dict[str, Any]:
    # A scratch directory: PufferLib links its resources into the working directory, others write checkpoints.
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as scratch:
        output = _run(command, Path(scratch), timeout_s)
    try:
        answer = json.loads(output.strip().splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise PeerError(f"{name} printed no JSON object as its last line but: {output[-500:]!r}") from error
    if not isinstance(answer, dict):
        raise PeerError(f"{name} printed {answer!r} as its last line, not a JSON object")
    return answer


def _peer(name: str, install: bool, progress: Callable[[str], object]) -> PeerPython | Absent:
    requirements, driver, build = PEERS / f"{name}.requirements.txt", PEERS / f"{name}.py", PEERS / f"{name}_build.py"
    if not (requirements.exists() and driver.exists()):
        return Absent(f"no requirements or driver for it in {PEERS.relative_to(ROOT)}")
    recipe = requirements.read_bytes() + (build.read_bytes() if build.exists() else b"")
    done = hashlib.sha256(recipe + TORCH.encode() + platform.python_version().encode()).hexdigest()
    venv, marker = VENVS / name, VENVS / name / "installed.sha256"
    found = PeerPython(name, venv / "bin" / "python")
    if marker.exists() and marker.read_text() == done:
        return found
    if not install:
        return Absent("not installed yet")

    VENVS.mkdir(exist_ok=True)
    python = str(found.executable)
    steps = [
        ("creating its venv", [sys.executable, "-m", "venv", "--clear", str(venv)]),
        (f"installing {TORCH}", [python, "-m", "pip", "install", "--quiet", TORCH]),
        (f"installing {requirements.name}", [python, "-m", "pip", "install", "--quiet", "-r", str(requirements)]),
    ]
    if build.exists():
        steps.append((f"running {build.name}", [python, "-I", str(build)]))
    with (VENVS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two scripts started together must not fill one venv
        if marker.exists() and marker.read_text() == done:
            return found
        for what, command in steps:
            progress(f"peer {name}: {what} ...")
            start = time.perf_counter()
            _run(command, VENVS, INSTALL_TIMEOUT_S)
            progress(f"peer {name}: {what}: done in {time.perf_counter() - start:.0f} s")
        marker.write_text(done)
    return found


def _run(command: Sequence[str], folder: Path, timeout_s: float) -> str:
    """Stdout of a command that runs in a session of its own; nothing of its process tree outlives the call."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    # Files, not pipes: a grandchild that keeps a pipe open would keep us reading after the command has ended.
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            ended = f"exit code {process.wait(timeout_s)}"
        except subprocess.TimeoutExpired:
            ended = f"no end after {timeout_s:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        texts = []
        for stream in (stdout, stderr):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    if ended != "exit code 0":
        tail = "\n".join((texts[1].strip() or texts[0].strip()).splitlines()[-15:])
        raise PeerError(_anonymous(f"`{' '.join(command)}`: {ended}; its last words:\n{tail}"))
    return texts[0]


def _anonymous(text: str) -> str:
    """Reports are published: no package registry, and of every absolute path only the file name."""
    text = re.sub(r"\b(?:https?|file)://\S+", "<url>", text)
    return re.sub(r"(?<![\w.])(?:/[\w.@+-]+)+/(?=[\w.@+-])", "", text)


def _installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
