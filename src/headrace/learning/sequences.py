"""Learning from sequences: what a policy that remembers says of a batch, and its gradients over chunks of rows.

    batch, state at its first row --complete_sequences--> log_prob, value [T, N] · last_value · bootstrap_value
    rows in chunks of C, states at their first rows --RecurrentGradients--> gradients through time, within a chunk

A row is completed with the version that acted in it, and with the state that this version found: where versions change
within a rollout, the state that the older one left is handed on. The value of a final or last observation is that after
its row's state. An episode starts where the row before ended one, or was no step; the state there is 0. All that is
computed is computed on the learner's device; numbers of rows, and states between two blocks of rows, are on the CPU.
Does not know how rows become advantages, nor how a sequence is computed (policies/memories).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headrace.errors import NumericsError
from headrace.learning.batch import Array, Batch
from headrace.learning.ppo_loss import AutogradGradients, Coefficients, Rows, Terms, ppo_loss
from headrace.memory.spaces import Leaves, as_seen
from headrace.policies.policy import Evaluation
from headrace.policies.sequences import Split

Device = torch.device | None  # None: the CPU
_BLOCK_ROWS = 1 << 14  # whose states are in memory at once


def starts_of(batch: Batch) -> Array:
    """[T, N], whether an episode starts with a row. The first row's state was set to 0 already, if one does."""
    ends = batch.terminated | batch.truncated | ~batch.valid
    return np.concatenate([np.zeros_like(ends[:1]), ends[:-1]])


