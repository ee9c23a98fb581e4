"""Points 10, 11, 12, 19 and 20: too little memory, full disks, damaged and hostile files, two writers.

Full file systems are real ones: a tmpfs of a few megabytes in a mount namespace of its own (unshare).
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import headrace as hr
from chaos_points.kit import Scale, Shown, all_of, at_most, none_of, python, say
from headrace.checkpoints.snapshot import find_latest, load
from headrace.errors import CheckpointError, HeadraceError
from support.command import PATHS, TINY, end, run, start
from support.doctored import doctor, malformed, names_env

UNSHARE = ("unshare", "--user", "--map-root-user", "--mount", "--propagation", "private", "sh", "-c")


def in_namespace(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A shell script that may mount; PYTHON is this interpreter."""
    environment = {**os.environ, "PYTHONPATH": PATHS, "PYTHON": sys.executable}
    return subprocess.run(
        [*UNSHARE, script, "sh", *arguments], env=environment, capture_output=True, text=True, timeout=200, check=False
    )


@contextmanager
def small_checkpoint() -> Iterator[Path]:
    """A run directory with one checkpoint of a tiny network."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        with hr.PPO("MlpPolicy", "CartPole-v1", n_envs=2, n_steps=4, batch_size=4, n_epochs=1, seed=1,
                    topology="inline", policy_kwargs={"net_arch": [4]}) as model:  # fmt: skip
            model.learn(48)
            model.save(Path(name) / "it")
        yield Path(name) / "it"


# ---------------------------------------------------------------------------------------------------------- full memory

HUGE = """
import sys
import headrace as hr
from headrace.errors import HeadraceError
started = []
from headrace.runtime import standby
take = standby.Standby.take
def noted(self, name):
    started.extend([name] * name.startswith("headrace-worker"))  # and not who looks at the environment beforehand
    return take(self, name)
standby.Standby.take = noted
try:
    steps = int(sys.argv[1])
    with hr.PPO("MlpPolicy", "CartPole-v1", n_envs=64, n_steps=steps, topology="processes", workers=2) as model:
        model.learn(64 * steps)
    print("trained", len(started))
except HeadraceError as error:
    print("refused", len(started), str(error))
"""


def little_shared_memory(scale: Scale) -> Shown:
    """Point 10."""
    script = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$PYTHON" -c "$1" "$2"'
    found = {}
    for steps in (16, 20_000):
        begun = time.monotonic()
        done = in_namespace(script, HUGE, str(steps))
        found[steps] = (done.returncode, done.stdout.strip(), time.monotonic() - begun)
        say(f"{steps} steps: exit code {done.returncode}: {done.stdout.strip()[:200] or done.stderr[-300:]}")
    (fits, said, _), (code, refusal, took_s) = found[16], found[20_000]
    is_clear = code == 0 and refusal.startswith("refused 0 ") and "needed" in refusal and "available" in refusal
    return Shown(
        "10",
        "Too little shared memory",
        "A real /dev/shm of 64 MB: a run that fits, and one whose ring does not.",
        [
            all_of("runs that fit and train", int(fits == 0 and said.startswith("trained")), 1, "runs"),
            all_of("refused with needed and available bytes before any worker starts", int(is_clear), 1, "runs"),
            none_of("ends by a signal (SIGBUS)", sum(one[0] < 0 or one[0] > 128 for one in found.values()), 2, "runs"),
            at_most("refusal, with the start of Python", took_s, 30.0),
        ],
        extra={"refusal": refusal},
    )


# ------------------------------------------------------------------------------------------------------------ full disk

SAVES = """
import itertools, sys
import headrace as hr
with hr.PPO("MlpPolicy", "CartPole-v1", n_envs=2, n_steps=4, batch_size=4, n_epochs=1, topology="inline") as model:
    model.learn(8)
    for number in itertools.count(1):
        model.save(f"run/checkpoints/step_{number:012d}" if sys.argv[1] == "many" else "run/checkpoints/step_1")
        print(number, flush=True)
