"""The learner: a completed batch in, changed parameters out. One call of `update` is one version.

    batch -> targets (advantages; corrections of late rows) -> epochs of minibatches: gradients -> finite? -> clip ->
    Adam, all on one flat vector

Parameters never become NaN: a gradient that is not finite stops the run before it is applied.
Does not know slabs, rings, publishing or who collected the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from headrace.errors import NumericsError, UsageError
from headrace.learning.adam import Adam
from headrace.learning.advantages import gae, vtrace
from headrace.learning.batch import Array, Batch
from headrace.learning.closed_form import ClosedFormEvaluator, ClosedFormGradients, supports
from headrace.learning.completion import complete
from headrace.learning.config import PpoConfig, schedule
from headrace.learning.minibatches import minibatches
from headrace.learning.ppo import AutogradGradients, Coefficients, Gradients, Rows, Terms
from headrace.policies.networks import MlpPolicy, as_policy
from headrace.policies.policy import Evaluator
from headrace.weights.flat import FlatParameters

Generator = Callable[[int], np.random.Generator]  # update number -> the generator of its shuffling


class Targets(NamedTuple):
    """What PPO trains on, [T, N]: advantages, value targets, and the policy that ratios are clipped against."""

    advantage: Array
    returns: Array
    log_prob: Array
    weight: Array
    value: Array | None = None  # what clip_range_vf clips around; None: the batch's own


class Learner:
    """PPO over a flat parameter vector."""

    def __init__(self, flat: FlatParameters, config: PpoConfig, shuffling: Generator) -> None:
        self._flat = flat
        self._config = config
        self._shuffling = shuffling
        self._gradients = _choose_gradients(flat, config)
        self._learning_rate = schedule("learning_rate", config.learning_rate)
        self._clip_range = schedule("clip_range", config.clip_range)
        self._ent_coef = schedule("ent_coef", config.ent_coef)
        self._adam = Adam(flat.vector, flat.gradient)
        self.minibatches_done = 0

    @property
    def gradients_name(self) -> str:
        """How gradients are computed, for people."""
        return "closed form" if isinstance(self._gradients, ClosedFormGradients) else "autograd"

    def evaluator(self, module: nn.Module) -> Evaluator:
        """How a replica's log-probabilities are computed: as this learner does it, so that the first ratio is 1."""
        if isinstance(module, MlpPolicy) and isinstance(self._gradients, ClosedFormGradients):
            return ClosedFormEvaluator(module)
        return as_policy(module)

    def targets(self, batch: Batch, version: int, is_present: bool = True) -> Targets:
        """What a completed batch teaches; rows that an older version than `version` acted in, by `late`.

        `is_present` says that the learner's weights are that version's: they are not if it publishes less often.
        """
        config = self._config
        arrays = (batch.reward, batch.value, batch.bootstrap_value, batch.terminated, batch.truncated, batch.valid)
        discounts = (config.gamma, config.gae_lambda)
        if config.late == "reject" or (is_present and int(batch.version.min()) >= version):
            advantage, returns = gae(*arrays, batch.last_value, *discounts)
            return Targets(advantage, returns, batch.log_prob, np.ones_like(batch.log_prob))
        now = _seen_by(batch, self.evaluator(self._flat.module))
        log_ratio = now.log_prob - batch.log_prob
        if config.late == "weight":
            advantage, returns = gae(*arrays, batch.last_value, *discounts)
            weight = np.exp(np.minimum(log_ratio, np.log(np.float32(config.late_clip))))
            return Targets(advantage, returns, now.log_prob, weight, now.value)
        values = (batch.reward, now.value, now.bootstrap_value, batch.terminated, batch.truncated, batch.valid)
        advantage, returns = vtrace(*values, now.last_value, *discounts, log_ratio, config.late_clip)
        return Targets(advantage, returns, now.log_prob, np.ones_like(batch.log_prob), now.value)

    def update(self, batch: Batch, targets: Targets, update: int, progress_remaining: float) -> dict[str, float]:
        """All epochs over one batch; returns what SB3 would log under train/."""
        config = self._config
        coefficients = Coefficients(
            self._clip_range(progress_remaining),
            config.clip_range_vf,
            self._ent_coef(progress_remaining),
            config.vf_coef,
            config.normalize_advantage,
        )
        learning_rate = self._learning_rate(progress_remaining)
        everything = _rows(batch, targets)
        valid = np.flatnonzero(batch.valid)
        if not len(valid):
            raise UsageError(
                f"n_steps={config.n_steps}: no row of the rollout holds a step (all environments were being reset); "
                f"use more rows"
            )
        generator = self._shuffling(update)
        seen: list[Terms] = []
        norms: list[float] = []
        stopped = False
        self._flat.module.train()
        frozen = self._flat.attach_gradients()
        for _ in range(config.n_epochs):
            for indices in minibatches(valid, config.batch_size, generator):
                terms = self._gradients(everything, torch.from_numpy(indices), coefficients)
                for gradient in frozen:
                    gradient.zero_()
                seen.append(terms)
                if config.target_kl is not None and terms.approx_kl > 1.5 * config.target_kl:
                    stopped = True
                    break
                norms.append(self._step(learning_rate))
            if stopped:
                break
        self.minibatches_done += len(norms)
        return _summary(seen, norms) | {
            "train/explained_variance": _explained_variance(batch.value[batch.valid], targets.returns[batch.valid]),
            "headrace/down_weighted": float((targets.weight[batch.valid] < 1.0 - 1e-6).sum()),
            "train/learning_rate": learning_rate,
            "train/clip_range": coefficients.clip_range,
            "train/ent_coef": coefficients.ent_coef,
            "train/n_updates": float(self.minibatches_done),
        }

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """Adam's state, by name."""
        return self._adam.tensors()

    def restore_optimizer(self, tensors: dict[str, Tensor], minibatches_done: int) -> None:
        """Go on from a checkpoint."""
        self.minibatches_done = minibatches_done
        self._adam.restore(tensors)

    def _step(self, learning_rate: float) -> float:
        norm = self._adam.gradient_norm()
        if not np.isfinite(norm):
            raise NumericsError(
                f"the gradient is not finite (norm {norm}) after {self.minibatches_done} minibatches; the parameters "
                f"are untouched. Lower learning_rate or check the scale of rewards and observations"
            )
        limit = self._config.max_grad_norm
        self._adam.step(learning_rate, limit / (norm + 1e-6) if norm > limit else 1.0)
        return norm


