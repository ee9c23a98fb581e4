"""The fixture of tests/conftest.py can fail, and only for what is the test's own.

two pytests at once, one of them with pytest-xdist  ──┬── each leaks what it can, one kind a test: named
a stranger beside them, and each beside the other   ──┘── what others have in /dev/shm: no word about it
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support import belongings
from support.stranger import DEEDS

TESTS = Path(__file__).resolve().parents[1]

# What is no leak gets all the time it needs; what is one is waited for in vain.
CONFTEST = """
{conftest}

def pytest_runtest_setup(item):
    globals()["GRACE_S"] = 0.3 if "leaks" in item.name else 30.0
"""

LEAKY_TESTS = """
import mmap, multiprocessing, os, signal, subprocess, sys, threading, time
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from headrace.memory.segment import SharedSegment
from support.stranger import DEEDS, ask
from support.waiting import wait_until

kept = []
SLEEPER = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
SHARED_MEMORY = Path("/dev/shm")
ROLE, MEETING, STRANGER = os.environ["ROLE"], Path(os.environ["MEETING"]), os.environ["STRANGER"]


def sleep_long():
    time.sleep(60)


def note(name):
    '''Whoever runs this pytest removes it afterwards.'''
    with open(MEETING / "made", "a") as made:
        made.write(f"{name}\\n")


def test_clean():
    segment = shared_memory.SharedMemory(create=True, size=64)
    segment.close()
    segment.unlink()
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        pool.apply(int)
        pool.close()
        pool.join()
    subprocess.run([sys.executable, "-S", "-c", ""], check=True)


def test_thread_that_ends_in_time():
    threading.Thread(target=time.sleep, args=(0.1,)).start()


def test_garbage_is_not_counted():
    cycle = [open(__file__)]
    cycle.append(cycle)


def test_leaks_process():
    kept.append(subprocess.Popen(SLEEPER))


def test_leaks_forkserver_worker():
    worker = multiprocessing.get_context("forkserver").Process(target=sleep_long, daemon=True)
    worker.start()
    kept.append(worker)


def test_leaks_zombie():
    worker = subprocess.Popen([sys.executable, "-S", "-c", ""])
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    kept.append(worker)


def test_leaks_orphan():
    subprocess.run(["sh", "-c", "sleep 60 & exit 0"], check=True)


def test_orphan_that_exits():
    subprocess.run(["sh", "-c", "sleep 0.1 & exit 0"], check=True)


def test_leaks_thread():
    stop = threading.Event()
    kept.append(stop)
    threading.Thread(target=stop.wait, name="left-over", daemon=True).start()


def test_leaks_descriptor():
    kept.append(open(__file__))


# ------------------------------------------------------------------------------------------------ our shared memory


def test_leaks_shared_memory_in_use():
    name = f"leak_{ROLE}"
    note(name)
    with open(SHARED_MEMORY / name, "xb+") as file:
        file.truncate(64)
        kept.append(mmap.mmap(file.fileno(), 64))


def test_leaks_shared_memory_that_nobody_uses():
    segment = shared_memory.SharedMemory(create=True, size=64)
    segment.close()
    print("made", segment.name)


def create_and_die(line):
    segment = shared_memory.SharedMemory(create=True, size=64)
    line.send(segment.name)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_leaks_shared_memory_of_a_killed_worker(method):
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    with ours, theirs:
        worker = context.Process(target=create_and_die, args=(theirs,))
        worker.start()
        print("made", ours.recv())
        worker.join()
        assert worker.exitcode == -signal.SIGKILL
        worker.close()


SEGMENT = '''
import os, signal, sys
from headrace.memory.segment import SharedSegment
segment = SharedSegment.create(64)
print(segment.name, flush=True)
sys.stdin.read()
'''


PROGRAM = [sys.executable, "-c", SEGMENT]


@pytest.mark.parametrize(
    "command", [PROGRAM, ["sh", "-c", '"$0" "$@"; true', *PROGRAM]], ids=["program", "program of a program"]
)
def test_leaks_shared_memory_of_a_program_killed_with_its_tracker(command):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    program = subprocess.Popen(command, **pipes, start_new_session=True)
    name = program.stdout.readline().strip()
    note(name)
    print("made", name)
    os.killpg(program.pid, signal.SIGKILL)
    program.communicate()
    assert (SHARED_MEMORY / name).exists()


def test_leaks_a_segment_of_ours():
    kept.append(SharedSegment.create(64))
    print("made", kept[-1].name)


def test_leaks_what_loky_and_joblib_call_so():
    name, folder = f"sem.loky-{os.getpid()}-{ROLE}", f"joblib_memmapping_folder_{os.getpid()}_{ROLE}"
    (SHARED_MEMORY / name).touch()
    (SHARED_MEMORY / folder).mkdir()
    note(name), note(folder)
    print("made", name)
    print("made", folder)


# ------------------------------------------------------------------------------------- the shared memory of others


@pytest.mark.parametrize("what", DEEDS)
def test_a_stranger(what):
    assert ask(STRANGER, what).exists()


def test_another_pytest_has_things_while_we_look():
    if ROLE == "second":
        segment, other = SharedSegment.create(64), shared_memory.SharedMemory(create=True, size=64)
        worker = subprocess.Popen(SLEEPER)
        (MEETING / "held").touch()
        wait_until((MEETING / "looked").exists)
        worker.kill()
        worker.wait()
        other.close()
        other.unlink()
        segment.unlink()
    else:
        wait_until((MEETING / "held").exists)


