"""Runs a program with its calls written down, and reads what its processes wrote.

    trace(command, package) ──> a ProcessLog per process ──> calls_of(log, spine): (caller, callee), in order, by thread

The writing is done by call_trace/sitecustomize.py, in the program and in its children. Does not know what a file costs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

CALL_TRACE = Path(__file__).resolve().parent / "call_trace"
TIMEOUT_S = 240.0


class TraceError(RuntimeError):
    """The program failed; the message ends with its last words."""


@dataclass(frozen=True)
class Function:
    """A function of the package that ran."""

    file: str
    line: int
    kind: str  # python, compiled, generated
    name: str
    lines: frozenset[int] = frozenset()


Call = tuple[Function | None, Function]  # caller, if it is the package's, and callee


@dataclass(frozen=True)
class Event:
    """A call, or the return from one."""

    is_call: bool
    thread: str
    function: Function
    caller: Function | None = None


@dataclass
class ProcessLog:
    """What one process wrote down, in its order."""

    is_program: bool  # else a child
    events: list[Event] = field(default_factory=list)
    lines: set[tuple[str, int]] = field(default_factory=set)  # file, line


def trace(command: Sequence[str], package: Path) -> tuple[list[ProcessLog], int]:
    """Run a Python program that opens the window; returns its processes' logs and the number it prints at its end."""
    with tempfile.TemporaryDirectory(prefix="call-trace-") as folder:
        (Path(folder) / "window").write_bytes(b"\x00")
        path = [str(CALL_TRACE), str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {
            "CALL_TRACE_LOGS": folder,
            "CALL_TRACE_PACKAGE": f"{package}{os.sep}",
            "PYTHONPATH": os.pathsep.join(path),
            "OMP_NUM_THREADS": "1",
        }
        environment.pop("CALL_TRACE_PROGRAM", None)
        pid, stdout = _run([sys.executable, *command], environment)
        logs = [read_log(file, file.stem == str(pid)) for file in sorted(Path(folder).glob("*.tsv"))]
    return logs, int(stdout.split()[-1])


def _run(command: Sequence[str], environment: dict[str, str]) -> tuple[int, str]:
    """Process id and stdout; nothing of its process tree outlives the call."""
    what, pipe = " ".join(command[1:]), subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise TraceError(f"{what}: no end after {TIMEOUT_S:.0f} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise TraceError(f"{what}: exit code {process.returncode}; its last words:\n{stderr[-2000:]}")
    return process.pid, stdout


def read_log(path: Path, is_program: bool) -> ProcessLog:
    """The inverse of what call_trace/sitecustomize.py writes."""
    log, functions = ProcessLog(is_program), dict[str, Function]()
    for text in path.read_text().splitlines():
        kind, *rest = text.split("\t")
        if kind == "f":
            number, file, line, sort, name, lines = rest
            own = frozenset(int(one) for one in lines.split(",") if one)
            functions[number] = Function(file, int(line), sort, name, own)
        elif kind == ">":
            thread, caller, number = rest
            log.events.append(Event(True, thread, functions[number], functions.get(caller)))
        elif kind == "<":
            log.events.append(Event(False, rest[0], functions[rest[1]]))
        else:
            log.lines.add((rest[0], int(rest[1])))
    return log


def calls_of(
    log: ProcessLog, spine: str | None = None, apart: frozenset[tuple[str, str]] = frozenset()
) -> Iterator[Call]:
    """A process's calls, thread by thread; of the program's thread that enters the spine only those at or below it.

    Of these, calls at or below functions that are set apart, as (file, name), are left out.
    """
    threads: dict[str, list[Event]] = {}
    for event in log.events:
        threads.setdefault(event.thread, []).append(event)
    for events in threads.values():
        if log.is_program and any(event.function.file == spine for event in events):
            yield from _below(events, spine, apart)
        else:
            yield from ((event.caller, event.function) for event in _from_a_beginning(events) if event.is_call)


def _below(events: Iterable[Event], spine: str | None, apart: frozenset[tuple[str, str]]) -> Iterator[Call]:
    """Calls of the spine and of what it calls, however deep, but for what is set apart."""
    stack: list[Function] = []
    for event in events:
        if not event.is_call:
            del stack[-1:]
            continue
        if any((one.file, one.name) in apart for one in (*stack, event.function)):
            pass
        elif any(one.file == spine for one in stack):
            yield event.caller, event.function
        elif event.function.file == spine:
            yield None, event.function
        stack.append(event.function)


def _from_a_beginning(events: list[Event]) -> list[Event]:
    """The same, beginning with the first large call: the window opens somewhere within a rollout."""
    spans, depth, start = [(0, 0)], 0, 0
    for index, event in enumerate(events):
        if event.is_call:
            start, depth = (index if depth == 0 else start), depth + 1
        elif depth:  # else the return of a call from before the window
            depth -= 1
            if depth == 0:
                spans.append((index - start, start))
    largest = max(spans)[0]
    first = next(start for length, start in spans if 2 * length >= largest)
    return events[first:] + events[:first]
