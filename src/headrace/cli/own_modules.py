"""Before the user's own code runs: it may be imported from the working directory, and what it starts is guarded.

    spec with module:attribute, named by the user or with consent --> sys.path, as `python -m` would have it
    any environment                                               --> the guard of the command (runtime/guard)

Not earlier: a package that is not installed would otherwise be looked for in the working directory, which may be an
unpacked archive; and a command that makes no environment needs no guard.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.runtime import guard


def find_own_modules(*specs: Mapping[str, Any]) -> None:
    """For encoded environments, before they are made: where they name a module, let it be found here."""
    guard.command.begin()
    find_modules(name for spec in specs for name in (spec.get("env"), *spec.get("wrappers", ())))


def find_modules(names: Iterable[object]) -> None:
    """The same, for names; an id of Gymnasium's registry has no colon."""
    here = os.getcwd()
    if any(isinstance(name, str) and ":" in name for name in names) and here not in sys.path:
        sys.path.insert(0, here)
