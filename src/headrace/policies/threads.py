"""Torch's thread count, set and asserted by the code that runs torch: two threads on a shared core can be ten times
slower, and another count may change bits. Restores what it found, since the process may be the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


def torch_threads(count: int) -> AbstractContextManager[None]:
    """Run the block with exactly `count` intra-op threads."""
    return nullcontext() if torch.get_num_threads() == count else _changed(count)


@contextmanager
def _changed(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        assert torch.get_num_threads() == count, f"torch runs {torch.get_num_threads()} threads, expected {count}"
        yield
    finally:
        torch.set_num_threads(before)
