"""TRL: a `rollout_func(prompts, trainer)` for GRPOTrainer that plays groups and returns them as completions.

    prompts (each num_generations times) -> a group for every run of equal prompts -> prompt_ids, completion_ids,
    logprobs, env_mask, episode_reward

A prompt names a group: {"role": "user", "content": "headrace group 12"}, as `trl_dataset` writes them, so the same row
of the data set always means the same task. The trainer's weights are published before every rollout. A group that
failed is played again under the next numbers of a reserve; training on made-up zeros is not an option.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.agents.exports.verl import Sample, samples
from headrace.agents.records import LATE, Group
from headrace.agents.rollouts import AgentRollouts
from headrace.errors import HeadraceError, UsageError

_RESERVE = 1_000_003  # the numbers of those that take a group's place are so far apart
_PROMPT = re.compile(r"headrace group (\d+)")


def trl_dataset(groups: int) -> list[dict[str, Any]]:
    """Rows for datasets.Dataset.from_list."""
    return [{"prompt": [{"role": "user", "content": f"headrace group {number}"}]} for number in range(groups)]


def trl_rollout_func(rollouts: AgentRollouts, spare: int = 8) -> Callable[[list[Any], Any], dict[str, Any]]:
    """A rollout_func over some rollouts, whose group_size must be the trainer's num_generations."""

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        size = rollouts.plan.group_size
        numbers = [_number(prompt) for prompt in prompts]
        if len(numbers) % size or any(len(set(numbers[at : at + size])) > 1 for at in range(0, len(numbers), size)):
            raise UsageError(
                f"rollout_func: expected every prompt {size} times in a row (num_generations = group_size), got groups "
                f"{numbers}"
            )
        rollouts.publish(trainer.accelerator.unwrap_model(trainer.model))
        wanted = numbers[::size]
        played = {group.number: group for group in rollouts.play(wanted)}
        batch: dict[str, list[Any]] = {name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask")}
        batch["episode_reward"] = []
        for number in wanted:
            spoken = _whole(played[number], rollouts, spare)
            for member in range(size):
                one = spoken[member]
                batch["prompt_ids"].append(one.prompt_ids.tolist())
                batch["completion_ids"].append(one.response_ids.tolist())
                batch["logprobs"].append(one.log_probs.tolist())
                batch["env_mask"].append(np.asarray(one.response_mask).astype(int).tolist())
                batch["episode_reward"].append(one.episode.reward)
        return batch

    return rollout


def episode_reward(prompts: Any, completions: Any, episode_reward: list[float], **_: Any) -> list[float]:
    """The reward function that goes with it: what the environments gave."""
    return list(episode_reward)


def _whole(group: Group, rollouts: AgentRollouts, spare: int) -> dict[int, Sample]:
    """What each member said, of this group or of the first in its place that has something to say of everyone."""
    for again in range(spare + 1):
        if again:
            (group,) = rollouts.play([group.number + _RESERVE])
        spoken = {one.episode.member: one for one in samples([group])}  # of a forked conversation, the last row
        if len(spoken) == len(group.episodes):
            return spoken
    raise HeadraceError(f"group {group.number % _RESERVE} and {spare} in its place: {_why(group)}")


def _why(group: Group) -> str:
    if group.failures:
        return f"failed, last: {group.failures[0].message}"
    if group.status == LATE:
        return "came too late"
    return "have an episode in which nothing was said: its prompt and max_tokens are more than max_context"


def _number(prompt: Any) -> int:
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    found = _PROMPT.search(text if isinstance(text, str) else str(text))
    if found is None:
        raise UsageError(f"rollout_func: expected a prompt of trl_dataset(), got {prompt!r}")
    return int(found.group(1))
