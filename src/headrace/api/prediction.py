"""Actions of a model for observations that a user has in hand.

observation, or a batch of them --> leaves --> the policy, in tiles as in training --> actions for the environment

A recurrent policy takes what it remembered [n, size] as well, and gives what it remembers then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.build import Parts
from headrace.collecting.plan import build_noise
from headrace.envs.actions import sender
from headrace.envs.seeds import Purpose
from headrace.errors import SchemaError, UsageError
from headrace.inference.recurrent import inference_of
from headrace.memory.in_hand import as_rows
from headrace.memory.schema import STATE, state_leaf
from headrace.memory.spaces import MASK, Leaves, choices_of, shape_of
from headrace.policies.networks import as_policy
from headrace.policies.policy import state_size_of
from headrace.policies.threads import torch_threads

Array = npt.NDArray[Any]


def predicted(
    parts: Parts,
    observation: Any,
    draw: int | None,
    state: Any = None,
    episode_start: Any = None,
    action_masks: Any = None,
) -> tuple[Array, Array | None]:
    """Actions, or one action for one observation. `draw` numbers the noise; None: the most likely actions."""
    if action_masks is not None or parts.config.policy.action_masks:
        observation = with_mask(parts, observation, action_masks)
    try:
        rows, is_single = as_rows(parts.observation, observation)
    except SchemaError as error:
        raise SchemaError(f"predict: {error}") from error
    count, noise = len(next(iter(rows.values()))), None
    if draw is not None:
        spec = as_policy(parts.module).noise
        drawn = build_noise(spec, range(count), parts.config.seed, Purpose.EVALUATION_NOISE)
        noise = drawn.draw(np.full(count, draw), 1)[0]
    memory = _remembered(state_size_of(parts.module), count, state, episode_start)
    actions = np.empty((count, *shape_of(parts.action)), parts.action.dtype)
    with torch_threads(1):
        inference_of(parts.acting, parts.observation, parts.action, parts.tile).act(rows | memory, noise, actions)
    actions = sender(parts.action)(actions)
    one: Array = actions[0] if is_single else actions
    return one, memory.get(STATE)


def with_mask(parts: Parts, observation: Any, action_masks: Any) -> dict[str, Any]:
    """An observation, or a batch of them, as the policy of a run with masks takes it."""
    if not parts.config.policy.action_masks:
        raise UsageError("predict: action_masks are for a model that was made with action_masks=True")
    is_dict = isinstance(observation, Mapping)
    if action_masks is None and not (is_dict and MASK in observation):
        raise UsageError("predict: pass action_masks=..., an entry for every choice, as the environment gives them")
    joined = dict(observation) if is_dict else {"observation": observation}
    mask = _as_mask(joined[MASK] if action_masks is None else action_masks)
    joined[MASK] = mask.astype(np.int8)
    counts = choices_of(parts.action)
    if mask.shape[-1:] != (sum(counts),):
        raise SchemaError(f"predict: expected action_masks of shape [{sum(counts)}] or [n, ...], got {mask.shape}")
    if not np.logical_or.reduceat(mask, np.cumsum([0, *counts[:-1]]), -1).all():
        raise SchemaError("predict: action_masks: an observation's mask allows no action")
    return joined


def _as_mask(given: Any) -> Array:
    try:
        mask: Array = np.asarray(given)
    except ValueError as error:
        raise SchemaError("predict: action_masks: expected as many entries in every row") from error
    if mask.dtype.kind not in "biuf" or not ((mask == 0) | (mask == 1)).all():
        raise SchemaError(f"predict: action_masks: expected 0 and 1, got {given!r}")
    return mask.astype(bool)


def _remembered(size: int, count: int, state: Any, episode_start: Any) -> Leaves:
    """A copy of the state that was given, with 0 where an episode starts; of a policy without a memory, nothing."""
    memory = state_leaf(size, count)
    if not size or state is None:
        return memory
    given = np.asarray(state)
    if given.shape != (count, size) or given.dtype.kind != "f":
        raise SchemaError(
            f"predict: expected the state that the last predict returned, {count} x {size} numbers, "
            f"got {given.dtype} of shape {given.shape}; pass state=None at the start"
        )
    memory[STATE][...] = given
    if episode_start is not None:
        starts = np.asarray(episode_start, bool)
        if starts.shape not in ((), (count,)):
            raise SchemaError(f"predict: expected {count} flags as episode_start, got shape {starts.shape}")
        memory[STATE][np.broadcast_to(starts, count)] = 0.0
    return memory
