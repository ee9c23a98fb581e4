"""THE MAP: how experience becomes weights. Read this first.

    source.collect ──> algorithm.learn ──> weights.publish ──> source.run_ahead
       (lends)           (in place)          (version + 1)       (more begins)

A run is three parts. The **source** lends batches: slabs that hosts filled, wherever they run (collecting/reader). The
**algorithm** changes the module's parameters in place (learning/ppo). The **weights** number versions and publish them
to whoever acts (weights/store). `Run.update` is their order and nothing else; the frozen `Update` it returns is all
that sessions, views, sinks and callbacks see.
`snapshot` asks every part for what its next update depends on; `restore` goes on from it bit for bit. Does not know
files, views, command lines or signals (session), nor how the parts are made (build).
"""

from __future__ import annotations

from typing import Any

from headrace.checkpoints.snapshot import Snapshot
from headrace.collecting.source import Source, Totals
from headrace.learning.algorithm import Algorithm, Moment
from headrace.policies.threads import torch_threads
from headrace.update import Update
from headrace.weights import saving
from headrace.weights.flat import tensors_sha256
from headrace.weights.store import Weights


class Run:
    """A source, an algorithm and weights, connected. One thread reads and learns; close it when done."""

    def __init__(self, source: Source, algorithm: Algorithm, weights: Weights, identity: dict[str, Any]) -> None:
        self.source, self.algorithm, self.weights = source, algorithm, weights
        self._identity = identity  # configuration and spaces: a snapshot carries them along
        self.updates = 0
        self.steps = 0
        self.is_whole = True  # between two updates, where a snapshot is a valid checkpoint

    def update(self, total_timesteps: int) -> Update:
        """Collect a batch, learn from it, publish."""
        batch = self.source.collect()
        self.is_whole = False
        version, progress = self.weights.version, max(0.0, 1.0 - self.steps / max(1, total_timesteps))
        moment = Moment(self.updates, version, self.weights.is_present, progress, self.weights.acted)
        with torch_threads(self.algorithm.threads):
            learned = self.algorithm.learn(batch, moment)
        harvest = self.source.give_back()
        self.updates += 1
        self.steps += harvest.steps
        self.weights.publish_if_due(self.updates)
        self.is_whole = True
        if self.steps < total_timesteps:  # else nothing is ordered that weights of the user's would come too late for
            self.source.run_ahead()
        return Update(self.updates, version, self.steps, learned, harvest)

    def hashes(self) -> dict[str, str]:
        """The names of this run's weights and of the algorithm's state."""
        _, tensors = self.algorithm.state()
        return {
            "weights_sha256": tensors_sha256(dict(self.weights.module.named_parameters())),
            "optimizer_sha256": tensors_sha256(tensors),
        }

    def totals(self) -> Totals:
        """What was collected so far."""
        return self.source.totals()

    def snapshot(self) -> Snapshot:
        """Everything the next update depends on, copied: the run may go on. Call it between updates."""
        source, arrays = self.source.snapshot()
        algorithm, optimizer = self.algorithm.state()
        weights, parameters, published = saving.snapshot(self.weights)
        parts = {"source": source, "algorithm": algorithm, "weights": weights}
        counts = {"updates": self.updates, "steps": self.steps, "hashes": self.hashes()}
        tensors = {name: tensor.clone() for name, tensor in optimizer.items()}
        return Snapshot(parameters, tensors, arrays | published, self._identity | parts | counts)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot, bit for bit, wherever the parts run now. Its fit is checked by the caller (build)."""
        state = snapshot.state
        self.source.restore(state["source"], snapshot.episodes)
        saving.restore(self.weights, state["weights"], snapshot.weights, snapshot.episodes)
        self.algorithm.restore(state["algorithm"], snapshot.optimizer)
        self.updates, self.steps = state["updates"], state["steps"]

    def close(self) -> None:
        """End what collects, close all environments, give the memory back."""
        try:
            self.source.close()
        finally:
            self.weights.store.close()
