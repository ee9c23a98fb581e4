"""Where the time of the hosts went, from the slabs that they filled: by worker, and of the slowest environment.

    slab's header and step_ns ──enter──> sums since the last record ──record──> headrace/time, actors, worker_N, envs

Does not know where hosts run, nor what is concluded from it (planning/evidence).
"""

from __future__ import annotations

import numpy as np

from headrace.memory.layout import Word
from headrace.memory.slab import Slab

_NAMES = ("env", "inference", "copy", "idle", "cpu")
_WORDS = np.array([int(word) for word in (Word.ENV_NS, Word.INFERENCE_NS, Word.COPY_NS, Word.IDLE_NS, Word.CPU_NS)])


class Accounts:
    """Of some workers and all environments of a run."""

    def __init__(self, workers: int, n_envs: int) -> None:
        self._spent_ns = np.zeros((workers, len(_NAMES)))
        self._step_ns = np.zeros(n_envs)  # lately; 0: not known

    def enter(self, worker: int, envs: range, slab: Slab) -> None:
        """A slab that a worker has filled."""
        self._spent_ns[worker] += slab.header[_WORDS]
        if slab.step_ns[0]:
            self._step_ns[envs.start : envs.stop] = slab.step_ns

    def record(self, is_inline: bool) -> dict[str, float]:
        """Seconds since the last record. Inline it is the learner's own thread that spent them."""
        spent_s = self._spent_ns / 1e9
        total = dict(zip(_NAMES, spent_s.sum(0).tolist(), strict=True))
        record = {f"headrace/time/{name}": is_inline * total[name] for name in _NAMES[:3]}
        record |= {f"headrace/actors/{name}_s": seconds for name, seconds in total.items()}
        for worker, own in enumerate([] if is_inline else spent_s.tolist()):
            record |= {f"headrace/worker_{worker}/{name}_s": own[i] for i, name in enumerate(_NAMES)}
        self._spent_ns[:] = 0.0
        return record | self._slowest()

    def _slowest(self) -> dict[str, float]:
        """Which environment takes the longest step, beside what is usual; nothing if they can't be told apart."""
        if len(self._step_ns) < 2 or not self._step_ns.all():
            return {}
        in_order = np.argsort(self._step_ns)
        slowest, usual = in_order[-1], in_order[(len(in_order) - 1) // 2]
        return {
            "headrace/envs/slowest": float(slowest),
            "headrace/envs/slowest_s": float(self._step_ns[slowest]) / 1e9,
            "headrace/envs/median_s": float(self._step_ns[usual]) / 1e9,
        }
