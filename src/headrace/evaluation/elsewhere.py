"""Environments in a process of their own, which is asked one thing: it answers, or its failure, crash or hang is named.

    parent: Elsewhere(child, spec, n_envs, task, payload) -> answer()      child: task(payload, note) -> bytes

The process ends with its parent, and with it what its environments have spawned (runtime/life). What it is in is in a
crash note, so that a hang, and a crash, can be located. Does not know what is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from headrace.clock import now_s
from headrace.envs.spec import EnvSpec
from headrace.errors import EnvError, HeadraceError
from headrace.memory.crash_note import CrashNote, CrashNotes, Doing, notes_bytes
from headrace.memory.segment import SharedSegment
from headrace.plain_text import message_of
from headrace.runtime.child import Child
from headrace.runtime.death import Death
from headrace.runtime.failures import failure_of, report
from headrace.runtime.line import Line, Message, wait_any
from headrace.runtime.stacks import keep_notes, last_words, stack_of

Task = Callable[[Any, CrashNote], bytes]

_LOOK_S = 0.2
_LONGEST_LOOK_S = 0.5  # more time between two looks is time in which nobody looked
_NEW_S = 60.0  # at least, for imports: no environment is to blame for those
_ANSWER, _FAILED = b"A", b"F"


class NoAnswer(EnvError):  # noqa: N818  # a kind of EnvError, for a catch of it
    """It hung, or died: by its own fault, or because somebody killed it."""


class Hung(NoAnswer):
    """It showed no progress for as long as it may: whoever asks again waits as long again."""


class Elsewhere:
    """One process and what it is asked; a context manager that ends it."""

    def __init__(
        self, child: Child, spec: EnvSpec, n_envs: int, task: Task, payload: Any, hang_ceiling_s: float
    ) -> None:
        self._child, self._spec, self._limit_s = child, spec, hang_ceiling_s
        sizes = [n_envs]
        try:
            self._notes = CrashNotes(sizes, SharedSegment.create(notes_bytes(sizes, 1)))
        except BaseException:
            child.end(0.0)
            raise
        try:
            child.assign(_answer, (task, payload, n_envs, str(self._notes.segment.name)))
        except Exception as error:  # of a factory that can't be pickled: anything
            self.end()
            raise HeadraceError(
                f"{spec.name}: it can't be sent to another process: {message_of(error)}; make it importable, or run "
                f"with topology=inline"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def answer(self) -> bytes:
        """Wait for it."""
        note, seen, idle_s, looked_s = self._notes.notes[0], b"", 0.0, now_s()
        while True:
            for one in wait_any([self._child], _LOOK_S):
                if isinstance(one, Death):
                    raise self._died(one)
                if isinstance(one, Message) and one.data.startswith(_FAILED):
                    raise failure_of(self._child.name, one.data[1:], with_ours=False)
                if isinstance(one, Message):
                    return one.data[1:]
            now, words = now_s(), self._notes.raw([0])
            idle_s = idle_s + min(now - looked_s, _LONGEST_LOOK_S) if words == seen else 0.0
            seen, looked_s = words, now
            is_new = note.read().doing is Doing.NOTHING
            if self._limit_s and idle_s >= (max(_NEW_S, self._limit_s) if is_new else self._limit_s):
                raise self._hung(idle_s)

    def end(self) -> None:
        """End it, whatever it is at."""
        self._child.end(0.0)
        self._notes.segment.unlink()

    def _died(self, death: Death) -> EnvError:
        error = NoAnswer(f"{self._spec.name}: the process that ran it died{self._where()}: {death.how}")
        return self._with_stack(error, last_words(self._notes, 0, _answer.__name__))

    def _hung(self, idle_s: float) -> EnvError:
        where, stack = self._where(), stack_of(self._child, self._notes, 0, _answer.__name__)
        error = Hung(
            f"{self._spec.name}: hung{where}: no progress for {idle_s:.0f} s; raise hang_ceiling_s (0: no limit) if it "
            f"is only slow"
        )
        return self._with_stack(error, stack)

    def _with_stack(self, error: EnvError, stack: str) -> EnvError:
        if stack:
            error.add_note(f"In {self._child.name}:\n{stack}")
        return error

    def _where(self) -> str:
        doing = self._notes.notes[0].read().doing
        return "" if doing is Doing.NOTHING else f" in {doing.name.lower()}()"


def _answer(line: Line, asked: tuple[Task, Any, int, str]) -> None:
    """The child's side."""
    task, payload, n_envs, segment = asked
    notes = keep_notes([n_envs], segment, 0)
    try:
        line.send(_ANSWER + task(payload, notes.notes[0]))
    except BaseException as error:
        line.send(_FAILED + report(error))
