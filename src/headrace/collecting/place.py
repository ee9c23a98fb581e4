"""What every place where hosts run offers to the reader: six methods and a close.

    launch(start_of) -> order(...): work for the host of a shard -> wait(): until something is committed -> close()

`start_of(shard)` says where a shard stands (None: at its beginning); it is asked again whenever a lost worker is
replaced, after the reader has taken what the worker had committed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace.collecting.order import Order
from headrace.episodes.standing import Standing

StartOf = Callable[[int], Standing | None]
Say = Callable[[str], None]  # a line for people


@dataclass
class Replaced:
    """Hosts that others took the place of, in all places that a run has had."""

    restarts: int = 0
    """Lost."""
    env_failures: int = 0
    """Those of them that an environment ended by raising."""
    recycled: int = 0
    """Ended in order, to be replaced by fresh ones."""
    servers: int = 0
    """Inference servers that were lost and replaced."""


class Place(Protocol):
    """All hosts of a run."""

    replaced: Replaced

    def launch(self, start_of: StartOf, say: Say) -> None:
        """Bring every host up; returns when all environments are ready. Says who is ready if it takes long."""

    def replace_lost(self) -> list[int]:
        """Start what takes the place of hosts that are gone; returns their shards, whose orders are void."""

    def order(self, order: Order) -> None:
        """Hand an order to the host of its shard; does not wait."""

    def wait(self) -> None:
        """Until a slab is committed or a host is gone. A failure that no other host could mend is raised here."""

    def served(self) -> dict[str, float]:
        """What inference servers did since the last call, for the record; nothing without them."""

    def worker_of(self, shard: int) -> int:
        """The number of the host that fills a shard's slabs."""

    def close(self) -> None:
        """End every host and close all environments; may be called at any time, and twice."""
