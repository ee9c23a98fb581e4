"""The first look at an environment, before there are workers: one that hangs, crashes or leaves processes behind.

With worker processes it happens in a process of its own; else here, under a timer. Slow is not hung, and a look that
was killed from outside is taken again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.collecting.topology import TopologyConfig
from headrace.envs.seeds import SHORT
from headrace.envs.spec import EnvSpec
from headrace.errors import EnvError, UsageError
from headrace.launch.auto import survey
from support.faulty_envs import ShortSeeds, Steady
from support.waiting import is_gone, wait_until

FOR_EVER_S = 1000.0


class HangsInMake(Steady):
    def __init__(self) -> None:
        super().__init__()
        hangs()


class HangsInReset(Steady):
    def reset(self, **_: Any) -> Any:
        hangs()


class HangsInStep(Steady):
    def step(self, action: Any) -> Any:
        hangs()


class Crashes(Steady):
    def reset(self, **_: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSEGV)


class Slow(Steady):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        time.sleep(seconds)

    def reset(self, **given: Any) -> Any:
        time.sleep(self.seconds)
        return super().reset(**given)


class KilledOnce(Steady):
    def __init__(self, flag: str) -> None:
        super().__init__()
        if not Path(flag).exists():
            Path(flag).touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Spawns(Steady):
    """Has no close()."""

    def __init__(self, flag: str) -> None:
        super().__init__()
        Path(flag).write_text(str(subprocess.Popen(["sleep", "1000"]).pid))


def hangs() -> None:
    time.sleep(FOR_EVER_S)


def look(env: Any, topology: str, ceiling_s: float = 1.0, **kwargs: Any) -> Any:
    config = TopologyConfig(
        n_envs=2, n_steps=4, topology=topology, hang_floor_s=min(1.0, ceiling_s or 1.0), hang_ceiling_s=ceiling_s
    )
    return survey(EnvSpec(env, kwargs), 1, config)


@pytest.mark.parametrize(
    ("env", "topology", "where"),
    [
        (HangsInMake, "processes", "make()"),
        (HangsInReset, "processes", "reset()"),
        (HangsInMake, "inline", "make()"),
        (HangsInReset, "inline", "reset()"),
        (HangsInStep, "auto", "step()"),
    ],
)
def test_a_hang_is_named_with_its_stack(env: Any, topology: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.launch.auto.cpus", lambda: 2)  # so that auto measures
    with pytest.raises(EnvError) as told:
        look(env, topology)
    assert str(told.value).startswith(f"{env.__name__}: hung in {where}: no progress for 1 s; raise hang_ceiling_s")
    assert any("hangs" in note for note in told.value.__notes__)


def test_a_hang_is_waited_for_once(tmp_path: Path) -> None:
    """A second look would take as long again: with tuning in 20 seconds that was a minute."""

    class HangsAndCounts(Steady):
        def __init__(self, flag: str) -> None:
            super().__init__()
            with Path(flag).open("a") as built:
                built.write("one\n")
            time.sleep(FOR_EVER_S)

    flag = tmp_path / "built"
    with pytest.raises(EnvError, match="hung in make") as told:
        look(HangsAndCounts, "processes", flag=str(flag))
    assert flag.read_text() == "one\n"
    assert not any("in a row" in note for note in told.value.__notes__)


@pytest.mark.parametrize("topology", ["processes", "inline"])
def test_slow_is_not_hung(topology: str) -> None:
    """Making and resetting together take longer than the limit, each of them does not."""
    assert look(Slow, topology, 8.0, seconds=4.5).observation.shape == (3,)


def test_the_limit_can_be_switched_off() -> None:
    before = threading.active_count()
    assert look(Slow, "inline", 0.0, seconds=0.0).observation.shape == (3,)
    assert threading.active_count() == before


def test_a_crash_is_named_and_does_not_take_the_learner() -> None:
    with pytest.raises(EnvError) as told:
        look(Crashes, "processes")
    assert str(told.value) == ("Crashes: the process that ran it died in reset(): killed by signal 11 (SIGSEGV)")
    assert "in reset" in told.value.__notes__[0]
    assert told.value.__notes__[1] == "3 times in a row, each time in a fresh process."


def test_a_look_that_was_killed_is_taken_again(tmp_path: Path) -> None:
    assert look(KilledOnce, "processes", flag=str(tmp_path / "flag")).observation.shape == (3,)
    assert (tmp_path / "flag").exists()


@pytest.mark.parametrize("ends", [True, False], ids=["ends", "hangs"])
def test_what_it_spawned_goes_with_it(ends: bool, tmp_path: Path) -> None:
    flag = tmp_path / "pid"

    class SpawnsAndHangs(Spawns):
        def reset(self, **_: Any) -> Any:
            time.sleep(FOR_EVER_S)

    if ends:
        look(Spawns, "processes", flag=str(flag))
    else:
        with pytest.raises(EnvError, match="hung in reset"):
            look(SpawnsAndHangs, "processes", flag=str(flag))
    wait_until(lambda: is_gone(int(flag.read_text())))


def test_what_was_seen_there_comes_back() -> None:
    """Local classes travel by value; seeds that it does not take are found out; usage errors stay what they are."""
    here, there = look(ShortSeeds, "inline"), look(ShortSeeds, "processes")
    assert (here.observation, here.action, here.env) == (there.observation, there.action, there.env)
    assert there.env.seed_bits == SHORT
    with pytest.raises(UsageError, match="unknown environment 'CartPoll-v1'") as told:
        look("CartPoll-v1", "processes")
    assert not getattr(told.value, "__notes__", [])


SCRIPT = """
import ctypes, signal, sys
from headrace.envs import time_limit
from headrace.memory.crash_note import DOING, RESET, CrashNote
time_limit._GRACE_S = 1.0
note = CrashNote(1)
def swallows():
    while True:
        try:
            signal.pause()
        except BaseException:
            pass
with time_limit.time_limit("mine", note, 0.5):
    note.words[DOING] = RESET
    swallows() if sys.argv[1] == "swallows" else ctypes.PyDLL(None).sleep(1000)
"""


@pytest.mark.parametrize("how", ["swallows", "holds the GIL"])
def test_where_nothing_can_break_in_the_process_ends(how: str) -> None:
    told = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, timeout=120)
    assert told.returncode == 1
    assert "most recent call first" in told.stderr
    if how == "swallows":
        assert "headrace: error: mine: hung in reset(): no progress for 0.5 s" in told.stderr
        assert "in swallows" in told.stderr
