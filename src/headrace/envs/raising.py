"""What an environment raised, as an EnvFailure; but a signal that broke in while it ran is no fault of its own.

    Exception                           -> EnvFailure
    KeyboardInterrupt, SystemExit, ...  raised by the environment's own code -> EnvFailure
                                        raised by a signal handler           -> goes on, with a note where it struck

Signals reach the main thread only, and worker processes ignore SIGINT. A handler written in Python is a frame of the
traceback. Python's own handler of Ctrl-C leaves no frame: while it is installed, a KeyboardInterrupt is the user's.
Runs when something was raised, never per step. Does not know episodes or steps.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import CodeType
from typing import Any

from headrace.envs.missing import reason
from headrace.envs.vector_env import EnvFailure
from headrace.plain_text import message_of


class RefusedError(Exception):
    """What an environment returned, or was sent, can't be used: said by our own wrappers, for its message."""


_STEP = "(obs, reward, terminated, truncated, info)"


def failure(position: int, env_index: int, error: BaseException, where: str = "") -> EnvFailure:
    """The failure to raise for what an environment raised; raises the error itself if it broke in from outside."""
    require_own(error, f"env {env_index}")
    text = message_of(error)
    if isinstance(error, RefusedError):
        return EnvFailure(position, f"{f'{where} ' if where else ''}{text}")
    said = f"raised {type(error).__name__}: {text}" if text else f"raised {reason(error)}"
    hint, is_raised = "", not isinstance(error, KeyboardInterrupt)  # which asks for an end
    if isinstance(error, TypeError | ValueError) and "unpack" in text:
        names, count = ("(observation, info)", 2) if where.startswith("reset") else (_STEP, 5)
        hint = f"; expected a tuple {names}"
        trace = error.__traceback__
        if trace is not None and trace.tb_next is None:  # it was our own unpacking of what it returned
            is_raised, hint = False, ""
            said = f"returned {_amount(text)}, expected {count} {names}{_old_ways(text, where)}"
    return EnvFailure(position, f"{f'{where} ' if where else ''}{said}{hint}", is_raised)


def after_reset(error: Exception, steps: Any) -> Exception:
    """What was refused in a row of steps: of an environment that has not stepped since its reset, it was the reset's.

    The row, and so the place, is that of the step before.
    """
    if isinstance(error, EnvFailure) and not steps[error.position] and error.reason.startswith("returned "):
        error.reason = f"{error.reason}, from the reset that followed"
    return error


def _old_ways(text: str, where: str) -> str:
    """What to do about an environment that was written for gym, before Gymnasium."""
    if where.startswith("reset") and "got 2" not in text:
        return "; an environment of the old gym returns the observation alone: return observation, {}"
    if not where and "got 4" in text:
        return "; an environment of the old gym returns one flag: return terminated and truncated in its place"
    return ""


def _amount(text: str) -> str:
    """How much was returned, from what Python says about unpacking it."""
    if text.startswith("not enough"):
        return f"{text.rpartition('got ')[2].rstrip(')')} values"
    return "too many values" if text.startswith("too many") else text.removeprefix("cannot unpack non-iterable ")


def require_own(error: BaseException, where: str) -> None:
    """Raise an error that a signal handler raised while the environment's code was running; others are its own."""
    if is_from_signal(error):
        error.add_note(f"It broke in while {where} was running.")
        raise error


def is_from_signal(error: BaseException) -> bool:
    """Whether a signal handler raised it, or may have."""
    if isinstance(error, Exception) or threading.current_thread() is not threading.main_thread():
        return False
    handlers = [one for one in map(signal.getsignal, signal.valid_signals()) if callable(one)]
    if isinstance(error, KeyboardInterrupt) and signal.default_int_handler in handlers:
        return True
    codes = {id(handler): _code(handler) for handler in handlers if handler is not signal.default_int_handler}
    return None in codes.values() or any(code in codes.values() for code in _frames(error))


def _code(handler: Any) -> CodeType | None:
    """The code of a handler written in Python; None if it leaves no frame."""
    handler = getattr(handler, "func", handler)  # a partial
    code = getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _frames(error: BaseException) -> Iterator[CodeType]:
    """The code of every frame that the error, and those it was raised for, went through."""
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        one = chain.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        chain += [one.__cause__, one.__context__]
        trace = one.__traceback__
        while trace is not None:
            yield trace.tb_frame.f_code
            trace = trace.tb_next
