"""Actor-critic with V-trace (IMPALA's loss): one pass over each batch, corrected for the policy that acted.

    batch -> completion with the policy that acted -> V-trace targets from the present weights
          -> minibatches, each row once: -advantage * log pi + value loss - entropy -> clip -> Adam

In a synchronous run the ratios are 1 and V-trace is the n-step return: advantage actor-critic. Gradients come from
autograd, for any policy. Does not know epochs, clipping of ratios to a trust region, or where the batch was collected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.clock import now_s
from headrace.learning.advantages import Targets
from headrace.learning.algorithm import Moment, count_of
from headrace.learning.assembly import complete
from headrace.learning.batch import Array, Batch
from headrace.learning.config import ImpalaConfig, schedule
from headrace.learning.device_adam import adam_for
from headrace.learning.fast_path import Evaluators
from headrace.learning.late import seen_by, vtrace
from headrace.learning.ppo import explained_variance, minibatches, picked_from, shuffling, spread
from headrace.learning.ppo_loss import Rows
from headrace.policies.networks import as_policy
from headrace.policies.policy import Evaluation
from headrace.weights.flat import FlatParameters


class Impala:
    """V-trace actor-critic over a flat parameter vector."""

    def __init__(self, flat: FlatParameters, config: ImpalaConfig, seed: int) -> None:
        self._flat, self._config, self._seed = flat, config, seed
        self._policy = as_policy(flat.module)
        self._evaluators = Evaluators(is_closed_form=False)
        self._learning_rate = schedule("learning_rate", config.learning_rate)
        self._ent_coef = schedule("ent_coef", config.ent_coef)
        self._picked_from: Callable[[Batch, Targets, int, torch.device], tuple[Any, Array, int]] = picked_from
        self._adam = adam_for(flat.vector, flat.gradient)
        self._minibatches_done = 0
        self.threads = config.learner_threads
        self.summary = f"one pass in minibatches of {config.batch_size}, V-trace, gradients autograd"

    def learn(self, batch: Batch, moment: Moment) -> dict[str, float]:
        """One update; the record has PPO's names where the meaning is the same."""
        started = now_s()
        complete(batch, lambda version: self._evaluators.of(moment.acted(version)), self._flat.vector.device)
        completed = now_s()
        now = seen_by(batch, self._evaluators.of(self._flat.module), self._flat.vector.device)
        config = self._config
        advantage, returns = vtrace(
            batch.reward, now.value, now.bootstrap_value, batch.terminated, batch.truncated, batch.valid,
            now.last_value, config.gamma, config.gae_lambda, now.log_prob - batch.log_prob, config.late_clip,
        )  # fmt: skip
        targeted = now_s()
        record = self._pass(batch, now, advantage, returns, moment)
        return record | {
            "headrace/time/completion": completed - started,
            "headrace/time/advantages": targeted - completed,
            "headrace/time/sgd": now_s() - targeted,
        }

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What the next update depends on besides the parameters."""
        return {"minibatches_done": self._minibatches_done}, self._adam.tensors()

    def restore(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Go on from a checkpoint."""
        self._minibatches_done = count_of(state, "minibatches_done")
        self._adam.restore(tensors)

    def _pass(self, batch: Batch, now: Batch, advantage: Array, returns: Array, moment: Moment) -> dict[str, float]:
        config = self._config
        ent_coef, learning_rate = (
            self._ent_coef(moment.progress_remaining),
            self._learning_rate(moment.progress_remaining),
        )
        targets = Targets(advantage, returns, now.log_prob, np.ones_like(advantage), now.value)
        rows, units, size = self._picked_from(batch, targets, config.batch_size, self._flat.vector.device)
        self._flat.module.train()
        frozen = self._flat.frozen()
        terms, norms = [], []
        for indices in minibatches(units, size, 1, shuffling(self._seed, moment.update)):
            self._flat.attach_gradients(self._flat.gradient)
            self._flat.gradient.zero_()
            seen, picked = self._evaluated(rows, indices)
            policy_loss = -(picked.advantage * seen.log_prob).mean()
            value_loss = (picked.returns - seen.value).square().mean()
            entropy_loss = -seen.entropy.mean()
            loss = policy_loss + ent_coef * entropy_loss + config.vf_coef * value_loss
            loss.backward()
            for gradient in frozen:
                gradient.zero_()
            terms.append(torch.stack([loss, policy_loss, value_loss, entropy_loss]).tolist())
            norms.append(self._adam.clipped_step(learning_rate, config.max_grad_norm))
        self._minibatches_done += len(norms)
        names = ("loss", "policy_gradient_loss", "value_loss", "entropy_loss")
        return {f"train/{name}": value for name, value in zip(names, np.mean(terms, axis=0).tolist(), strict=True)} | {
            "headrace/first_entropy": -terms[0][3],
            "train/grad_norm": float(np.mean(norms)),
            "train/explained_variance": explained_variance(now.value[batch.valid], returns[batch.valid]),
            "train/learning_rate": learning_rate,
            "train/ent_coef": ent_coef,
            "train/n_updates": float(self._minibatches_done),
            **spread(self._flat.module),
        }

    def _evaluated(self, rows: Any, indices: Array) -> tuple[Evaluation, Rows]:
        """What the policy says of a minibatch, and its rows."""
        picked = rows.pick(torch.from_numpy(indices).to(self._flat.vector.device))
        return self._policy.evaluate(picked.obs, picked.action), picked


build = Impala
