"""IMPALA for policies that remember: its minibatches are chunks of successive rows, as those of recurrent PPO.

The states at chunks' borders are those that the present weights find, from the state at the rollout's first row on.
"""

from __future__ import annotations

from typing import Any

from headrace.learning.algorithm import Moment
from headrace.learning.batch import Array, Batch
from headrace.learning.config import ImpalaConfig
from headrace.learning.impala import Impala
from headrace.learning.ppo_loss import Rows
from headrace.learning.recurrent_ppo import chunks_of, make_room
from headrace.learning.sequences import evaluated
from headrace.policies.policy import Evaluation
from headrace.weights.flat import FlatParameters


class RecurrentImpala(Impala):
    """V-trace actor-critic over sequences."""

    def __init__(self, flat: FlatParameters, config: ImpalaConfig, seed: int) -> None:
        super().__init__(flat, config, seed)
        self._picked_from = chunks_of

    def learn(self, batch: Batch, moment: Moment) -> dict[str, float]:
        """One update."""
        make_room(batch, self._config.batch_size)
        return super().learn(batch, moment)

    def _evaluated(self, rows: Any, indices: Array) -> tuple[Evaluation, Rows]:
        return evaluated(self._policy, rows, indices)


build = RecurrentImpala
