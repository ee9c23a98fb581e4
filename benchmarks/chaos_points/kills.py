"""Points 1, 3 and 7: processes that die at named points, or silently; beside a calm run of the same configuration.

    arm a point ──> a worker dies there ──> noticed (the warning) ──> replaced (its successor is ready) ──> same bits?

Times are those of the system's clock: the victim notes when it dies, its successor when it is ready.
"""

import logging
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from harness import Claim

from chaos_points.kit import Scale, Shown, all_of, at_most, equal, machine, machines, say, wait_until
from support.kill_points import (
    ASKING,
    AT_START,
    IN_A_SLAB,
    POINTS,
    SERVING,
    Strikes,
    arm,
    deaths,
    is_armed,
    lives,
    striking_servers,
)
from support.mishaps import Mishaps, at_step, plan_mishap, times_s
from support.topology_runs import INLINE, SEED, Bits, Case, bits_of, processes
from support.waiting import is_gone
from support.walks import named as place_in_words

WALK = Case("walk", "support.bit_envs:LongWalk", n_envs=4, updates=14, kwargs={"limit": 50})
NOTICE_S, REPLACE_S, SERVER_S = 1.0, 5.0, 2.0
HANG_S = 1.0


class Warnings(logging.Handler):
    """What is said of workers, and when, by time.time()."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[tuple[float, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((record.created, record.getMessage()))


@contextmanager
def warnings() -> Iterator[Warnings]:
    handler, logger = Warnings(), logging.getLogger("headrace")  # of workers and of inference servers
    logger.addHandler(handler)
    propagates, logger.propagate = logger.propagate, False
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


def named_points(scale: Scale) -> Shown:
    """Point 1."""
    want, kinds = WALK.play(**INLINE), machines(scale)
    claims: list[Claim] = []
    extra: dict[str, Any] = {}
    for kind in kinds:
        kills = restarts = same = runs = torn = 0
        noticed: list[float] = []
        replaced: list[float] = []
        with machine(kind):
            for point in (*POINTS, *ASKING):
                runner = at_shutdown if point == "during shutdown" else at_point
                one = runner(point, scale.times, want)
                say(f"{kind}: {point}: {one['kills']} kills, {one['restarts']} restarts, noticed <= "
                    f"{max(one['noticed'], default=0):.3f} s, replaced <= {max(one['replaced'], default=0):.2f} s, "
                    f"{'same bits' if one['same'] == one['runs'] else 'OTHER BITS'}")  # fmt: skip
                extra[f"{kind}: {point}"] = one
                if point != "during shutdown":
                    kills, restarts = kills + one["kills"], restarts + one["restarts"]
                same, runs, torn = same + one["same"], runs + one["runs"], torn + (one["same"] != one["runs"])
                noticed += one["noticed"]
                replaced += one["replaced"]
        where = f"machine {kind}"
        claims += [
            equal(f"restarts, {where}", restarts, kills, "workers"),
            all_of(f"runs with the calm run's weights, optimiser, ledger and episodes, {where}", same, runs, "runs"),
            at_most(f"slowest to be noticed, {where}", max(noticed), NOTICE_S),
            at_most(f"slowest to be replaced, {where}", max(replaced), REPLACE_S),
        ]
    stopped = stopped_and_continued(want)
    extra["stopped"] = stopped
    claims.append(
        all_of("stopped (SIGSTOP) until declared hung, then continued: same bits", stopped["same"], 1, "runs")
    )
    return Shown(
        "1",
        "kill -9 of a worker at named points",
        f"{len(POINTS) + len(ASKING)} points ({', '.join((*POINTS, *ASKING))}), {scale.times} times each, 1 worker, "
        "4 environments; the last two with an inference server. A victim notes the time and kills itself at that "
        "instruction. Kills during shutdown need no restart. Kills of the server itself are in point 3.",
        claims,
        extra=extra,
    )


def server_points(scale: Scale) -> tuple[list[Claim], dict[str, Any]]:
    """Of point 3: the inference server dies at named points of its life."""
    want, claims, extra = WALK.play(**INLINE), [], {}
    for kind in machines(scale):
        with machine(kind):
            found = {point: at_point(point, scale.times, want) for point in SERVING}
        for point, one in found.items():
            slowest = max(one["replaced"], default=float("inf"))
            say(f"{kind}: {point}: {one['kills']} kills, {one['restarts']} restarts, replaced <= {slowest:.2f} s")
        extra |= {f"{kind}: {point}": one for point, one in found.items()}
        where, ones = f"machine {kind}", list(found.values())
        kills, restarts = (sum(one[name] for one in ones) for name in ("kills", "restarts"))
        same, times = sum(one["same"] for one in ones), [time for one in ones for time in one["replaced"]]
        claims += [
            equal(f"inference servers replaced, beside servers killed, {where}", restarts, kills, "servers"),
            all_of(f"runs with killed servers and the calm run's bits and ledger, {where}", same, len(ones), "runs"),
            at_most(f"slowest inference server to be replaced, {where}", max(times), SERVER_S),
        ]
    return claims, extra


def at_point(point: str, times: int, want: Bits) -> dict[str, Any]:
    """One run in which a worker, or the inference server, dies so often, once in every second update."""
    central: dict[str, Any] = {} if point in POINTS else {"inference": "central", "shards": 2}
    with tempfile.TemporaryDirectory(prefix="chaos-") as name, warnings() as said:
        folder = Path(name)
        where = processes(2 if point in SERVING else 1, **central)
        with striking_servers(folder), WALK.wrapped(Strikes(name)).start(**where) as run:
            episodes, done, outside, place = WALK.advance(run, 1), 1, 0, run.source.place
            for _ in range(times):
                arm(folder, point, after=5 if point in IN_A_SLAB else 0)
                if point in AT_START:  # it takes another death to get one that starts
                    outside += 1
                    pid = place._servers.children[0].pid if point in SERVING else place.workers.pids[0]
                    os.kill(pid, signal.SIGKILL)
                episodes += WALK.advance(run, 2)
                done += 2
                wait_until(lambda: not is_armed(folder, point))
            episodes += WALK.advance(run, WALK.updates - done)
            for _ in range(2):  # who died after the last rollout is noticed, and replaced, too
                run.source.run_ahead()
            if central:
                wait_until(lambda: place.replace_lost() == [] and not place._servers.num_starting)
            got, restarts = bits_of(run, episodes), place.replaced.restarts + place.replaced.servers
            died, ready = deaths(folder), lives(folder)
    noticed = [min((at for at, _ in said.records if at >= one.at_s), default=float("inf")) - one.at_s for one in died]
    replaced = [min((at.at_s for at in ready if at.at_s >= one.at_s), default=float("inf")) - one.at_s for one in died]
    return {
        "kills": len(died) + outside, "restarts": restarts, "same": int(got == want), "runs": 1, "noticed": noticed,
        "replaced": replaced,
    }  # fmt: skip


def at_shutdown(point: str, times: int, want: Bits) -> dict[str, Any]:
    """A run each: it dies while the run closes, which must not change or delay anything."""
    found: dict[str, Any] = {"kills": 0, "restarts": 0, "same": 0, "runs": times, "noticed": [], "replaced": []}
    for _ in range(times):
        with tempfile.TemporaryDirectory(prefix="chaos-") as name, warnings():
            with WALK.wrapped(Strikes(name)).start(**processes(1)) as run:
                got = bits_of(run, WALK.advance(run, WALK.updates))
                found["restarts"] += run.source.place.replaced.restarts
                pids = run.source.place.workers.pids
                arm(Path(name), point)
            wait_until(lambda pids=pids: all(map(is_gone, pids)))
            found["kills"] += len(deaths(Path(name)))
            found["same"] += int(got == want)
    return found


def stopped_and_continued(want: Bits) -> dict[str, Any]:
    """SIGSTOP in a step until it is declared hung, SIGCONT all the while after: nothing is scribbled."""
    over = threading.Event()
    with tempfile.TemporaryDirectory(prefix="chaos-") as name, warnings() as said:
        began = plan_mishap(Path(name), "stop", at_step(SEED, 0, 0, 11))
        place = processes(1, hang_floor_s=HANG_S, hang_ceiling_s=40.0)
        with WALK.wrapped(partial(Mishaps, folder=name)).start(**place) as run:
            episodes = WALK.advance(run, 1)
            victim = run.source.place.workers.pids[0]

            def continue_it() -> None:
                while not over.is_set() and not is_gone(victim):
                    if said.records:
                        os.kill(victim, signal.SIGCONT)
                    time.sleep(0.001)

            thread = threading.Thread(target=continue_it)
            thread.start()
            try:
                episodes += WALK.advance(run, WALK.updates - 1)
            finally:
                over.set()
                thread.join()
            same = run.source.place.replaced.restarts == 1 and bits_of(run, episodes) == want
        return {"same": int(same), "noticed_s": said.records[0][0] - times_s(began)[0]}


# ------------------------------------------------------------------------------------------------------- silent deaths

SILENT = {
    "exit": "exit code 3",
    "segfault": "killed by signal 11 (SIGSEGV)",
    "kill": "killed by signal 9 (SIGKILL)",
    "exec": "closed its line to the learner or became another program",
    "hang-up": "closed its line to the learner or became another program",
}


def silent_deaths(scale: Scale) -> Shown:
    """Point 7."""
    want, named, same, noticed = WALK.play(**INLINE), 0, 0, []
    whats = list(SILENT)[: 2 if scale.name == "smoke" else None]
    for what in whats:
        with tempfile.TemporaryDirectory(prefix="chaos-") as name, warnings() as said:
            began = plan_mishap(Path(name), what, at_step(SEED, 2, 1, 5))
            with WALK.wrapped(partial(Mishaps, folder=name)).start(**processes(1)) as run:
                same += (
                    bits_of(run, WALK.advance(run, WALK.updates)) == want and run.source.place.replaced.restarts == 1
                )
            at, text = said.records[0]
            place = place_in_words(2, 1, 5)
            named += SILENT[what] in text and place in text and len(said.records) == 1
            if what != "hang-up":  # it looks for the line among all objects first, and takes its time
                noticed.append(at - times_s(began)[0])
            say(f"{what}: {text.splitlines()[0]}")
    return Shown(
        "7",
        "Silent death",
        f"In a step: {', '.join(whats)} (os._exit, SIGSEGV, SIGKILL as the kernel's OOM killer sends it, "
        "another program, "
        f"a closed line).",
        [
            all_of("signal or exit code, environment, episode, seed and step named", named, len(whats), "deaths"),
            all_of("replaced with the calm run's bits", same, len(whats), "runs"),
            at_most("slowest to be noticed", max(noticed), NOTICE_S),
        ],
    )
