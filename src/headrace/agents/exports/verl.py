"""Records as verl and RAGEN take them: plain arrays, left-padded prompts, right-padded responses. Imports neither.

    ragen_batch    input_ids, attention_mask, position_ids, responses, loss_mask, rm_scores, messages_list, env_ids,
                   group_ids, metrics
    agent_loop_outputs   verl's AgentLoopOutput fields, an episode each

Only what can be trained on goes out: failed and late groups, and episodes without token ids or without a word, are
left out and counted: `left_out_episodes`, by reason.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.agents.given import GROUPS, listed
from headrace.agents.metrics import summary
from headrace.agents.records import COMPLETED, FAILED, LATE, Episode, Group, TokenRow
from headrace.errors import whole
from headrace.keywords import in_words

Array = npt.NDArray[Any]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sample:
    """One token row of one episode, cut where the policy first spoke."""

    episode: Episode
    row: int
    prompt_ids: Array
    response_ids: Array
    response_mask: Array
    log_probs: Array
    rewards: Array  # per token: each turn's reward at the last token that it sampled


def samples(groups: Iterable[Group]) -> list[Sample]:
    """Every row that the policy spoke in."""
    found = []
    for group in sorted(groups, key=lambda one: one.number):
        for episode in group.episodes:
            if not why_left_out(group, episode):
                found += [_sample(episode, at, row) for at, row in enumerate(episode.rows) if row.loss_mask.any()]
    return found


def why_left_out(group: Group, episode: Episode) -> str:
    """failed or late (its group), text_only, or silent: its first prompt left no room for an answer; else nothing."""
    if group.status != COMPLETED:
        return group.status
    if not episode.is_trainable:
        return "text_only"
    return "" if any(row.loss_mask.any() for row in episode.rows) else "silent"


@in_words()
def left_out_episodes(groups: Group | Iterable[Group]) -> dict[str, int]:
    """How many episodes can't be trained on, by reason; reasons that there are."""
    groups = listed("groups", groups, Group, GROUPS)
    reasons = Counter(why_left_out(group, one) for group in groups for one in group.episodes)
    return {reason: reasons[reason] for reason in (FAILED, LATE, "text_only", "silent") if reasons[reason]}


@in_words()
def ragen_batch(groups: Group | Iterable[Group], pad_id: int) -> dict[str, Any]:
    """One batch of all samples."""
    groups, pad_id = listed("groups", groups, Group, GROUPS), whole("pad_id", pad_id, 0, "the id of the padding token")
    rows = samples(groups)
    prompt = max((len(one.prompt_ids) for one in rows), default=0)
    response = max((len(one.response_ids) for one in rows), default=0)
    shape = (len(rows), prompt + response)
    input_ids = np.full(shape, pad_id, np.int64)
    attention_mask = np.zeros(shape, np.int64)
    loss_mask = np.zeros((len(rows), response), np.int64)
    rm_scores = np.zeros((len(rows), response), np.float32)
    old_log_probs = np.zeros((len(rows), response), np.float32)
    for at, one in enumerate(rows):
        start, length = prompt - len(one.prompt_ids), len(one.response_ids)
        input_ids[at, start:prompt] = one.prompt_ids
        input_ids[at, prompt : prompt + length] = one.response_ids
        attention_mask[at, start : prompt + length] = 1
        loss_mask[at, :length] = one.response_mask
        rm_scores[at, :length] = one.rewards
        old_log_probs[at, :length] = one.log_probs
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "position_ids": np.clip(np.cumsum(attention_mask, axis=1) - 1, 0, None),
        "responses": input_ids[:, prompt:],
        "loss_mask": loss_mask,
        "rm_scores": rm_scores,
        "old_log_probs": old_log_probs,
        "messages_list": [one.episode.messages for one in rows],
        "env_ids": np.array([one.episode.member + one.episode.group * _size(groups) for one in rows], np.int64),
        "group_ids": np.array([one.episode.group for one in rows], np.int64),
        "metrics": summary(groups),
        "left_out": sum(all(why_left_out(group, one) for one in group.episodes) for group in groups),
        "left_out_episodes": left_out_episodes(groups),
    }


@in_words()
def agent_loop_outputs(groups: Group | Iterable[Group]) -> list[dict[str, Any]]:
    """verl's AgentLoopOutput fields; a list has no place for what was left out, so the log has it."""
    groups = listed("groups", groups, Group, GROUPS)
    if left_out := left_out_episodes(groups):
        told = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        logger.warning("agent_loop_outputs: episodes that can't be trained on are left out: %s", told)
    return [
        {
            "prompt_ids": one.prompt_ids.tolist(),
            "response_ids": one.response_ids.tolist(),
            "response_mask": one.response_mask.tolist(),
            "response_logprobs": one.log_probs.tolist(),
            "reward_score": float(one.rewards.sum()),
            "num_turns": 2 * len(one.episode.turns),
            "metrics": {
                "generate_sequences": sum(turn.engine_s for turn in one.episode.turns),
                "tool_calls": sum(turn.env_s for turn in one.episode.turns),
            },
            "extra_fields": {"group": one.episode.group, "member": one.episode.member, "row": one.row},
        }
        for one in samples(groups)
    ]


def _sample(episode: Episode, at: int, row: TokenRow) -> Sample:
    first = int(np.argmax(row.loss_mask > 0))
    rewards = np.zeros(len(row.ids), np.float32)
    for turn in episode.turns:
        if turn.row == at and turn.stop > turn.start:
            rewards[turn.stop - 1] += turn.reward
    last = int(np.flatnonzero(row.loss_mask)[-1]) + 1
    return Sample(
        episode, at, row.ids[:first], row.ids[first:last], row.loss_mask[first:last], row.log_probs[first:last],
        rewards[first:last],
    )  # fmt: skip


def _size(groups: list[Group]) -> int:
    return max((len(group.episodes) for group in groups), default=1)