def complete_sequences(batch: Batch, policy_of: Callable[[int], Any], device: Device = None) -> None:
    """Fill the completed fields of a batch; `policy_of(version)` holds the weights of a version that acted."""
    assert batch.state is not None
    starts, after = starts_of(batch), batch.state.copy()
    final_step, final_env = np.divmod(batch.final_row, batch.n_envs)
    batch.bootstrap_value.fill(0.0)
    with torch.inference_mode():
        for start, stop in _blocks(batch):
            if batch.chunk_state is not None and start % (rows := _chunk_rows(batch)) == 0:
                batch.chunk_state[start // rows] = after
            for version in np.unique(batch.version[start]).tolist():
                policy = sequential(policy_of(version))
                envs = np.flatnonzero(batch.version[start] == version)
                here = np.ix_(np.arange(start, stop), envs)
                obs, split = _flat(batch.leaves, here, device), Split(starts[here], device)
                before = _put(after[envs], device)
                said, followed = _walked(policy, obs, _rows(batch.action[here], device), split, before)
                states = followed.cpu().numpy()
                batch.log_prob[here] = said.log_prob.cpu().numpy().reshape(stop - start, -1)
                batch.value[here] = said.value.cpu().numpy().reshape(stop - start, -1)
                after[envs] = states[-1]
                mine = np.flatnonzero((start <= final_step) & (final_step < stop) & np.isin(final_env, envs))
                if len(mine):
                    state = states[final_step[mine] - start, np.searchsorted(envs, final_env[mine])]
                    value = policy.value(_picked(batch.final_leaves, mine, device), _put(state, device))
                    batch.bootstrap_value.reshape(-1)[batch.final_row[mine]] = value.cpu().numpy()
                if stop == batch.n_steps:
                    last = policy.value(_picked(batch.last_leaves, envs, device), _put(after[envs], device))
                    batch.last_value[envs] = last.cpu().numpy()
    require_finite(batch.log_prob, batch.value, batch.last_value, batch.bootstrap_value)


def require_finite(*completed: Array) -> None:
    """Refuse what a policy that has diverged says of a batch."""
    if not all(np.isfinite(array).all() for array in completed):
        raise NumericsError(
            "the policy's log-probabilities or values are not finite; the weights have diverged: lower learning_rate, "
            "set max_grad_norm, or resume from an earlier checkpoint"
        )


def _chunk_rows(batch: Batch) -> int:
    assert batch.chunk_state is not None
    return -(-batch.n_steps // len(batch.chunk_state))


def _blocks(batch: Batch) -> Iterator[tuple[int, int]]:
    """Rows that are completed together: within a chunk, and each environment with one version."""
    changes = np.flatnonzero((batch.version[1:] != batch.version[:-1]).any(1)) + 1
    rows = batch.n_steps if batch.chunk_state is None else _chunk_rows(batch)
    least = max(1, min(rows, _BLOCK_ROWS // batch.n_envs))
    borders = {0, batch.n_steps, *changes.tolist(), *range(0, batch.n_steps, rows)}
    for start in range(0, batch.n_steps, rows):
        borders.update(range(start, min(start + rows, batch.n_steps), least))
    yield from pairwise(sorted(borders))


def _flat(leaves: Leaves, here: Any, device: Device) -> Any:
    return as_seen({name: _rows(leaf[here], device) for name, leaf in leaves.items()})


def _rows(array: Array, device: Device) -> Tensor:
    """[T, N, ...] as one axis of rows."""
    return _put(array.reshape(-1, *array.shape[2:]), device)


def _picked(leaves: Leaves, rows: Array, device: Device) -> Any:
    return as_seen({name: _put(leaf[rows], device) for name, leaf in leaves.items()})


def _put(array: Array, device: Device) -> Tensor:
    """On the CPU it is the array's own memory."""
    return torch.from_numpy(array).to(device)


class StepByStep:
    """Sequences of a policy that offers single rows alone: a policy of the user's own."""

    def __init__(self, policy: Any) -> None:
        self._policy, self.value = policy, policy.value

    def evaluate_sequences(self, obs: Any, actions: Tensor, split: Split, state: Tensor) -> Evaluation:
        """Row after row."""
        return self.walk(obs, actions, split, state)[0]

    def walk(self, obs: Any, actions: Tensor, split: Split, state: Tensor) -> tuple[Evaluation, Tensor]:
        """The same, and the state after every row: by evaluate, since it may remember what was done in it."""
        parts, states = [], []
        for t, going_on in enumerate(split.going_on):
            rows = slice(t * split.n_envs, (t + 1) * split.n_envs)
            said, state = self._policy.evaluate(_some(obs, rows), actions[rows], state * going_on)
            parts.append(said)
            states.append(state)
        return Evaluation(*(torch.cat(field) for field in zip(*parts, strict=True))), torch.stack(states)


def sequential(policy: Any) -> Any:
    """A policy that takes whole sequences."""
    return policy if hasattr(policy, "evaluate_sequences") and hasattr(policy, "follow") else StepByStep(policy)


def _walked(policy: Any, obs: Any, actions: Tensor, split: Split, state: Tensor) -> tuple[Evaluation, Tensor]:
    """What a policy says of sequences, and what it remembers after every row [T, N, S]."""
    if isinstance(policy, StepByStep):
        return policy.walk(obs, actions, split, state)
    return policy.evaluate_sequences(obs, actions, split, state), policy.follow(obs, split, state)


def _some(obs: Any, rows: slice) -> Any:
    return {name: leaf[rows] for name, leaf in obs.items()} if isinstance(obs, dict) else obs[rows]


def _chosen(column: Tensor, index: Tensor) -> Tensor:
    """Some chunks of a column, as one axis of rows."""
    return column.index_select(1, index).flatten(0, 1)


class Chunks(NamedTuple):
    """A batch in K chunks of C rows, time first."""

    rows: Rows  # [C, K, ...] each
    state: Tensor  # [K, S], before the first row
    starts: Array  # [C, K]
    valid: Array  # [C, K]


def evaluated(policy: Any, chunks: Chunks, which: Array) -> tuple[Evaluation, Rows]:
    """What a policy says of the valid rows of some chunks, with gradients through time; and these rows."""
    device = chunks.state.device
    index, (obs, *others) = _put(which, device), chunks.rows
    is_one = not isinstance(obs, dict)
    seen = _chosen(obs, index) if is_one else {name: _chosen(leaf, index) for name, leaf in obs.items()}
    rows = Rows(seen, *(_chosen(column, index) for column in others))
    split = Split(np.ascontiguousarray(chunks.starts[:, which]), device)
    state = chunks.state.index_select(0, index)
    said = sequential(policy).evaluate_sequences(rows.obs, rows.action, split, state)
    valid = _put(np.flatnonzero(chunks.valid[:, which]), device)
    if len(valid) == len(said.log_prob):
        return said, rows
    return Evaluation(*(one.index_select(0, valid) for one in said)), rows.pick(valid)


class SequenceMinibatch(NamedTuple):
    """Chunks that are learned from together."""

    chunks: Chunks
    picked: Array  # which of the chunks, by number
    mean: float  # of the advantages of all their valid rows,
    spread: float  # and what they are divided by
    n_rows: int  # these
    coefficients: Coefficients


class RecurrentGradients(AutogradGradients):
    """Gradients through the rows of a chunk."""

    def minibatch(self, rows: Any, index: Tensor, coefficients: Coefficients) -> Any:
        """What all ranges of its chunks have in common; `index` is on the CPU."""
        picked, device = index.numpy(), rows.state.device
        valid = np.flatnonzero(rows.valid[:, picked])
        advantage = _chosen(rows.rows.advantage, index.to(device)).index_select(0, _put(valid, device))
        mean, spread = 0.0, 1.0
        if coefficients.normalize_advantage and len(advantage) > 1:
            mean, spread = float(advantage.mean()), float(advantage.std()) + 1e-8
        return SequenceMinibatch(rows, picked, mean, spread, len(advantage), coefficients)

    def __call__(self, minibatch: Any, start: int, stop: int, out: Tensor) -> Terms:
        self._flat.attach_gradients(out)
        out.zero_()
        said, rows = evaluated(self._policy, minibatch.chunks, minibatch.picked[start:stop])
        advantage = (rows.advantage - minibatch.mean) / minibatch.spread * rows.weight
        loss, terms = ppo_loss(said, rows, advantage, minibatch.n_rows, minibatch.coefficients)
        loss.backward()
        return terms
