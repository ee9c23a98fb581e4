"""Recorded schedules of asynchronous runs, and the command lines that replay them inline.

    python -m support.golden_schedules     learn with slow worker processes -> determinism/golden/<name>.jsonl
    arguments(name)                        headrace train ... --schedule FILE: the same bits, on any machine's own

A schedule says which version acted in which row and what was consumed when; that is all that chance decided. So the
files were recorded once and hold for every machine. The environment that recorded them is slow in workers only; it is
support.bit_envs:Noisy otherwise.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headrace as hr
from support.command import result_of, run

FOLDER = Path(__file__).parents[1] / "determinism" / "golden"
SEED = 43
N_ENVS, N_STEPS, UPDATES = 8, 16, 10
TOTAL = N_ENVS * N_STEPS * UPDATES
# The last shard is slower: the others are a version ahead of it, and it picks up new weights in the middle of slabs.
SLOWER_LAST: dict[str, Any] = {"delay_s": 2e-4, "slow": [6, 7], "slow_s": 4e-3, "seed": SEED}
# So slow that batches of the others go by: what it acted is too old when it comes.
FAR_BEHIND: dict[str, Any] = {"delay_s": 1e-4, "slow": [6, 7], "slow_s": 8e-3, "seed": SEED}


@dataclass(frozen=True)
class Recording:
    """An asynchronous run: its options as Python and the command line both take them, and who is slow."""

    options: Mapping[str, Any]
    delays: Mapping[str, Any]
    activation: str = "tanh"

    @property
    def all_options(self) -> dict[str, Any]:
        """Everything but the policy's."""
        common: dict[str, Any] = {"n_envs": N_ENVS, "n_steps": N_STEPS, "batch_size": 24, "n_epochs": 3, "seed": SEED}
        place: dict[str, Any] = {"topology": "processes", "workers": 4, "pick_up_rows": 2}
        return common | place | dict(self.options)


RECORDINGS = {
    "weight": Recording({"late": "weight", "max_lag": 1, "learning_rate": 3e-3}, SLOWER_LAST),
    "vtrace": Recording(
        {"late": "vtrace", "max_lag": 2, "gradients": "autograd", "clip_range_vf": 0.4, "late_clip": 0.9},
        SLOWER_LAST,
        "relu",
    ),
    "reject": Recording(
        {"late": "reject", "max_lag": 1, "batch": "first_come", "ent_coef": "lin_0.01", "n_epochs": 6}, FAR_BEHIND
    ),
}


def schedule_file(name: str) -> Path:
    """Where a recorded schedule is."""
    return FOLDER / f"{name}.jsonl"


def arguments(name: str, run_dir: Path, schedule: Path | None = None) -> list[str]:
    """The command line of a replay."""
    recording = RECORDINGS[name]
    options = {"activation": recording.activation, "total_timesteps": TOTAL, "run_dir": run_dir} | recording.all_options
    named = [text for option, value in options.items() for text in (f"--{option.replace('_', '-')}", str(value))]
    schedule = schedule or schedule_file(name)
    return ["train", "support.bit_envs:Noisy", *named, "--schedule", str(schedule), "--quiet"]


@dataclass(frozen=True)
class Seen:
    """What a schedule shows."""

    updates: int
    changes: int  # slabs in which the weights changed
    late: int  # slabs that were acted, at least in part, by an older version than the latest


def seen_in(schedule: Path) -> Seen:
    """Read from the file, not through headrace."""
    lines = [json.loads(line) for line in schedule.read_text().splitlines()]
    slabs = [(line["version"], [version for _, version in runs]) for line in lines for *_, runs in line["slabs"]]
    return Seen(
        len(lines), sum(len(versions) > 1 for _, versions in slabs), sum(min(them) < latest for latest, them in slabs)
    )


def record(name: str, folder: Path) -> str:
    """Learn with workers, keep the schedule if it shows what it is for and replays to the same bits; else say why."""
    recording, run_dir = RECORDINGS[name], folder / "recorded"
    with hr.PPO(
        "MlpPolicy",
        "support.worker_envs:dawdling",
        env_kwargs=recording.delays,
        policy_kwargs={"activation": recording.activation},
        **recording.all_options,
    ) as model:
        model.learn(TOTAL, run_dir=run_dir)
    seen, want = seen_in(run_dir / "schedule.jsonl"), result_of(run_dir)
    if seen.changes < 4 or seen.late < 4 or (name == "reject") != (want["ledger"]["rejected"] > 0):
        return f"{name}: shows too little, record it again: {seen}, ledger {want['ledger']}"
    replayed = folder / "replayed"
    outcome = run(*arguments(name, replayed, run_dir / "schedule.jsonl"), cwd=folder)
    got = result_of(replayed)
    if any(got[part] != want[part] for part in ("weights_sha256", "optimizer_sha256", "ledger")):
        return f"{name}: the replay gave other bits:\n{outcome.out}{outcome.err}"
    schedule_file(name).write_bytes((run_dir / "schedule.jsonl").read_bytes())
    return f"{name}: {seen}, ledger {want['ledger']}"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for missing in [name for name in RECORDINGS if not schedule_file(name).exists()]:
        with tempfile.TemporaryDirectory() as scratch:
            print(record(missing, Path(scratch)))
    sys.exit(0 if all(schedule_file(name).exists() for name in RECORDINGS) else 1)
