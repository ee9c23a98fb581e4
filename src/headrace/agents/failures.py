"""How an episode fails: one exception that carries the boundary. Does not know who catches it."""

from __future__ import annotations

from headrace.agents.records import BOUNDARIES, Failure
from headrace.errors import HeadraceError


class EpisodeError(HeadraceError):
    """Something at a boundary of an episode failed: environment, engine, parser, time limit or worker."""

    def __init__(self, boundary: str, message: str) -> None:
        assert boundary in BOUNDARIES, boundary
        super().__init__(f"{boundary}: {message}")
        self.boundary = boundary
        self.told = message

    @property
    def failure(self) -> Failure:
        """For the record."""
        return Failure(self.boundary, self.told)
