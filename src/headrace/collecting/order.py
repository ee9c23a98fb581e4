"""An order: what the reader's side says to a host. A lease on its way, as data or as a record of fixed size.

reader: Order -> place -> (processes: encode -> line -> decode) -> host
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Self

from headrace.memory.lease import Lease

_ORDER = struct.Struct("=6q")


@dataclass(frozen=True)
class Order:
    """Which slab to fill, and with which weights to begin."""

    lease: Lease
    version: int
    offset: int  # of the slab in the ring's segment
    versions: tuple[int, ...] | None = None  # per row, to replay a recorded schedule (inline only)

    def encode(self) -> bytes:
        """As a record of fixed size."""
        return _ORDER.pack(*self.lease, self.version, self.offset)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The inverse."""
        *lease, version, offset = _ORDER.unpack(data)
        return cls(Lease(*lease), version, offset)
