"""What a set of groups says as numbers: per tag, means over episodes that have a result, and pass@k. Pure.

Failed groups are counted apart and are in no mean: a failure is not a reward of zero. Works on records alone, so the
numbers can't differ between ways to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import comb
from statistics import mean

from headrace.agents.given import GROUPS, listed
from headrace.agents.records import COMPLETED, FAILED, TRUNCATED, Episode, Group
from headrace.keywords import in_words


def pass_at(k: int, successes: int, size: int) -> float:
    """The chance that k episodes drawn from a group of `size` hold at least one success: unbiased."""
    return 1.0 - comb(size - successes, k) / comb(size, k)


@in_words()
def summary(groups: Group | Iterable[Group]) -> dict[str, float]:
    """tag/name -> value, over all tags."""
    by_tag: dict[str, list[Group]] = {}
    for group in listed("groups", groups, Group, GROUPS):
        by_tag.setdefault(group.tag, []).append(group)
    numbers: dict[str, float] = {}
    for tag in sorted(by_tag):
        numbers |= {f"{tag}/{name}": value for name, value in _of_tag(by_tag[tag]).items()}
    return numbers


def _of_tag(groups: Sequence[Group]) -> dict[str, float]:
    whole = [group for group in groups if group.status != FAILED]
    numbers: dict[str, float] = {"groups": float(len(groups)), "groups_failed": float(len(groups) - len(whole))}
    episodes = [episode for group in whole for episode in group.episodes]
    if not episodes:
        return numbers
    numbers["truncated"] = mean(episode.status == TRUNCATED for episode in episodes)
    numbers["completed"] = mean(episode.status == COMPLETED for episode in episodes)
    for name in sorted({name for episode in episodes for name in episode.metrics}):
        numbers[name] = mean(episode.metrics.get(name, 0.0) for episode in episodes)
    size = min(len(group.episodes) for group in whole)
    counts = [(sum(_has_won(one) for one in group.episodes), len(group.episodes)) for group in whole]
    for k in sorted({size, *(2**power for power in range(size.bit_length()))}):
        numbers[f"pass@{k}"] = mean(pass_at(k, successes, members) for successes, members in counts)
    return numbers


def _has_won(episode: Episode) -> bool:
    return episode.metrics.get("success", 0.0) > 0
