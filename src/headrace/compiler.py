"""How a function becomes machine code: numba, without the GIL, kept on disk between runs.

`compiled` takes sums in the order they are written and may only fuse `a + b * c`; `summing` may take them in vectors,
each always in the same way; `brief` keeps the GIL. Machine code is kept beside the source, or in the user's cache, or
made for each process. Knows nothing of any room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """A function as machine code that releases the GIL; sums are taken in the order they are written."""
    return _compile(function, {"contract"})


def brief(function: Function) -> Function:
    """The same for what is over at once: it keeps the GIL, which spares half the time of a call."""
    return _compile(function, {"contract"}, is_released=False)


def summing(function: Function) -> Function:
    """The same, but sums may be taken in vectors."""
    return _compile(function, {"contract", "reassoc", "nsz"})


def _compile(function: Function, allowed: set[str], is_released: bool = True) -> Function:
    options: dict[str, Any] = {"nogil": is_released, "error_model": "numpy", "fastmath": allowed}
    try:
        return numba.njit(cache=True, **options)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # neither the package nor the user's cache can be written to
        return numba.njit(**options)(function)  # type: ignore[no-any-return]
