"""What a child that can't be asked any more was in: its crash notes, and the Python stack of each of its threads.

    child: keep_notes -> notes in shared memory; a crash, or SIGUSR1, writes the stacks beside them (faulthandler)
    parent: stack_of -> SIGUSR1, then what was written, or why nothing was        last_words -> what a crash has left

A process that is stopped, or waits in the kernel, runs no signal handler. Ends nobody.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.clock import now_s
from headrace.memory.crash_note import CrashNotes
from headrace.memory.segment import SharedSegment
from headrace.runtime.child import Child

_STACK_S = 0.3  # for a hung child to write its stack
_POLL_S = 0.01
_KERNEL = {"T": "the process is stopped (SIGSTOP)", "t": "a debugger has stopped it", "D": "it waits in the kernel"}


def keep_notes(shard_sizes: Sequence[int], segment: str, number: int) -> CrashNotes:
    """The child's side: from now on the parent can see what this process is at, also when it hangs or has crashed."""
    notes = CrashNotes(shard_sizes, SharedSegment.attach(segment))
    descriptor = SharedSegment.open_at(segment, notes.last_words_at(number))
    faulthandler.enable(descriptor)
    faulthandler.register(signal.SIGUSR1, descriptor)
    os.register_at_fork(after_in_child=faulthandler.disable)  # the end of a copy is not this process's
    return notes


def stack_of(child: Child, notes: CrashNotes, number: int, first: str) -> str:
    """Every thread's Python stack, or why there is none; `first`: the child's first function, below it all is ours."""
    state = _state_of(child.pid)
    if state in _KERNEL:  # no signal handler runs there
        return f"(no Python stack: {_KERNEL[state]})"
    child.signal(signal.SIGUSR1)
    deadline, text = now_s() + _STACK_S, ""
    while now_s() < deadline:
        time.sleep(_POLL_S)
        before, text = text, notes.last_words(number)
        if text and text == before:
            break
    return last_words(notes, number, first) or "(no Python stack: the process did not answer)"


def last_words(notes: CrashNotes, number: int, first: str) -> str:
    """The stacks that a child has left; nothing if it left none."""
    text = notes.last_words(number)
    threads = [block.splitlines() for block in text.split("\n\n") if not block.startswith("Extension modules")]
    short = []
    for lines in threads:
        ours = [index for index, line in enumerate(lines) if line.endswith(f" in {first}")]
        short.append("\n".join(lines[: ours[0]] if ours else lines))
    return "\n\n".join(short)


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
