"""Wrong arguments of what users call are answered in their words, with the one that was meant.

    @in_words()     Rules(max_turns=3) --fails--> which argument? --> Rules: unknown option max_turns: did you mean ...

Nothing is looked at until a call has failed, and no line of it has run then. Signatures and types stay as they are.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from headrace.errors import UsageError

Called = TypeVar("Called")


class ArgumentsError(UsageError, TypeError):
    """Arguments that a call does not take; a TypeError too, for code that tries which ones an object knows."""


def meant(name: str, known: Iterable[str]) -> str:
    """The option that a wrong name stands for, or all there are."""
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"did you mean {close[0]}?" if close else f"expected some of {', '.join(sorted(known))}"


def in_words(instead: Mapping[str, str] | None = None, title: str = "") -> Callable[[Called], Called]:
    """A function, a method or a class whose wrong arguments are named; `instead`: hints about names of other libraries.

    A hint that is the name of an argument is the one that was meant; `title`: what users know the call as.
    """

    def dressed(called: Called) -> Called:
        if isinstance(called, type):
            made: Any = called
            made.__init__ = _answering(made.__init__, title or made.__name__, instead or {})
            return called
        return cast(Called, _answering(called, cast(Any, called).__name__, instead or {}))

    return dressed


def _answering(call: Any, title: str, instead: Mapping[str, str]) -> Any:
    @functools.wraps(call)
    def answering(*given: Any, **named: Any) -> Any:
        try:
            return call(*given, **named)
        except TypeError:
            problem = _problem(call, given, named, instead)
            if problem is None:
                raise
        raise ArgumentsError(f"{title}: {problem}")

    return answering


def _problem(call: Any, given: tuple[Any, ...], named: Mapping[str, Any], instead: Mapping[str, str]) -> str | None:
    """What is wrong with the arguments; None if nothing is, and the error came from within."""
    signature = inspect.signature(call)
    try:
        signature.bind(*given, **named)
    except TypeError as error:
        misfit = str(error)
    else:
        return None
    kinds = {name: one.kind for name, one in signature.parameters.items() if name != "self"}
    if misfit.startswith("too many positional"):
        places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        taken = [name for name, kind in kinds.items() if kind in places]
        return f"{misfit}; by position it takes {', '.join(taken) or 'none'}"
    loose = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    known = [name for name, kind in kinds.items() if kind not in loose and not name.startswith("_")]
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds.values()
    for name in named:
        hint = instead.get(name, "")
        hint = f"did you mean {hint}?" if hint in known else hint or meant(name, known)
        if name not in known and not (takes_any and not hint.startswith("did you mean")):
            return f"unknown option {name}: {hint}" if known else f"unknown option {name}: it takes none"
    return misfit
