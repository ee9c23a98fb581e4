"""What is read of a machine: control groups of both kinds, shared memory that refuses, clocks that misbehave."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from headrace.memory.segment import DIRECTORY
from headrace.runtime.cgroup import Grant, grant
from headrace.runtime.machine import available_bytes, look_at_clock, read_machine, shared_memory


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, Grant()),
        ({"proc/self/cgroup": "0::/\n"}, Grant()),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "max 100000\n", f"{V2}/memory.max": "max\n"}, Grant()),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "150000 100000\n"}, Grant(cores=1.5)),
        # The tightest of a group and those above it counts.
        (
            {"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/cpu.max": "50000 100000", f"{V2}/a/b/cpu.max": "max 100000"},
            Grant(cores=0.5),
        ),
        # Inside of a container: the path is the host's, and the files are at the top.
        ({"proc/self/cgroup": "0::/docker/abc\n", f"{V2}/cpu.max": "100000 100000"}, Grant(cores=1.0)),
        ({"proc/self/cgroup": "0::/../other\n", f"{V2}/other/cpu.max": "100000 100000"}, Grant()),
        (
            {
                "proc/self/cgroup": "0::/\n",
                f"{V2}/memory.max": "1000\n",
                f"{V2}/memory.current": "900\n",
                f"{V2}/memory.stat": "anon 500\ninactive_file 300\n",
                f"{V2}/pids.max": "100\n",
                f"{V2}/pids.current": "98\n",
            },
            Grant(memory_left_bytes=400, processes_left=2),
        ),
        # v1
        (
            {
                "proc/self/cgroup": "4:memory:/x\n1:cpu,cpuacct:/\n",
                f"{V2}/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
                f"{V2}/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
                f"{V2}/memory/memory.limit_in_bytes": "9223372036854771712\n",
                f"{V2}/memory/memory.usage_in_bytes": "5\n",
                f"{V2}/memory/x/memory.limit_in_bytes": "1000\n",
                f"{V2}/memory/x/memory.usage_in_bytes": "1500\n",
            },
            Grant(cores=2.0, memory_left_bytes=0),
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                f"{V2}/cpu/cpu.cfs_quota_us": "-1\n",
                f"{V2}/cpu/cpu.cfs_period_us": "100000\n",
            },
            Grant(),
        ),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "junk\n", f"{V2}/pids.max": "x\n"}, Grant()),
    ],
)
def test_what_a_container_grants(tmp_path: Path, files: dict[str, str], wanted: Grant) -> None:
    assert grant(tree(tmp_path, files)) == wanted


def test_this_machine_is_read_as_it_is() -> None:
    machine = read_machine(environment={"OMP_NUM_THREADS": "3", "HOME": "x"})
    assert machine.cores_allowed == len(os.sched_getaffinity(0)) <= machine.cores_seen
    assert machine.shared_memory.refusal == ""
    assert 0 < machine.shared_memory.free_bytes <= machine.shared_memory.size_bytes
    assert machine.thread_variables == {"OMP_NUM_THREADS": "3"}
    assert machine.clock.backward_steps == 0
    assert machine.clock.step_ns > 0
    assert machine.user_processes >= 1
    assert machine.memory_available_bytes is not None
    assert not [name for name in os.listdir(DIRECTORY) if name.startswith("headrace-doctor-")]


def test_shared_memory_that_is_not_there_or_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shared_memory(tmp_path / "missing").refusal == os.strerror(errno.ENOENT)
    assert shared_memory(tmp_path).refusal == ""
    assert list(tmp_path.iterdir()) == []

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert shared_memory(tmp_path).refusal == os.strerror(errno.ENOSPC)
    assert list(tmp_path.iterdir()) == []

    def refused(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refused)
    assert shared_memory(tmp_path).refusal == os.strerror(errno.EACCES)


def ticking(step_ns: Callable[[int], int]) -> tuple[Callable[[], int], Callable[[], int], Callable[[float], None]]:
    """A clock that is a function of a true one, which goes on by 10 ns with every reading of either."""
    true = count(0, 10)
    paused = [0]

    def pause(seconds: float) -> None:
        paused[0] += int(seconds * 1e9)

    return lambda: step_ns(next(true) + paused[0]), lambda: next(true) + paused[0], pause


def test_a_clock_that_agrees(tmp_path: Path) -> None:
    tree(tmp_path, {"sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n"})
    clock = look_at_clock(*ticking(lambda ns: ns), tmp_path)
    assert (clock.backward_steps, clock.step_ns, clock.source) == (0, 10, "tsc")
    assert clock.rate == pytest.approx(1.0, abs=1e-3)
    assert clock.reading_ns == pytest.approx(10, rel=0.01)


def test_a_moment_in_which_others_run_is_not_what_a_reading_costs(tmp_path: Path) -> None:
    true, readings = count(0, 10), count()
    away = [0]

    def read_ns() -> int:
        away[0] += 10**9 * (next(readings) == 500)  # the kernel lets another program run for a second
        return next(true) + away[0]

    clock = look_at_clock(read_ns, lambda: next(true) + away[0], lambda _: None, tmp_path)
    assert clock.reading_ns == pytest.approx(10, rel=0.01)


def test_clocks_that_are_slow_coarse_stand_still_or_go_back(tmp_path: Path) -> None:
    assert look_at_clock(*ticking(lambda ns: ns // 2), tmp_path).rate == pytest.approx(0.5, abs=1e-3)
    assert look_at_clock(*ticking(lambda ns: ns // 4_000 * 4_000), tmp_path).step_ns == 4_000
    still = look_at_clock(*ticking(lambda ns: 7), tmp_path)
    assert (still.step_ns, still.rate) == (0, 0.0)
    assert look_at_clock(*ticking(lambda ns: -ns), tmp_path).backward_steps > 1_000


@pytest.mark.parametrize("text", [None, "", "MemFree: 5 kB\n", "MemAvailable:\n", "MemAvailable: x kB\n"])
def test_memory_that_can_not_be_read_is_not_known(tmp_path: Path, text: str | None) -> None:
    root = tmp_path if text is None else tree(tmp_path, {"proc/meminfo": text})
    assert available_bytes(root) is None
    assert available_bytes(tree(tmp_path, {"proc/meminfo": "MemFree: 5 kB\nMemAvailable:  7 kB\n"})) == 7 * 1024
