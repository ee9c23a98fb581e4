"""Words that two processes share: a store that publishes what was written before it, a load that sees it.

    writer: fill the block, store_release(word)      reader: load_acquire(word), then read the block

One writer per word, so nothing more is needed. numba emits the machine's own ordered loads and stores: on x86 plain
moves that the compiler may not reorder, on ARM ldar and stlr. `fence` orders everything before it against everything
after it, for reading a block and then checking that its word has not changed. `compare_exchange` is for the rare word
that several processes change.
A word is an aligned element of an int64 array; it lies in one cache line, so it can't tear.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from headrace.compiler import compiled

Array = npt.NDArray[Any]


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    view = context.make_array(array_type)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, array_type, view, [index])  # type: ignore[no-untyped-call]


@intrinsic
def _load(typing_context: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], *arguments)
        return builder.load_atomic(pointer, ordering="acquire", align=8)

    return types.int64(array, types.intp), generate


@intrinsic
def _store(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], *arguments[:2])
        builder.store_atomic(arguments[2], pointer, ordering="release", align=8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int64), generate


@intrinsic
def _fence(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _exchange(typing_context: Any, array: Any, index: Any, seen: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], *arguments[:2])
        pair = builder.cmpxchg(pointer, arguments[2], arguments[3], "acq_rel", "acquire")
        return builder.extract_value(pair, 1)

    return types.boolean(array, types.intp, types.int64, types.int64), generate


@compiled
def load_acquire(words: Array, index: int) -> int:
    """The word, and with it everything its writer wrote before storing it."""
    return int(_load(words, index))  # type: ignore[call-arg]


@compiled
def store_release(words: Array, index: int, value: int) -> None:
    """Set the word, after everything this thread wrote before."""
    _store(words, index, value)  # type: ignore[call-arg]


@compiled
def compare_exchange(words: Array, index: int, seen: int, value: int) -> bool:
    """Set the word if it still holds what was seen; whether it did."""
    return bool(_exchange(words, index, seen, value))  # type: ignore[call-arg]


@compiled
def fence() -> None:
    """Nothing before moves after, nothing after moves before."""
    _fence()  # type: ignore[call-arg]
