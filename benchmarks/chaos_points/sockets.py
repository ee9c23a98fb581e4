"""Point 18: who can be reached, who may read the memory, and junk on every socket there is.

500 junk connections, half of them to the hub of LLM workers (a unix socket), half to `headrace agents serve` (HTTP).
"""

import io
import logging
import os
import stat
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, chdir
from pathlib import Path
from typing import Any

import headrace as hr
from chaos_points.kit import Scale, Shown, all_of, at_most, none_of, say, wait_until
from chaos_points.proc import family, listening
from headrace.agents.codec import ByteCodec
from headrace.agents.desk import Desk
from headrace.agents.engines.openai import OpenAIEngine, Server
from headrace.agents.engines.protocol import Request
from headrace.agents.engines.scripted import Latency, scripted
from headrace.agents.plan import Ticket
from headrace.agents.ports import Hub, SocketPort
from headrace.agents.scheduler import Scheduler
from headrace.agents.serve import RunningServer, require_safe
from headrace.errors import UsageError
from support.junk import call_http, call_hub
from support.topology_runs import processes
from support.waiting import segments_of_processes

JUNK = 500
CODEC = ByteCodec()
QUESTION = Request(1, 0, 0, CODEC.encode("Actions: one, two\n<think>||"), 40, 1)


def sockets(scale: Scale) -> Shown:
    """Point 18."""
    strangers = max(10, round(JUNK * scale.share / 2))
    training = while_training()
    engine = scripted(latency=Latency(0.001))
    logs = io.StringIO()
    handler = logging.StreamHandler(logs)
    root = logging.getLogger()
    root.addHandler(handler)
    threads = threading.active_count()
    try:
        with tempfile.TemporaryDirectory(prefix="chaos-") as name, chdir(name):
            hub_s = junk_to_hub(engine, strangers)
            statuses, http_s, loopback = junk_to_http(engine, strangers, handler)
            written = len(list(Path(name).rglob("*")))
    finally:
        engine.close()
        root.removeHandler(handler)
    say(f"slowest of the real callers: hub {hub_s:.3f} s, HTTP {http_s:.3f} s; answers: {dict(statuses)}")
    wait_until(lambda: threading.active_count() <= threads, 30)
    tokens = 0
    for host in ("0.0.0.0", "192.168.0.1", "example.org"):
        try:
            require_safe(host, "")
        except UsageError:
            tokens += 1
    failures = sum(count for status, count in statuses.items() if status >= 500)
    return Shown(
        "18",
        "Sockets and shared memory",
        f"A run with 2 workers, seen from /proc; then {2 * strangers} junk connections (random bytes, half "
        "frames, huge "
        "lengths, silence, wrong keys, absurd requests), half to the hub of LLM workers, half to `agents "
        "serve`, while "
        f"real callers come and go.",
        [
            none_of("sockets on which a training run can be reached", training["listening"], training["processes"],
                    "processes"),
            all_of("segments with mode 0600 and 64 random bits in their names", training["private"],
                   training["segments"], "segments"),
            all_of("`agents serve` listens on loopback only", loopback, 1, "sockets"),
            all_of("other hosts refused without a token", tokens, 3, "hosts"),
            at_most("slowest real worker among strangers", hub_s, 5.0),
            at_most("slowest real request among strangers", http_s, 5.0),
            none_of("junk requests that made the server fail", failures, strangers, "requests"),
            none_of("tracebacks in the log", logs.getvalue().count("Traceback"), 2 * strangers, "connections"),
            none_of("files written", written, 2 * strangers, "connections"),
        ],
        ["junk frames to a dashboard"],
        {"statuses": dict(statuses)},
    )  # fmt: skip


def while_training() -> dict[str, int]:
    """What the system shows of a run."""
    found: dict[str, int] = {}

    def look(record: dict[str, float]) -> None:
        members = {os.getpid(), *family(os.getpid())}
        segments = [path for path in segments_of_processes(members) if path.exists()]  # not of runs that are over
        modes = [stat.S_IMODE(path.stat().st_mode) for path in segments]
        names = [path.name.rpartition("-")[2] for path in segments]
        private = sum(mode == 0o600 and len(name) == 16 for mode, name in zip(modes, names, strict=True))
        found.update(listening=len(listening(members)), processes=len(members), segments=len(segments), private=private)

    with hr.PPO("MlpPolicy", "CartPole-v1", n_envs=4, n_steps=16, seed=1, **processes(2)) as model:
        model.learn(128, look)
    return found


def junk_to_hub(engine: Any, strangers: int) -> float:
    """Seconds of the slowest real worker that asks for work meanwhile."""
    count = strangers // 5 + 1
    hub = Hub(Desk(Scheduler([Ticket(n, "A", 1, 2) for n in range(count)], count), engine, count, 1), engine)

    def worker(number: int) -> float:
        begun = time.monotonic()
        port = SocketPort(hub.address, hub.key, number)
        try:
            ticket = port.pull().result(60.0)
        finally:
            port.close()
        if ticket is None:
            raise RuntimeError("a real worker got no work")
        return time.monotonic() - begun

    slowest = 0.0
    with ExitStack() as stack:
        stack.callback(hub.close)
        for number in range(strangers):
            if (silent := call_hub(hub.address, number)) is not None:
                stack.enter_context(silent)
            if number % 5 == 0:
                slowest = max(slowest, worker(number // 5))
    return slowest


def junk_to_http(engine: Any, strangers: int, handler: logging.Handler) -> tuple[Counter[int], float, int]:
    """(statuses of the answers, seconds of the slowest real question, whether it listens on loopback only)."""
    statuses: Counter[int] = Counter()
    slowest, before = 0.0, listening({os.getpid()})  # of points that ran earlier in this process
    with RunningServer(engine) as server, ExitStack() as stack:
        real = OpenAIEngine(CODEC, Server((server.url,), is_text_only=False, model="headrace"))
        stack.callback(real.close)
        logging.getLogger("uvicorn").handlers = [handler]  # it propagates nothing
        want = real.generate([QUESTION])
        open_to = [one for one in listening({os.getpid()}) if one not in before]
        for number in range(strangers):
            silent, answer = call_http(server.port, number)
            if silent is not None:
                stack.enter_context(silent)
            elif answer:
                statuses[int(answer.split(b" ")[1])] += 1
            if number % 5 == 0:
                slowest = max(slowest, asked(lambda: real.generate([QUESTION]) == want))
    return statuses, slowest, int(len(open_to) == 1 and open_to[0].startswith("0100007F:"))


def asked(is_as_before: Callable[[], bool]) -> float:
    begun = time.monotonic()
    if not is_as_before():
        raise RuntimeError("the server's answers changed")
    return time.monotonic() - begun