"""
FULL_DISK = """
cd "$1" && mkdir disk && mount -t tmpfs -o size=$3 tmpfs disk && cd disk && "$PYTHON" -c "$2" many >../said 2>../err
echo "$?" >../code
"$PYTHON" -c "
from pathlib import Path
from headrace.checkpoints.snapshot import find_latest
found, snapshot, damaged = find_latest(Path('run'))
print(found.name, len(damaged))" >../latest 2>>../err
"""
READ_ONLY = """
cd "$1" && mkdir disk && mount -t tmpfs -o size=64m tmpfs disk && cd disk || exit 1
("$PYTHON" -c "$2" many >../said 2>../err; echo "$?" >../code) &
while [ ! -s ../said ]; do sleep 0.1; done
until mount -o remount,ro "$1/disk" 2>/dev/null; do :; done  # busy while a file is open for writing
wait
"$PYTHON" -c "
from pathlib import Path
from headrace.checkpoints.snapshot import find_latest
found, snapshot, damaged = find_latest(Path('run'))
print(found.name, len(damaged))" >../latest 2>>../err
"""


def checkpoints_survive(scale: Scale) -> Shown:
    """Point 11."""
    whole, clear = 0, 0
    cases = [("disk full", FULL_DISK, size) for size in ("200k", "1m", "2m")[: 1 if scale.name == "smoke" else None]]
    cases.append(("read-only", READ_ONLY, ""))
    for what, script, size in cases:
        with tempfile.TemporaryDirectory(prefix="chaos-") as name:
            in_namespace(script, name, SAVES, size)
            texts = {one: (Path(name) / one).read_text() for one in ("said", "err", "code", "latest")}
        last = int(texts["said"].split()[-1])
        found, damaged = texts["latest"].split()
        whole += int(found[5:]) == last and damaged == "0"
        clear += texts["code"].strip() == "1" and "CheckpointError: could not write a checkpoint" in texts["err"]
        say(f"{what} {size}: saved {last}, found {found}; {texts['err'].strip().splitlines()[-1][:160]}")
    kills, intact = 2 * scale.times, 0
    for number in range(kills):
        with tempfile.TemporaryDirectory(prefix="chaos-") as name:
            intact += killed_while_saving(Path(name), random.Random(number))
    return Shown(
        "11",
        "Disk full, read-only, or killed while checkpointing",
        "Checkpoints are saved one after the other until a real tmpfs is full "
        f"({', '.join(one[2] for one in cases[:-1])}), "
        f"and one is made read-only; and {kills} times kill -9 at a random moment of a process that saves "
        "over and over.",
        [
            all_of("newest whole checkpoint found after a failed save", whole, len(cases), "disks"),
            all_of("failed saves with one clear error", clear, len(cases), "disks"),
            all_of("whole checkpoint found after kill -9 while saving", intact, kills, "kills"),
        ],
    )


def killed_while_saving(folder: Path, rng: random.Random) -> bool:
    """Whether what was saved last, or what was being saved, is there."""
    environment = {**os.environ, "PYTHONPATH": PATHS}
    mode = rng.choice(["many", "one"])
    with subprocess.Popen(python("-c", SAVES, mode), cwd=folder, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.1))
        process.kill()
        said = process.stdout.read().split()
    found, snapshot, damaged = find_latest(folder / "run")
    last = int(said[-1]) if said else 1
    return not damaged and (mode == "one" or int(found.name[5:]) in (last, last + 1)) and snapshot.state["steps"] == 8


# -------------------------------------------------------------------------------------------------------------- damaged


def damaged_bytes(scale: Scale) -> Shown:
    """Point 12."""
    flipped = cut = unnoticed = 0
    every = max(1, round(1 / scale.share))
    with small_checkpoint() as path:
        size = sum(file.stat().st_size for file in path.iterdir())
        for file in sorted(path.iterdir()):
            data = file.read_bytes()
            for position in range(0, len(data), every):
                broken = bytearray(data)
                broken[position] ^= (0x01, 0x20, 0xFF)[position % 3]
                for content in (bytes(broken), data[:position]):
                    file.write_bytes(content)
                    try:
                        load(path)
                        unnoticed += 1
                    except CheckpointError:
                        pass
                flipped, cut = flipped + 1, cut + 1
            file.write_bytes(data)
        load(path)
        folder = path.parent / "run" / "checkpoints"
        shutil.copytree(path, folder / "step_000000000001")
        shutil.copytree(path, folder / "step_000000000002")
        (folder / "step_000000000002" / "weights.safetensors").write_bytes(b"")
        previous = find_latest(path.parent / "run")[0].name == "step_000000000001"
    return Shown(
        "12",
        "Every flipped byte, every truncation",
        f"A checkpoint of {size:,} bytes: {flipped:,} of them flipped one at a time, and cut off at {cut:,} places.",
        [
            none_of("damage that was not noticed", unnoticed, flipped + cut, "files"),
            all_of("the previous whole checkpoint is used", int(previous), 1, "cases"),
        ],
    )


# -------------------------------------------------------------------------------------------------------------- hostile


def hostile_files(scale: Scale) -> Shown:
    """Point 19, and the fuzz of checkpoints."""
    cases = max(10, round(200 * scale.share))
    raw = refusals = unclear = 0
    chosen = random.Random(12)
    with small_checkpoint() as path, tempfile.TemporaryDirectory(prefix="chaos-") as name:
        state = json.loads((path / "state.json").read_text())
        for number in range(cases):
            new = malformed(state, chosen)
            target = doctor(path, Path(name) / str(number), lambda old, new=new: (old.clear(), old.update(new)))
            try:
                hr.PPO.load(target, topology="inline", workers=1).close()
            except HeadraceError as error:
                refusals += 1
                unclear += "\n" in str(error) or not str(error).isprintable()
            except Exception as error:
                raw += 1
                say(f"case {number}: {type(error).__name__}: {error}")
            shutil.rmtree(target)
        say(f"{cases} malformed checkpoints: {refusals} refused")
        ran, tried, outside = doctored_runs(path, Path(name))
    return Shown(
        "19",
        "Files are data",
        f"{tried} doctored checkpoints that name programs, modules, wrappers and kwargs (loaded, resumed, "
        "evaluated, as a "
        f"configuration), and {cases} checkpoints that are malformed at random behind fitting hashes.",
        [
            none_of("doctored files that ran anything", ran, tried, "files"),
            none_of("raw exceptions from malformed checkpoints", raw, cases, "files"),
            none_of("refusals of more than one printable line", unclear, refusals, "refusals"),
            none_of("files written elsewhere", outside, tried + cases, "files"),
        ],
    )


def doctored_runs(path: Path, folder: Path) -> tuple[int, int, int]:
    """(files that ran something, files tried, files that appeared beside them)."""
    canary = folder / "canary.txt"
    os.environ["HEADRACE_CANARY"] = str(canary)
    touch = f"import pathlib; pathlib.Path({str(canary)!r}).write_text('ran')"
    payloads = [
        {"env": "subprocess:call", "kwargs": {"args": [sys.executable, "-c", touch]}},
        {"env": "subprocess:Popen", "kwargs": {"args": [sys.executable, "-c", touch]}},
        {"env": "builtins:exec", "kwargs": {"source": touch}},
        {"env": "os:system", "kwargs": {"command": f"touch {canary}"}},
        {"env": "support.canary:make"}, {"env": "support.canary:make.__call__"},
        {"env": "support.canary:CartPole-v1"}, {"env": "support.canary:No/Such-v0"},
        {"wrappers": ["support.canary:wrap"]}, {"kwargs": {"additional_wrappers": [1]}},
        {"env": "Ant-v5", "kwargs": {"xml_file": "/etc/passwd"}},
        {"env": "support.canary:make", "kwargs": {"num_envs": 2}},
        {"wrappers": ["gymnasium.wrappers:FlattenObservation", "support.canary:wrap"]},
    ]  # fmt: skip
    ran = tried = 0
    before: set[Path] = set()
    for number, payload in enumerate(payloads):
        out = folder / f"theirs-{number}"
        doctor(path, out / "checkpoints" / "step_000000000048", names_env(**payload))
        ways = ({}, {"weights_only": True, "topology": "inline"})
        before |= set(folder.rglob("*"))
        for way in ways:
            tried += 1
            try:
                hr.PPO.load(out, **way).close()
                ran += 1
            except HeadraceError:
                pass
            ran += heard(canary)
        for command in (("eval", out.name), ("train", "--resume", out.name, "--quiet"), ("replay", out.name, "0:0")):
            tried += 1
            ran += run(*command, cwd=folder).code == 0
            ran += heard(canary)
    time.sleep(0.5)  # for a program that was started
    return ran + heard(canary), tried, len(set(folder.rglob("*")) - before)


def heard(canary: Path) -> bool:
    """Whether it sang since."""
    is_there = canary.exists() or "support.canary" in sys.modules
    canary.unlink(missing_ok=True)
    return is_there


# ---------------------------------------------------------------------------------------------------------- two writers


def one_writer(scale: Scale) -> Shown:
    """Point 20."""
    took, refused, changed = [], 0, 0
    times = max(1, scale.times - 2)
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        arguments = ("support.faulty_envs:Steady", *TINY, "--topology", "inline", "--run-dir", "out")
        run("train", *arguments, "--total-timesteps", "16", cwd=folder)
        out = folder / "out"

        def files() -> dict[str, bytes]:
            return {str(path): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}

        def second(record: dict[str, float]) -> None:
            nonlocal refused, changed
            if took:
                return
            before = files()
            for _ in range(times):
                begun = time.monotonic()
                outcome = end(start("train", "--resume", "out", "--quiet", cwd=folder))
                took.append(time.monotonic() - begun)
                refused += outcome.code == 2 and "another program writes to it" in outcome.err
            begun = time.monotonic()
            refused += run("train", "--resume", "out", "--quiet", cwd=folder).code == 2
            took.append(time.monotonic() - begun)
            changed += files() != before

        with hr.PPO.load(out, env="support.faulty_envs:Steady") as model:
            model.learn(32, second, run_dir=out)
    return Shown(
        "20",
        "One writer per run directory",
        f"While one run writes to a directory, {times} other processes and one call in the same process try "
        "to resume it.",
        [
            all_of("refused with the process that writes", refused, times + 1, "attempts"),
            at_most("refusal in a running Python", took[-1], 1.0),
            at_most("refusal with the start of Python, slowest", max(took[:-1]), 3.0),
            none_of("files of the run changed by them", changed, times + 1, "attempts"),
        ],
    )
