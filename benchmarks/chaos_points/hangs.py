"""Points 4, 5, 6 and 16: environments that hang, are slow, raise, crash again and again, or leak."""

import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from harness import Claim

import headrace as hr
from chaos_points.kills import Warnings, warnings
from chaos_points.kit import Scale, Shown, all_of, at_most, below, equal, machine, machines, none_of, say
from chaos_points.proc import used_mb
from headrace.errors import HeadraceError
from support.faulty_envs import Faulty
from support.mishaps import Mishaps, at_close, at_reset, at_step, plan_mishap, times_s
from support.topology_runs import INLINE, SEED, Case, bits_of, processes

WALK = Case("walk", "support.bit_envs:LongWalk", n_envs=4, updates=6, kwargs={"limit": 20})
FLOOR_S, CEILING_S = 1.0, 40.0
HUNG = {
    "in step, holds the GIL": ("gil", at_step(SEED, 3, 1, 7), "holds_the_gil"),
    "in step, sleeps for ever": ("sleep", at_step(SEED, 3, 1, 7), "sleeps_for_ever"),
    "in step, spins and ignores SIGTERM": ("spin", at_step(SEED, 3, 1, 7), "spins_and_ignores_sigterm"),
    "in reset, holds the GIL": ("gil", at_reset(SEED, 1, 2), "holds_the_gil"),
    "in make, sleeps for ever": ("sleep", "make", "sleeps_for_ever"),
}


