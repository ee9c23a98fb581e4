"""Bytes from one array to another, for compiled code: whatever the dtypes are, without a view or a slice.

    copy_bytes(to, 64, source, 0, source.nbytes)      a place of a shared segment <- a row of a slab, and back

Both arrays are contiguous; who calls has compared the sizes.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from numba import TypingError, types
from numba.core import cgutils
from numba.extending import intrinsic

from headrace.compiler import compiled

Array = npt.NDArray[Any]


@intrinsic
def _copy(typing_context: Any, to: Any, to_start: Any, source: Any, source_start: Any, size: Any) -> Any:
    if to.layout != "C" or source.layout != "C":
        raise TypingError(f"expected contiguous arrays, got {to} and {source}")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def place(array: int) -> Any:
            data = context.make_array(signature.args[array])(context, builder, arguments[array]).data
            return builder.gep(builder.bitcast(data, cgutils.voidptr_t), [arguments[array + 1]])

        cgutils.raw_memcpy(builder, place(0), place(2), arguments[4], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(to, types.intp, source, types.intp, types.intp), generate


@compiled
def copy_bytes(to: Array, to_start: int, source: Array, source_start: int, size: int) -> None:
    """So many bytes; starts are in bytes."""
    _copy(to, to_start, source, source_start, size)  # type: ignore[call-arg]
