"""An error on its way from a child to its parent, as JSON: what it was, what it said, and its whole traceback.

    child: report(error) -> bytes ── line ──> parent: failure_of(name, bytes) -> the error as it was, if it is ours

Does not know what is done about it.
"""

from __future__ import annotations

import json
import traceback
from typing import Any

from headrace import errors
from headrace.errors import EnvRaised, HeadraceError, UsageError
from headrace.plain_text import MAX_ERROR, MAX_TRACEBACK, message_of, shortened


def report(error: BaseException) -> bytes:
    """The child's side."""
    place = getattr(error, "place", None)  # of what an environment raised
    cause = error.__cause__ if isinstance(error, HeadraceError) else error
    is_others = (
        not isinstance(error, UsageError) and cause is not None and not type(cause).__module__.startswith("headrace.")
    )
    shown = cause if is_others and cause is not None else error  # of what an environment raised, no frames of ours
    text = shortened("".join(traceback.format_exception(shown)), MAX_TRACEBACK)  # here: any length would cross the line
    return json.dumps(
        {
            "kind": type(error).__name__,
            "message": message_of(error, MAX_ERROR),
            "traceback": text,
            "place": place,
            "is_others": is_others and not isinstance(error, UsageError),  # somebody else's code raised
        }
    ).encode()


def failure_of(name: str, data: bytes, with_ours: bool = True) -> HeadraceError:
    """What a child reported, as the error it was, with its whole traceback; or only if it was somebody else's code."""
    try:
        report: dict[str, Any] = json.loads(data)
        kind = getattr(errors, report["kind"], None)
        report["message"], report["place"], report["is_others"], report["traceback"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return HeadraceError(
            f"{name} reported a failure that can't be read ({data[:40]!r}): something in it writes to sockets that are "
            f"not its own"
        )
    if isinstance(kind, type) and issubclass(kind, HeadraceError):
        failure = kind(report["message"])
    else:
        failure = HeadraceError(f"{name}: {report['kind']}: {report['message']}")
    if isinstance(failure, EnvRaised) and report["place"]:
        failure.place = tuple(report["place"])
    if with_ours or report["is_others"]:
        failure.add_note(f"In {name}:\n{report['traceback']}")
    return failure
