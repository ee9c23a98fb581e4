"""PPO: a batch in, changed parameters out.

    batch -> completion with the policy that acted -> targets (advantages; corrections of late rows)
          -> epochs of minibatches: gradients -> finite? -> clip -> Adam, all on one flat vector

A partial last minibatch is trained, as SB3 does. Gradients come from a function over a range of a minibatch's rows into
a given buffer, so that a minibatch may be computed in pieces. Parameters never become NaN: a gradient that is not
finite stops the run before it is applied. Does not know slabs, rings, publishing or where the batch was collected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace.clock import now_s
from headrace.envs.seeds import Purpose, sequence
from headrace.errors import UsageError
from headrace.learning.advantages import Targets, advantages
from headrace.learning.algorithm import Moment, count_of
from headrace.learning.assembly import as_rows, complete
from headrace.learning.batch import Array, Batch
from headrace.learning.config import PpoConfig, schedule
from headrace.learning.device_adam import adam_for
from headrace.learning.fast_path import Evaluators, gradients_of
from headrace.learning.late import late_targets
from headrace.learning.ppo_loss import AutogradGradients, Coefficients, Rows, Terms
from headrace.memory.spaces import as_seen
from headrace.weights.flat import FlatParameters


class Ppo:
    """PPO over a flat parameter vector."""

    def __init__(self, flat: FlatParameters, config: PpoConfig, seed: int) -> None:
        self._flat, self._config, self._seed = flat, config, seed
        self._gradients = gradients_of(flat, config)
        is_closed = not isinstance(self._gradients, AutogradGradients)
        self._evaluators = Evaluators(is_closed)
        options = {name: getattr(config, name) for name in ("learning_rate", "clip_range", "clip_range_vf", "ent_coef")}
        self._schedules = {name: schedule(name, value) for name, value in options.items() if value is not None}
        self._picked_from: Callable[[Batch, Targets, int, torch.device], tuple[Any, Array, int]] = picked_from
        self._adam = adam_for(flat.vector, flat.gradient)
        self._minibatches_done = 0
        self.threads = config.learner_threads
        self.summary = (
            f"{config.n_epochs} epoch{'s'[: config.n_epochs != 1]} of minibatches of {config.batch_size}, "
            f"gradients {'closed form' if is_closed else 'autograd'}"
        )

    def learn(self, batch: Batch, moment: Moment) -> dict[str, float]:
        """One update; returns what SB3 would log under train/, and where the time went."""
        started = now_s()
        complete(batch, lambda version: self._evaluators.of(moment.acted(version)), self._flat.vector.device)
        completed = now_s()
        targets = self.targets(batch, moment.version, moment.is_present)
        targeted = now_s()
        record = self.epochs(batch, targets, moment.update, moment.progress_remaining)
        return record | {
            "headrace/time/completion": completed - started,
            "headrace/time/advantages": targeted - completed,
            "headrace/time/sgd": now_s() - targeted,
        }

    def targets(self, batch: Batch, version: int, is_present: bool = True) -> Targets:
        """What a completed batch teaches; rows that an older version than `version` acted in, by `late`.

        `is_present` says that the module's weights are that version's.
        """
        config = self._config
        if config.late == "reject" or (is_present and int(batch.version.min()) >= version):
            advantage, returns = advantages(batch, config)
            return Targets(advantage, returns, batch.log_prob, np.ones_like(batch.log_prob))
        return late_targets(batch, self._evaluators.of(self._flat.module), config, self._flat.vector.device)

    def epochs(self, batch: Batch, targets: Targets, update: int, progress_remaining: float) -> dict[str, float]:
        """All epochs over one batch."""
        config = self._config
        now = {name: value_at(progress_remaining) for name, value_at in self._schedules.items()}
        learning_rate, clip_range, ent_coef = now["learning_rate"], now["clip_range"], now["ent_coef"]
        fixed = config.vf_coef, config.normalize_advantage
        coefficients = Coefficients(clip_range, now.get("clip_range_vf"), ent_coef, *fixed)
        device = self._flat.vector.device
        rows, units, size = self._picked_from(batch, targets, config.batch_size, device)
        generator = shuffling(self._seed, update)
        seen, norms = list[Terms](), list[float]()
        self._flat.module.train()
        frozen = self._flat.frozen()
        for indices in minibatches(units, size, config.n_epochs, generator):
            minibatch = self._gradients.minibatch(rows, torch.from_numpy(indices), coefficients)
            terms = self._gradients(minibatch, 0, len(indices), self._flat.gradient)
            for gradient in frozen:
                gradient.zero_()
            seen.append(terms)
            if config.target_kl is not None and terms.approx_kl > 1.5 * config.target_kl:
                break
            norms.append(self._adam.clipped_step(learning_rate, config.max_grad_norm))
        self._minibatches_done += len(norms)
        return _summary(seen, norms) | {
            "train/explained_variance": explained_variance(batch.value[batch.valid], targets.returns[batch.valid]),
            "headrace/down_weighted": float((targets.weight[batch.valid] < 1.0 - 1e-6).sum()),
            "train/learning_rate": learning_rate,
            "train/clip_range": clip_range,
            "train/ent_coef": ent_coef,
            "train/n_updates": float(self._minibatches_done),
            **spread(self._flat.module),
        }

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What the next update depends on besides the parameters."""
        return {"minibatches_done": self._minibatches_done}, self._adam.tensors()

    def restore(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Go on from a checkpoint."""
        self._minibatches_done = count_of(state, "minibatches_done")
        self._adam.restore(tensors)


build = Ppo


def shuffling(seed: int, update: int) -> np.random.Generator:
    """The generator that orders an update's minibatches."""
    return np.random.Generator(np.random.PCG64(sequence(seed, Purpose.MINIBATCH, update)))


def minibatches(rows: Array, batch_size: int, n_epochs: int, generator: np.random.Generator) -> Iterator[Array]:
    """The rows of every minibatch of all epochs: one permutation of the rows per epoch, from the seed tree."""
    for _ in range(n_epochs):
        order = generator.permutation(rows)
        for start in range(0, len(order), batch_size):
            yield order[start : start + batch_size]


def valid_rows(batch: Batch) -> Array:
    """The flat indices of rows that hold a step; refused if there are none."""
    valid = np.flatnonzero(batch.valid)
    if not len(valid):
        raise UsageError(
            f"n_steps={batch.n_steps}: no row of the rollout holds a step (all environments were being reset, or "
            f"all episodes were dropped); use more rows"
        )
    return valid


def spread(module: nn.Module) -> dict[str, float]:
    """The standard deviation of continuous actions, where the policy has one of its own; SB3's train/std."""
    log_std = getattr(module, "log_std", None)
    return {} if log_std is None else {"train/std": float(log_std.detach().exp().mean())}


def explained_variance(value: Array, returns: Array) -> float:
    """How much of the returns the values foresaw: 1 is all of it."""
    variance = float(np.var(returns))
    return float("nan") if variance == 0 else 1.0 - float(np.var(returns - value)) / variance


def picked_from(batch: Batch, targets: Targets, size: int, device: torch.device) -> tuple[Rows, Array, int]:
    """What minibatches are picked from: rows, the numbers of those that hold a step, and how many make a minibatch."""
    n = batch.n_steps * batch.n_envs
    value = batch.value if targets.value is None else targets.value
    arrays = batch.action, targets.log_prob, value, targets.advantage, targets.returns, targets.weight
    obs = as_seen({name: as_rows(leaf, n, device) for name, leaf in batch.leaves.items()})
    rows = Rows(obs, *(as_rows(array, n, device) for array in arrays))
    return rows, valid_rows(batch), size


def _summary(seen: list[Terms], norms: list[float]) -> dict[str, float]:
    means = dict(zip(Terms._fields, np.mean(seen, axis=0).tolist(), strict=True))
    del means["ratio_error"]
    return {f"train/{name}": value for name, value in means.items()} | {
        "train/grad_norm": float(np.mean(norms)) if norms else 0.0,
        "headrace/first_ratio_error": seen[0].ratio_error,
        "headrace/first_entropy": -seen[0].entropy_loss,  # before the first step: of the weights as they came
    }