@contextmanager
def mishap(what: str, point: str, always: bool = False) -> Iterator[tuple[Case, Path, Warnings]]:
    """The walk in which it happens, the file that says when, and what was said."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as name, warnings() as said:
        began = plan_mishap(Path(name), what, point, always)
        yield WALK.wrapped(partial(Mishaps, folder=name)), began, said


def hung(scale: Scale) -> Shown:
    """Point 4."""
    want = WALK.play(**INLINE)
    claims: list[Claim] = []
    extra: dict[str, Any] = {}
    for kind in machines(scale):
        late, named, same, others = [], 0, 0, 0
        cases = list(HUNG.items())[: 1 if scale.name == "smoke" else None]
        with machine(kind):
            for label, (what, point, function) in cases:
                floor_s, ceiling_s = (0.5, 2.0) if point == "make" else (FLOOR_S, CEILING_S)
                place = processes(2, hang_floor_s=floor_s, hang_ceiling_s=ceiling_s)
                with mishap(what, point) as (case, began, said):
                    with case.start(**place) as run:
                        same += bits_of(run, WALK.advance(run, WALK.updates)) == want
                        others += run.source.place.replaced.restarts - 1
                    at, text = said.records[0]
                    first, _, stack = text.partition("\n")
                    limit_s = float(re.findall(r"([\d.]+) s", first)[1])
                    late.append(at - times_s(began)[0] - limit_s)
                    is_named = "hung in" in first and "of env" in first and f"in {function}" in stack
                    if point != "make":
                        is_named &= all(word in first for word in ("worker", "seed "))
                        is_named &= re.search(r"episode \d+:\d+, ", first) is not None
                    named += is_named
                say(f"{kind}: {label}: limit {limit_s:.2f} s, noticed {late[-1]:.2f} s after it")
                extra[f"{kind}: {label}"] = {"limit_s": limit_s, "late_s": late[-1], "text": first}
        count, where = len(cases), f"machine {kind}"
        claims += [
            at_most(f"slowest to be noticed, after its limit, {where}", max(late), 1.0),
            all_of(f"named with worker, environment, episode, seed and Python stack, {where}", named, count, "hangs"),
            all_of(f"replaced with the calm run's bits, {where}", same, count, "runs"),
            none_of(f"restarts of workers that did not hang, {where}", others, count, "runs"),
        ]
    claims.append(at_most("hung in close, holding the GIL: end of the run", hung_in_close(), 5.0))
    return Shown(
        "4",
        "Hung environments",
        f"2 workers, 4 environments; one hangs: {'; '.join(HUNG)}; in close. The limit is learnt from the "
        "steps before it, "
        f"between hang_floor_s ({FLOOR_S:g} s here) and hang_ceiling_s.",
        claims,
        extra=extra,
    )


def hung_in_close() -> float:
    """Seconds that the end of a run takes."""
    with mishap("gil", at_close(SEED, 2, 2)) as (case, _, _said):
        with case.start(**processes(1, hang_floor_s=FLOOR_S, hang_ceiling_s=CEILING_S)) as run:
            WALK.advance(run, WALK.updates)
            begun = time.monotonic()
        return time.monotonic() - begun


def slow_is_not_hung(scale: Scale) -> Shown:
    """Point 5."""
    restarts, same, count = 0, 0, 1 if scale.name == "smoke" else 3
    want = WALK.play(**INLINE)
    with tempfile.TemporaryDirectory(prefix="chaos-") as name, warnings() as said:
        for step in range(8, 8 + count):
            plan_mishap(Path(name), "slow", at_step(SEED, 3, 0, step))
        case = WALK.wrapped(partial(Mishaps, folder=name))
        with case.start(**processes(1, hang_floor_s=2.0, hang_ceiling_s=CEILING_S)) as run:
            same = bits_of(run, WALK.advance(run, WALK.updates)) == want
            restarts = run.source.place.replaced.restarts + len(said.records)
    return Shown(
        "5",
        "Slow is not hung",
        f"{count} steps of 1.4 s after steps of some microseconds, with a limit of 2 s.",
        [none_of("workers killed, warnings", restarts, count, "slow steps"),
         all_of("the calm run's bits", int(same), 1, "runs")],
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------ raise and crash


def raising(scale: Scale) -> Shown:
    """Point 6."""
    whole, took = 0, []
    faults = ("step_raises", "reset_raises")[: 1 if scale.name == "smoke" else None]
    options: dict[str, Any] = {"n_envs": 4, "n_steps": 4, "batch_size": 8, "seed": Faulty.SEED}
    for fault in faults:
        begun = time.monotonic()
        try:
            with hr.PPO("MlpPolicy", Faulty, env_kwargs={"fault": fault}, **options, **processes(2)) as model:
                model.learn(400)
        except HeadraceError as error:
            took.append(time.monotonic() - begun)
            note = "".join(getattr(error, "__notes__", ()))
            whole += (
                "Traceback (most recent call last)" in note
                and "faulty_envs.py" in note
                and f"env {Faulty.ENV}" in str(error)
            )
    with mishap("exit", at_step(SEED, 3, 0, 12), always=True) as (case, began, said):
        loop = crash_loop(case)
        loops = len(times_s(began))
        warned = len(said.records)
    say(f"crash loop: {loop[1]}")
    with mishap("exit", "make", always=True) as (case, began, said):
        start_ups = crash_loop(case)
        lives = len(times_s(began))
    say(f"start-ups: {start_ups[1]}")
    random_restarts, replaced = kills_at_random(), raised_here_and_there()
    return Shown(
        "6",
        "Environments that raise, and crash loops",
        f"An environment in a worker raises ({', '.join(faults)}); another one ends its process at the same step every "
        "time, another one whenever it is made; and 8 kills at 8 steps of one environment, which are no loop, nor are "
        "4 exceptions at 4 steps.",
        [
            all_of("one error with the environment and the worker's whole traceback", whole, len(faults), "faults"),
            equal("deaths at the same step before the run ends", loops, 3, "deaths"),
            equal("warnings before its one error", warned, 2, "warnings"),
            at_most("end of the run, same step three times", loop[0], 30.0),
            equal("start-ups without a result before the run ends", lives, 5, "start-ups"),
            at_most("end of the run, start-ups in vain", start_ups[0], 30.0),
            equal("restarts after kills at random, the run goes on", random_restarts, 8, "workers"),
            equal("environments that raised once and were made again, same bits", replaced, 4, "times"),
        ],
    )


def crash_loop(case: Case) -> tuple[float, str]:
    """Seconds to the one error, and what it says."""
    begun = time.monotonic()
    try:
        with case.start(**processes(1)) as run:
            WALK.advance(run, WALK.updates)
    except HeadraceError as error:
        return time.monotonic() - begun, str(error)
    raise AssertionError("the crash loop was not noticed")


def kills_at_random() -> int:
    """Restarts of a run that comes to the calm run's bits; else none."""
    steps = [*range(3, 48, 8), 20, 21]
    with tempfile.TemporaryDirectory(prefix="chaos-") as name, warnings():
        for step in steps:
            plan_mishap(Path(name), "kill", at_step(SEED, 0, step // 20, step % 20))
        with WALK.wrapped(partial(Mishaps, folder=name)).start(**processes(1)) as run:
            same = bits_of(run, WALK.advance(run, WALK.updates)) == WALK.play(**INLINE)
            return run.source.place.replaced.restarts if same else 0


def raised_here_and_there() -> int:
    """Environments that were made again in a run that comes to the calm run's bits; else none."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as name, warnings():
        for step in (3, 12, 25, 33):
            plan_mishap(Path(name), "raise", at_step(SEED, 0, step // 20, step % 20))
        with WALK.wrapped(partial(Mishaps, folder=name)).start(**processes(1)) as run:
            same = bits_of(run, WALK.advance(run, WALK.updates)) == WALK.play(**INLINE)
            return run.totals().env_failures if same else 0


# ---------------------------------------------------------------------------------------------------------------- leaks

LEAKY = Case("leaky", "support.mishaps:Leaks", n_envs=4, updates=12, kwargs={"limit": 20})
ROOM_MB = 90


def leaking(scale: Scale) -> Shown:
    """Point 16."""
    want, place = LEAKY.play(**INLINE), processes(1)
    with LEAKY.start(**place) as run:
        LEAKY.advance(run, 1)
        limit_mb = int(used_mb(run.source.place.workers.pids[0])) + ROOM_MB
    leaked_mb = LEAKY.updates * LEAKY.n_steps * LEAKY.n_envs
    with LEAKY.start(**place, worker_max_memory_mb=limit_mb) as run, peak_memory(run) as peak:
        same = bits_of(run, LEAKY.advance(run, LEAKY.updates)) == want
        recycled, restarts = run.source.place.replaced.recycled, run.source.place.replaced.restarts
    per_rollout_mb = LEAKY.n_steps * LEAKY.n_envs
    with LEAKY.start(**place, worker_max_episodes=2) as run:
        same_by_episodes = bits_of(run, LEAKY.advance(run, LEAKY.updates)) == want
        by_episodes = run.source.place.replaced.recycled
    return Shown(
        "16",
        "Leaking environments",
        f"Every step keeps a megabyte, {leaked_mb} MB in all; the worker may use {ROOM_MB} MB more than at its start "
        f"(worker_max_memory_mb), then at most 2 episodes (worker_max_episodes). Its memory is read from /proc.",
        [
            below("most memory of the worker beyond the limit", max(peak) - limit_mb, per_rollout_mb + 20.0, "MB"),
            Claim("workers recycled at the memory limit", recycled, "workers", None, None, ">= 2", recycled >= 2),
            Claim("workers recycled after 2 episodes", by_episodes, "workers", None, None, ">= 2", by_episodes >= 2),
            all_of("runs with the calm run's bits", int(same) + int(same_by_episodes), 2, "runs"),
            none_of("restarts: nothing was lost", restarts, recycled, "recycled workers"),
        ],
        extra={"limit_mb": limit_mb, "peak_mb": max(peak), "leaked_mb": leaked_mb},
    )  # fmt: skip


@contextmanager
def peak_memory(run: Any) -> Iterator[list[float]]:
    """What the worker used, as often as one can look."""
    seen, over = [0.0], threading.Event()

    def look() -> None:
        while not over.wait(0.005):
            for pid in list(run.source.place.workers.pids):
                try:
                    seen.append(used_mb(pid))
                except (OSError, ValueError):
                    continue  # gone meanwhile

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