def test_now_we_have_looked():
    (MEETING / "looked").touch()
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, str]]]:
    """For each leaky test what it printed and what the fixture said, nothing when it passed; once for each pytest."""
    folder = tmp_path_factory.mktemp("leaks")
    (folder / "conftest.py").write_text(CONFTEST.format(conftest=(TESTS / "conftest.py").read_text()))
    (folder / "test_leaky.py").write_text(LEAKY_TESTS)
    (folder / "made").touch()
    address = str(folder / "stranger")
    stranger = subprocess.Popen(
        [sys.executable, TESTS / "support" / "stranger.py", address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    pytests: list[subprocess.Popen[str]] = []
    try:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == b"ready\n"
        for role, options in (("first", ["-p", "no:xdist"]), ("second", ["-n", "1"])):
            inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
            environment = inherited | {"ROLE": role, "MEETING": str(folder), "STRANGER": address}
            options += ["-q", "-p", "no:cacheprovider", "-o", f"pythonpath={TESTS}", "-o", "junit_logging=out-err"]
            options += [f"--rootdir={folder}", f"--junit-xml={folder / role}.xml"]
            command = [sys.executable, "-m", "pytest", *options, str(folder)]
            pytests.append(subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True))
        said = [one.communicate(timeout=240)[0] for one in pytests]
    finally:
        for one in pytests:
            one.kill()
            one.communicate()
        stranger.communicate()
        for name in (folder / "made").read_text().split():
            path = Path("/dev/shm", name)
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
    found: dict[str, list[tuple[str, str]]] = {}
    for role, log in zip(("first", "second"), said, strict=True):
        assert (folder / f"{role}.xml").exists(), log
        for case in ElementTree.parse(folder / f"{role}.xml").getroot().iter("testcase"):
            assert case.find("failure") is None, f"{case.get('name')} failed by itself: {case.find('failure').text}"
            complaint = case.findtext("error", "")
            found.setdefault(case.get("name", ""), []).append((case.findtext("system-out", ""), complaint))
    return found


LEAKS = {
    "test_leaks_process": "time.sleep(60)",
    "test_leaks_forkserver_worker": "forkserver",
    "test_leaks_zombie": "exited but never reaped",
    "test_leaks_orphan": "(sleep 60)",
    "test_leaks_thread": "thread 'left-over', daemon",
    "test_leaks_descriptor": "test_leaky.py",
    "test_leaks_shared_memory_in_use": "shared memory /dev/shm/leak_",
}
LEAKS_THAT_SAY_THEIR_NAME = [
    "test_leaks_shared_memory_that_nobody_uses",
    *(f"test_leaks_shared_memory_of_a_killed_worker[{method}]" for method in ("fork", "forkserver", "spawn")),
    "test_leaks_shared_memory_of_a_program_killed_with_its_tracker[program]",
    "test_leaks_shared_memory_of_a_program_killed_with_its_tracker[program of a program]",
    "test_leaks_a_segment_of_ours",
    "test_leaks_what_loky_and_joblib_call_so",
]


@pytest.mark.parametrize(("test_name", "said"), LEAKS.items())
def test_a_leak_is_named(outcomes: dict[str, list[tuple[str, str]]], test_name: str, said: str) -> None:
    assert len(outcomes[test_name]) == 2
    for _, complaint in outcomes[test_name]:
        assert "the test left behind" in complaint
        assert said in complaint


@pytest.mark.parametrize("test_name", LEAKS_THAT_SAY_THEIR_NAME)
def test_shared_memory_is_named_and_nothing_else(outcomes: dict[str, list[tuple[str, str]]], test_name: str) -> None:
    assert len(outcomes[test_name]) == 2
    for printed, complaint in outcomes[test_name]:
        made = [line.split()[1] for line in printed.splitlines() if line.startswith("made ")]
        assert made
        named = [line.split("/dev/shm/")[1] for line in complaint.splitlines() if "shared memory" in line]
        assert sorted(named) == sorted(made)


@pytest.mark.parametrize(
    "test_name",
    [
        "test_clean",
        "test_thread_that_ends_in_time",
        "test_garbage_is_not_counted",
        "test_orphan_that_exits",
        *(f"test_a_stranger[{what}]" for what in DEEDS),
        "test_another_pytest_has_things_while_we_look",
        "test_now_we_have_looked",
    ],
)
def test_what_is_no_leak_passes(outcomes: dict[str, list[tuple[str, str]]], test_name: str) -> None:
    assert [complaint for _, complaint in outcomes[test_name]] == ["", ""]


def test_every_case_was_looked_at(outcomes: dict[str, list[tuple[str, str]]]) -> None:
    passed = {name for name, twice in outcomes.items() if not any(complaint for _, complaint in twice)}
    assert set(outcomes) - passed == {*LEAKS, *LEAKS_THAT_SAY_THEIR_NAME}


def test_the_id_of_a_process_of_ours_may_be_given_to_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    names = frozenset({"headrace-1-0123456789abcdef", f"headrace-{os.getpid()}-0123456789abcdef"})
    monkeypatch.setattr(belongings, "_pids_of_ours", {1, os.getpid()})
    assert belongings.only_ours(names) == {f"headrace-{os.getpid()}-0123456789abcdef"}
