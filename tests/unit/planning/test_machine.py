"""What is wrong with a machine: every finding where it is true, and silence where it would be a lie."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.memory.orphans import Sighting, Standing
from headrace.planning.finding import Finding
from headrace.planning.machine import granted_cores, judge
from headrace.runtime.cgroup import Grant
from headrace.runtime.machine import Clock, Machine, SharedMemory

GB = 10**9
SOUND = Machine(
    SharedMemory("/dev/shm", 8 * GB, 8 * GB, ""),
    8,
    8,
    1.0,
    Grant(),
    {},
    {"open_files": 1024, "processes": None, "address_space_bytes": None, "file_size_bytes": None},
    50,
    Clock(0, 30, 60.0, 1.0, "tsc"),
    16 * GB,
)


def found(machine: Machine, name: str, **others: Any) -> Finding:
    (one,) = [one for one in judge(machine, **others) if one.name == name]
    return one


def with_limit(name: str, value: int | None) -> Machine:
    return replace(SOUND, limits={**SOUND.limits, name: value})


def shm(free: int, refusal: str = "") -> Machine:
    return replace(SOUND, shared_memory=SharedMemory("/dev/shm", max(free, 64_000_000), free, refusal))


CASES = [
    # Matter, machine, level, a part of what is said.
    ("shared memory", shm(8 * GB), "ok", "8 GB of 8 GB free"),
    ("shared memory", shm(64_000_000), "warning", "--shm-size"),
    ("shared memory", shm(1_000_000), "problem", "too little"),
    ("shared memory", shm(8 * GB, "Permission denied"), "problem", "can't be used: Permission denied"),
    ("cores", replace(SOUND, cores_seen=64, cores_allowed=64, granted=Grant(1.0)), "warning", "--workers 1"),
    ("cores", replace(SOUND, cores_seen=64, cores_allowed=64, granted=Grant(0.5)), "warning", "--workers 1"),
    ("cores", replace(SOUND, cores_seen=64, cores_allowed=64, granted=Grant(3.5)), "warning", "--workers 3"),
    ("cores", replace(SOUND, cores_seen=64, cores_allowed=1), "ok", "may use 1 of them"),  # programs count 1 as well
    ("cores", replace(SOUND, granted=Grant(8.0)), "ok", "8 cores"),
    ("cores", replace(SOUND, granted=Grant(64.0)), "ok", "8 cores"),
    ("load", SOUND, "ok", "1.0"),
    ("load", replace(SOUND, load=20.0), "warning", "too slow"),
    ("load", replace(SOUND, load=8.0), "ok", "8.0"),
    ("BLAS threads", SOUND, "ok", "not set"),
    ("BLAS threads", replace(SOUND, granted=Grant(1.0)), "warning", "OMP_NUM_THREADS=1"),
    (
        "BLAS threads",
        replace(SOUND, granted=Grant(1.0), thread_variables={"OMP_NUM_THREADS": "1"}),
        "ok",
        "OMP_NUM_THREADS=1",
    ),
    ("BLAS threads", replace(SOUND, thread_variables={"OMP_NUM_THREADS": "8"}), "ok", "=8"),
    ("BLAS threads", replace(SOUND, thread_variables={"MKL_NUM_THREADS": "64"}), "warning", "slow one another down"),
    ("BLAS threads", replace(SOUND, thread_variables={"OMP_NUM_THREADS": "many"}), "warning", "a whole number"),
    ("BLAS threads", replace(SOUND, thread_variables={"OMP_NUM_THREADS": "0"}), "warning", "a whole number"),
    ("memory", SOUND, "ok", "16 GB available"),
    ("memory", replace(SOUND, memory_available_bytes=GB), "warning", "--workers 1"),
    ("memory", replace(SOUND, memory_available_bytes=GB // 10), "problem", "end other programs"),
    ("memory", replace(SOUND, granted=Grant(memory_left_bytes=GB // 10)), "problem", "in this container"),
    ("memory", replace(SOUND, granted=Grant(memory_left_bytes=90 * GB)), "ok", "16 GB available"),
    ("memory", replace(SOUND, memory_available_bytes=None), "warning", "can't be read"),
    ("open files", with_limit("open_files", 1024), "ok", "1,024"),
    ("open files", with_limit("open_files", None), "ok", "no limit"),
    ("open files", with_limit("open_files", 70), "warning", "ulimit -n 1024"),
    ("open files", with_limit("open_files", 50), "problem", "ulimit -n 1024"),
    ("processes", SOUND, "ok", "no limit"),
    ("processes", with_limit("processes", 4096), "ok", "4,046 more"),
    ("processes", with_limit("processes", 70), "warning", "20 more"),
    ("processes", with_limit("processes", 40), "problem", "0 more"),
    ("processes", replace(SOUND, granted=Grant(processes_left=3)), "problem", "--pids-limit"),
    ("address space", SOUND, "ok", "no limit"),
    ("address space", with_limit("address_space_bytes", GB), "problem", "ulimit -v unlimited"),
    ("address space", with_limit("address_space_bytes", 4 * GB), "warning", "ulimit -v unlimited"),
    ("address space", with_limit("address_space_bytes", 64 * GB), "ok", "64 GB"),
    ("file size", SOUND, "ok", "no limit"),
    ("file size", with_limit("file_size_bytes", 1_000_000), "problem", "ulimit -f"),
    ("file size", with_limit("file_size_bytes", 50_000_000), "warning", "ulimit -f"),
    ("file size", with_limit("file_size_bytes", GB), "ok", "1 GB"),
    ("clock", SOUND, "ok", "rate 1.0000 (tsc)"),
    ("clock", replace(SOUND, clock=Clock(3, 30, 60.0, 1.0, "")), "problem", "went back 3 times"),
    ("clock", replace(SOUND, clock=Clock(0, 0, 60.0, 0.0, "")), "problem", "stands still"),
    ("clock", replace(SOUND, clock=Clock(0, 30, 60.0, 0.9, "")), "warning", "wrong by that much"),
    ("clock", replace(SOUND, clock=Clock(0, 10_000_000, 60.0, 1.0, "")), "warning", "wrong by that much"),
    ("clock", replace(SOUND, clock=Clock(0, 30, 9_000.0, 1.0, "hpet")), "warning", "use the clock source tsc"),
    ("clock", replace(SOUND, clock=Clock(0, 30, 9_000.0, 1.0, "tsc")), "warning", "tsc is the fastest source"),
    ("clock", replace(SOUND, clock=Clock(0, 30, 60.0, 1.0004, "")), "ok", "1.0004"),  # a clock that is being set right
]


@pytest.mark.parametrize(("name", "machine", "level", "part"), CASES)
def test_a_finding_is_as_bad_as_it_is(name: str, machine: Machine, level: str, part: str) -> None:
    one = found(machine, name)
    assert one.level == level
    assert part in f"{one.found} {one.advice}"
    assert bool(one.advice) == (level != "ok"), "whatever is wrong comes with what to do, and nothing else does"


def test_a_sound_machine_has_no_complaint() -> None:
    assert {one.level for one in judge(SOUND)} == {"ok"}
    assert granted_cores(SOUND) == 8


def test_what_a_run_needs_is_compared_with_what_is_free() -> None:
    small = shm(64_000_000)
    assert found(small, "shared memory", needed_bytes=1e6).level == "ok", "who knows the need needs no guess"
    assert found(small, "shared memory", needed_bytes=65e6).level == "problem"
    assert found(SOUND, "shared memory", needed_bytes=9 * GB).level == "problem"


@pytest.mark.parametrize(
    ("standing", "level", "part"),
    [
        ("orphan", "warning", "1 of dead runs, 5 KB"),
        ("live", "ok", "1 in use"),
        ("held", "ok", "1 in use"),
        ("unknown", "ok", "left alone"),
        ("foreign", "ok", "none"),
    ],
)
def test_only_segments_of_dead_runs_are_left_over(standing: Standing, level: str, part: str) -> None:
    one = found(SOUND, "leftovers", segments=[Sighting("headrace-1-2-ab", 5_000, standing)])
    assert one.level == level
    assert part in one.found
    assert ("--clean" in one.advice) == (standing == "orphan")


def test_folders_of_dead_runs() -> None:
    assert found(SOUND, "folders").level == "ok"
    one = found(SOUND, "folders", folders=["/tmp/headrace-agents-1-2-ab"])
    assert (one.level, "rm -r" in one.advice) == ("warning", True)
