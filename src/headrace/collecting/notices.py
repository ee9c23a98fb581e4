"""What hosts noted in the headers of their slabs about environments: reported once a run, counted in every update.

    slab header --take--> one warning for each kind, with env, episode, seed and step
                          dropped steps -> ledger: produced, and discarded with a reason
                --counted--> headrace/clamped, headrace/dropped_episodes of the update

Wherever hosts run, the reader's process writes the warning, so it is in the log of the run. Does not know who mends.
"""

from __future__ import annotations

import logging

from headrace.acting.culprit import Culprit
from headrace.acting.inspection import Outside
from headrace.collecting.place import Say
from headrace.episodes.first_episodes import FirstEpisodes
from headrace.episodes.journal import Array, Journal
from headrace.memory.layout import Word
from headrace.memory.ledger import Ledger
from headrace.memory.slab import Slab

logger = logging.getLogger(__name__)

_REASON = "not finite (nan_policy=drop)"


class Notices:
    """Of all shards of a run."""

    def __init__(self, journal: Journal, say: Say) -> None:
        self._seed_of, self._space, self._say = journal.seed_of, journal.spaces[0], say
        self.first_episodes: FirstEpisodes | None = None  # kept for a check in passing
        self._reported: set[str] = set()
        self._counts: dict[str, float] = {}

    def take(self, env_indices: range, slab: Slab, checksums: Array, ledger: Ledger) -> None:
        """Look at one slab that joins the books, with the checksums of its rows."""
        if self.first_episodes is not None or slab.header[Word.CLAMPED : Word.CPU_NS].any():
            self._look(env_indices, slab, checksums, ledger)

    def counted(self) -> dict[str, float]:
        """What was mended since the last update, for its record; nothing if nothing was."""
        counts, self._counts = self._counts, {}
        return counts

    def _look(self, env_indices: range, slab: Slab, checksums: Array, ledger: Ledger) -> None:
        if self.first_episodes is not None:
            self.first_episodes.take(env_indices, slab, checksums)
        if slab.header[Word.CLAMPED : Word.CPU_NS].any():
            self._report(slab, Culprit(env_indices, self._seed_of), ledger)

    def _report(self, slab: Slab, culprit: Culprit, ledger: Ledger) -> None:
        clamped, episodes, steps, *place = slab.header[Word.CLAMPED : Word.OUTSIDE].tolist()
        for name, count in (("clamped", clamped), ("dropped_episodes", episodes)):
            if count:
                self._counts[f"headrace/{name}"] = self._counts.get(f"headrace/{name}", 0.0) + count
        if steps:
            ledger.produced += steps
            ledger.discarded[_REASON] += steps
        if clamped:
            self._warn_once("clamped", f"{culprit.named(*place)}: a NaN or an infinity was clamped")
        if episodes:
            self._warn_once("dropped", f"{culprit.named(*place)}: NaN or infinity; the episode was dropped")
        if slab.header[Word.OUTSIDE]:
            text = Outside(self._space).text(slab, culprit)
            self._warn_once("outside", f"{text}. Correct the space, or set out_of_bounds=refuse or ignore")

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._reported:
            self._reported.add(kind)
            logger.warning("%s (reported once)", text)
            self._say(f"warning: {text} (reported once)")