def _choose_gradients(flat: FlatParameters, config: PpoConfig) -> Gradients:
    possible = supports(flat.module)
    if config.gradients == "closed_form" and not possible:
        raise UsageError(
            f"gradients=closed_form: expected MlpPolicy with discrete or continuous actions, got "
            f"{type(flat.module).__name__}; use auto"
        )
    return ClosedFormGradients(flat) if possible and config.gradients != "autograd" else AutogradGradients(flat)


def _seen_by(batch: Batch, policy: Evaluator) -> Batch:
    """The batch as the present weights see it; the slabs' own numbers stay."""
    fresh = {
        name: np.empty_like(getattr(batch, name)) for name in ("log_prob", "value", "bootstrap_value", "last_value")
    }
    seen = replace(batch, version=np.zeros_like(batch.version), **fresh)
    complete(seen, lambda version: policy)
    return seen


def _rows(batch: Batch, targets: Targets) -> Rows:
    n = batch.n_steps * batch.n_envs
    arrays = (
        batch.obs,
        batch.action,
        targets.log_prob,
        batch.value if targets.value is None else targets.value,
        targets.advantage,
        targets.returns,
        targets.weight,
    )
    return Rows(*(torch.from_numpy(a.reshape(n, *a.shape[2:])) for a in arrays))


def _summary(seen: list[Terms], norms: list[float]) -> dict[str, float]:
    means = dict(zip(Terms._fields, np.mean(seen, axis=0).tolist(), strict=True))
    del means["ratio_error"]
    return {f"train/{name}": value for name, value in means.items()} | {
        "train/grad_norm": float(np.mean(norms)) if norms else 0.0,
        "headrace/first_ratio_error": seen[0].ratio_error,
    }


def _explained_variance(value: Array, returns: Array) -> float:
    variance = float(np.var(returns))
    return float("nan") if variance == 0 else 1.0 - float(np.var(returns - value)) / variance
