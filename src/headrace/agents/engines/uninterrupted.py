"""Functions of tensors that do not come back to the interpreter between their operations.

    uninterrupted(function) -> the same function, run by TorchScript: one call that other threads can't get between

An operation of torch lets go of the interpreter, and has to get it back afterwards. Where a dozen threads want it, a
pass of a hundred operations waits for them a hundred times. TorchScript makes the same operations one by one, and
fuses nothing, so bits are the same. Knows no models and no caches.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar, cast

import torch

Function = TypeVar("Function", bound=Callable[..., object])


def uninterrupted(function: Function) -> Function:
    """It, or the function as it is where TorchScript, which torch will give up one day, is not there any more."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            script = torch.jit.script(function)
    except Exception:
        return function

    def run(*arguments: object) -> object:
        # In this thread only. It would else measure its first calls, and compile anew while episodes wait.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return script(*arguments)

    return cast(Function, run)
