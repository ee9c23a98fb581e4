"""TRL: a `rollout_func(prompts, trainer)` for GRPOTrainer that plays groups and returns them as completions.

    prompts (each num_generations times) -> a group for every run of equal prompts -> prompt_ids, completion_ids,
    logprobs, env_mask, episode_reward

A prompt names a group: {"role": "user", "content": "headrace group 12"}, as `trl_dataset` writes them, so the same row
of the data set always means the same task. The trainer's weights are published before every rollout. A group that
failed is played again under the next numbers of a reserve; training on made-up zeros is not an option.

headrace samples, so the trainer's sampling settings are not used. Its temperature scales the log-probabilities that it
learns from: another one than ours is refused. top_p and top_k are compared with Rules, since the log-probabilities here
are those behind them; what differs is named in the log, once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.agents.exports.verl import Sample, left_out_episodes, samples
from headrace.agents.plan import Rules
from headrace.agents.records import LATE, Group
from headrace.agents.rollouts import AgentRollouts
from headrace.errors import HeadraceError, UsageError, whole
from headrace.keywords import in_words

logger = logging.getLogger(__name__)

_RESERVE = 1_000_003  # the numbers of those that take a group's place are so far apart
_NOT_DONE = {"min_p": 0.0, "repetition_penalty": 1.0}  # the values that change nothing
_FORKED = (
    "the chat template rewrites earlier turns, for example drops their reasoning, and TRL takes one sequence per "
    "episode: only the answers since the last rewriting are trained on; a template that only appends keeps all of them"
)
_PROMPT = re.compile(r"headrace group (\d+)")


@in_words()
def trl_dataset(groups: int) -> list[dict[str, Any]]:
    """Rows for datasets.Dataset.from_list."""
    count = whole("groups", groups, 1)
    return [{"prompt": [{"role": "user", "content": f"headrace group {number}"}]} for number in range(count)]


@in_words()
def trl_rollout_func(rollouts: AgentRollouts, spare: int = 8) -> Callable[[list[Any], Any], dict[str, Any]]:
    """A rollout_func over some rollouts, whose group_size must be the trainer's num_generations."""
    if not isinstance(rollouts, AgentRollouts):
        raise UsageError(f"rollouts: expected AgentRollouts, got {rollouts!r}")
    said = set[str]()

    def say(problem: str) -> None:
        if problem not in said:
            said.add(problem)
            logger.warning("rollout_func: %s", problem)

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        size = rollouts.plan.group_size
        numbers = [_number(prompt) for prompt in prompts]
        if len(numbers) % size or any(len(set(numbers[at : at + size])) > 1 for at in range(0, len(numbers), size)):
            raise UsageError(
                f"rollout_func: expected every prompt {size} times in a row (num_generations = group_size), got groups "
                f"{numbers}"
            )
        _require_trainable(rollouts, trainer)
        for difference in sampling_differences(rollouts, trainer):
            say(difference)
        rollouts.publish(trainer.accelerator.unwrap_model(trainer.model))
        wanted = numbers[::size]
        played = {group.number: group for group in rollouts.play(wanted)}
        batch: dict[str, list[Any]] = {name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask")}
        batch["episode_reward"] = []
        for number in wanted:
            spoken = _whole(played[number], rollouts, spare, say)
            for member in range(size):
                one = spoken[member]
                batch["prompt_ids"].append(one.prompt_ids.tolist())
                batch["completion_ids"].append(one.response_ids.tolist())
                batch["logprobs"].append(one.log_probs.tolist())
                batch["env_mask"].append(np.asarray(one.response_mask).astype(int).tolist())
                batch["episode_reward"].append(one.episode.reward)
        most = _setting(trainer, "max_completion_length")
        if most is not None and any(len(ids) > most for ids in batch["completion_ids"]):
            say(
                f"completions are longer than the trainer's max_completion_length = {most}: they hold whole episodes, "
                f"what environments say included; raise it to max_context = {rollouts.plan.rules.max_context}"
            )
        return batch

    return rollout


def sampling_differences(rollouts: AgentRollouts, trainer: Any) -> list[str]:
    """The trainer's settings that sampling here does not follow, each with what holds instead."""
    found = []
    of_tags = _rules(rollouts)
    for name in ("top_p", "top_k"):
        theirs, ours = _setting(trainer, name), {tag: getattr(rules, name) for tag, rules in of_tags.items()}
        odd = [tag for tag, one in ours.items() if theirs is not None and max(one, 0) != max(theirs, 0)]
        if odd:
            found.append(f"the trainer's {name} is {theirs!r}, {odd[0]} samples with {name} = {ours[odd[0]]!r}")
    for name, neutral in _NOT_DONE.items():
        theirs = _setting(trainer, name)
        if theirs is not None and theirs != neutral:
            found.append(f"the trainer's {name} is {theirs!r}, headrace samples with {name} = {neutral!r}")
    given = _setting(trainer, "generation_kwargs")
    if given:
        found.append(f"the trainer's generation_kwargs {given!r} are not used, headrace samples itself")
    most = _setting(trainer, "max_completion_length")
    for tag, rules in of_tags.items():
        if most is not None and rules.max_tokens > most:
            found.append(f"the trainer's max_completion_length is {most}, {tag} has max_tokens = {rules.max_tokens}")
    return found


@in_words()
def episode_reward(prompts: Any, completions: Any, episode_reward: list[float], **_: Any) -> list[float]:
    """The reward function that goes with it: what the environments gave."""
    return list(episode_reward)


def _require_trainable(rollouts: AgentRollouts, trainer: Any) -> None:
    if rollouts.engine.is_text_only:
        raise UsageError(
            "rollout_func: the engine gives text only, so nothing can be trained on: use a server that returns token "
            "ids and log-probabilities, with the tokenizer of its model, or an engine in this process"
        )
    theirs = _setting(trainer, "temperature")
    for tag, rules in _rules(rollouts).items():
        if theirs is not None and rules.temperature != theirs:
            raise UsageError(
                f"temperature: {tag} samples with {rules.temperature:g}, the trainer learns with {theirs:g}: its "
                f"log-probabilities would be of another distribution; set the same in Rules and in the trainer's config"
            )


def _rules(rollouts: AgentRollouts) -> dict[str, Rules]:
    return {spec.tag: rollouts.plan.rules_of(spec.tag) for spec in rollouts.plan.envs}


def _setting(trainer: Any, name: str) -> Any:
    """Of the trainer's configuration; None if it has none."""
    return getattr(getattr(trainer, "args", None), name, None)


def _whole(group: Group, rollouts: AgentRollouts, spare: int, say: Callable[[str], None]) -> dict[int, Sample]:
    """What each member said, of this group or of the first in its place that has something to say of everyone."""
    for again in range(spare + 1):
        if again:
            reasons = ", ".join(f"{count} {reason}" for reason, count in left_out_episodes([group]).items())
            say(f"group {group.number} is left out and another one takes its place: {reasons}")
            (group,) = rollouts.play([group.number + _RESERVE])
        rows = samples([group])
        spoken = {one.episode.member: one for one in rows}  # of a forked conversation, the last row
        if len(spoken) == len(group.episodes):
            if len(rows) > len(spoken):
                say(_FORKED)
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
