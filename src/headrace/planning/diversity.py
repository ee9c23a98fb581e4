"""Do environments that run side by side show different things? Three verdicts, from arrays of a run. Pure.

    first observations ──judge_starts──> do environments begin alike, although their seeds differ?
    actions of one row side by side, entropy ──judge_actions──> do they act alike, more than independent draws can?
    entropy, returns ──judge_entropy──> has the policy stopped to try things before it had learned anything?

Each verdict is one Finding with its numbers. What an environment is by nature is said, and is no complaint: one fixed
start, a policy that has converged and acts alike everywhere. False alarms: FALSE_ALARM for all pairs of environments
together (starts: if they are drawn independently; actions: if noise is, whatever the states; `agreement`).
Does not know files (`recorded_diversity`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.planning.agreement import FALSE_ALARM, least_entropy, log_chance, most_agreement, slack
from headrace.planning.finding import Finding

Array = npt.NDArray[Any]
Pairs = list[tuple[int, int]]

MAX_ENVS = 128  # that are compared pair by pair
STARTS, ACTIONS, ENTROPY = "start states", "action streams", "policy entropy"

_ALIKE = 0.9  # of the episodes that two environments have both begun
_ENTROPY_ERROR = 0.95  # the entropy that is recorded is of the weights in an update, not of those that acted
_COLLAPSED = 0.05  # of the entropy at the start; of the standard deviation, where actions are continuous
_EARLY = 0.6  # of the run: a collapse needs time after it to show that nothing comes
_STAYS = 0.9  # of the updates from then on are below
_PROGRESS = 3.0  # standard errors by which returns have to rise
_FEWEST = 10  # episodes, before and after
_NOISY_NATS = -5.0  # for each number of an action: with less noise than this, equal numbers are no wonder


# ------------------------------------------------------------------------------------------------------ start states


def judge_starts(env: Array, episode: Array, digest: Array) -> tuple[Finding, Pairs]:
    """Environment, number and first observation of episodes; the pairs are environments that begin alike."""
    num_envs, total = len(np.unique(env)), len(digest)
    if num_envs < 2 or total < 2 * num_envs:
        found = "not judged: it takes two environments with two episodes each"
        return Finding(STARTS, "ok", found, "", {"episodes": total, "environments": num_envs}), []
    distinct = len(np.unique(digest))
    numbers = {"episodes": total, "environments": num_envs, "distinct_starts": distinct}
    if distinct == 1:
        found = f"all {total:,} episodes begin with the same observation: the environment has one start"
        return Finding(STARTS, "ok", found, "", numbers), []
    if distinct == num_envs and len(np.unique(np.stack([env.astype(np.uint64), digest]), axis=1).T) == num_envs:
        found = f"each of {num_envs} environments begins all its episodes with one observation, its own"
        return Finding(STARTS, "ok", found, "", numbers), []
    table = _table(env, episode, digest)
    chance = _chance_of_a_match(table)
    pairs, tested = [], len(table) * (len(table) - 1) // 2
    for i in range(len(table)):
        both = (table[i] >= 0) & (table[i + 1 :] >= 0)
        matches, tries = ((table[i] == table[i + 1 :]) & both).sum(1).tolist(), both.sum(1).tolist()
        for j, (match, tried) in enumerate(zip(matches, tries, strict=True), i + 1):
            if tried and match >= _ALIKE * tried and log_chance(match, tried, chance) < math.log(FALSE_ALARM / tested):
                pairs.append((i, j))
    numbers |= {"pairs_alike": len(pairs), "pairs_compared": tested}
    if not pairs:
        few = f"{distinct:,} different" if distinct < total else "all different"
        return Finding(STARTS, "ok", f"first observations of {total:,} episodes: {few}", "", numbers), []
    alike = sorted({one for pair in pairs for one in pair})
    found = (
        f"{len(alike)} of {num_envs} environments ({_listed(alike)}) begin their episodes alike, one by one, although "
        f"their seeds differ: {distinct:,} different first observations in {total:,} episodes"
    )
    advice = (
        "reset(seed=...) does not reach the environment's random generator: draw from self.np_random after "
        "super().reset(seed=seed), in wrappers as well; until then these environments bring the same experience"
    )
    return Finding(STARTS, "problem", found, advice, numbers), pairs


def _table(env: Array, episode: Array, digest: Array) -> Array:
    """[environment, episode] -> which start, -1 where none is known; of the first MAX_ENVS environments."""
    _, starts = np.unique(digest, return_inverse=True)
    inside = env < MAX_ENVS
    env, number, starts = env[inside], episode[inside] - episode.min(), starts[inside]
    near = number < 4 * (len(starts) // max(1, len(np.unique(env))) + 1)  # a number from elsewhere may be any
    table = np.full((int(env.max(initial=0)) + 1, int(number[near].max(initial=0)) + 1), -1, np.int64)
    table[env[near], number[near]] = starts[near]
    return table


def _chance_of_a_match(table: Array) -> float:
    """That episodes of different environments and different numbers begin alike; never 0."""
    known = table >= 0
    num_starts = int(table.max(initial=0)) + 1
    of_env = _equal_pairs([np.bincount(row[row >= 0], minlength=num_starts) for row in table])
    of_number = _equal_pairs([np.bincount(row[row >= 0], minlength=num_starts) for row in table.T])
    alike = _equal_pairs([np.bincount(table[known], minlength=num_starts)]) - of_env - of_number
    every = _equal_pairs([known.sum()[None]]) - _equal_pairs([known.sum(1)]) - _equal_pairs([known.sum(0)])
    return min(1.0, (alike + 1) / (every + 1))


def _equal_pairs(counts: list[Array]) -> int:
    return sum(int((one * (one - 1) // 2).sum()) for one in counts)


def _listed(indices: list[int]) -> str:
    return ", ".join(map(str, indices[:6])) + (" ..." if len(indices) > 6 else "")


# ---------------------------------------------------------------------------------------------------- action streams


@dataclass(frozen=True)
class Streams:
    """Actions of all environments, row by row side by side."""

    action: Array  # [R, E, k]
    valid: Array  # [R, E]
    entropy: Array  # [R], of the policy, in nats; NaN where it is not known


def judge_actions(streams: Streams, alike: Pairs) -> Finding:
    """Whether environments agree more than independent draws can; `alike` are those that begin their episodes alike."""
    known = np.isfinite(streams.entropy)
    action, valid = streams.action[known][:, :MAX_ENVS], streams.valid[known][:, :MAX_ENVS]
    num_envs, part, num_rows = streams.action.shape[1], action.shape[1], len(action)
    if part < 2 or num_rows < _FEWEST:
        found = "not judged: it takes two environments whose rollouts have the same rows, and a recorded entropy"
        return Finding(ACTIONS, "ok", found, "", {"rows": num_rows, "environments": num_envs})
    agree, both = _agreements(action, valid)
    first, second = np.triu_indices(part, 1)
    agree, both = agree[first, second], both[first, second]
    above = slack(num_rows, len(agree) + 1)
    of_all, of_pair, of_alike = _possible(action, valid, streams.entropy[known], num_envs)
    overall, shares = float(agree.sum() / max(1, both.sum())), agree / np.maximum(1, both)
    begin_alike = np.zeros((part, part), np.bool_)
    begin_alike[tuple(np.array([one for one in alike if max(one) < part], int).reshape(-1, 2).T)] = True
    bounds = np.where(begin_alike[first, second], of_alike, of_pair) + math.sqrt(2) * above  # half of the rows or more
    beyond = (both >= num_rows / 2) & (shares > bounds)
    numbers: dict[str, float] = {
        "rows": num_rows,
        "environments": num_envs,
        "entropy": float(streams.entropy[known].mean()),
        "agreement": overall,
        "agreement_possible": min(1.0, of_all + above),
        "largest_agreement": float(shares.max()),
        "pairs_beyond": int(beyond.sum()),
    }
    text = f"environments take the same action in {overall:.0%} of {num_rows:,} rows"
    own_noise = (
        "every environment needs noise of its own: a policy of yours uses the noise that act is given, row by row"
    )
    if overall > of_all + above and not 0 < beyond.sum() < len(agree) / 2:
        found = f"{text}; independent draws of a policy with this entropy agree in {of_all + above:.0%} at most"
        return Finding(ACTIONS, "problem", found, own_noise, numbers)
    if not beyond.any():
        return Finding(ACTIONS, "ok", text, "", numbers)
    worst = int(np.argmax(np.where(beyond, shares - bounds, -np.inf)))
    i, j = int(first[worst]), int(second[worst])
    found = (
        f"{int(beyond.sum())} of {len(agree)} pairs of environments act alike: {i} and {j} in {shares[worst]:.0%} of "
        f"{num_rows:,} rows, where {bounds[worst]:.0%} "
    )
    if begin_alike[i, j]:
        found += "would be the most if each drew from all actions of the run"
        advice = "they begin their episodes alike and play the same ones: give them different starts"
        return Finding(ACTIONS, "problem", found, advice, numbers)
    return Finding(ACTIONS, "problem", f"{found}is the most that independent draws agree", own_noise, numbers)


def _possible(action: Array, valid: Array, entropy: Array, num_envs: int) -> tuple[float, float, float]:
    """How often independent draws agree at most: in the mean of all, of any pair, and of a pair that begins alike.

    A pair that begins alike may be in the same states all the time. What counts there is how often actions are equal
    that are drawn from all that were taken: a policy that does the same everywhere agrees anyway.
    """
    if action.dtype.kind == "f":
        bound = 0.01 if float(entropy.mean()) > _NOISY_NATS * action.shape[2] else 1.0
        return bound, bound, bound
    highs = action.reshape(-1, action.shape[2]).max(0).astype(float) + 1
    choices = int(min(2.0**40, max(float(np.prod(highs)), math.ceil(math.exp(min(27.0, float(entropy.max()))) - 1e-3))))
    mean, part = _ENTROPY_ERROR * float(entropy.mean()), action.shape[1]
    of_pair = most_agreement(least_entropy(mean, num_envs, 2, choices), choices)
    _, counts = np.unique(action[valid], axis=0, return_counts=True)
    by_chance = float(((counts / counts.sum()) ** 2).sum())
    of_all = most_agreement(least_entropy(mean, num_envs, part, choices), choices)
    return of_all, of_pair, min(by_chance, of_pair)


def _agreements(action: Array, valid: Array) -> tuple[Array, Array]:
    """Of every pair: in how many rows both acted alike, and in how many both acted. [E, E]."""
    part = action.shape[1]
    agree, both = np.zeros((part, part)), np.zeros((part, part))
    for i in range(part):
        together = valid[:, i : i + 1] & valid[:, i:]
        agree[i, i:] = ((action[:, i : i + 1] == action[:, i:]).all(2) & together).sum(0)
        both[i, i:] = together.sum(0)
    return agree, both


# ---------------------------------------------------------------------------------------------------- policy entropy


@dataclass(frozen=True)
class Course:
    """How a run went: entropy of the policy, update by update, and the returns of its episodes."""

    steps: Array  # [U]
    entropy: Array  # [U], in nats
    episode_steps: Array  # [N], of the run, when an episode was reported
    returns: Array  # [N]
    dimensions: int
    """Numbers in a continuous action; 0 if actions are choices."""
    before: float = math.nan
    """Entropy before the first gradient step; NaN where it is not recorded."""


def judge_entropy(course: Course) -> Finding:
    """Whether the entropy was gone early, and returns did not rise."""
    known = np.isfinite(course.entropy) & np.isfinite(course.steps)
    steps, entropy = course.steps[known], course.entropy[known]
    if len(entropy) < _FEWEST or len(course.returns) < 2 * _FEWEST:
        found = f"not judged: it takes {_FEWEST} updates and {2 * _FEWEST} episodes"
        return Finding(ENTROPY, "ok", found, "", {"updates": len(entropy), "episodes": len(course.returns)})
    start = float(entropy[:3].max())
    if math.isfinite(course.before):  # the first update alone may take all of it
        start = max(start, course.before)
    numbers = {"start": start, "end": float(entropy[-3:].mean())}
    course_text = f"entropy {start:.3g} at the start, {numbers['end']:.3g} at the end"
    border = start + course.dimensions * math.log(_COLLAPSED) if course.dimensions else _COLLAPSED * start
    below = entropy < border
    share_below = below[::-1].cumsum()[::-1] / np.arange(len(below), 0, -1)  # from each update on
    stays = np.flatnonzero(below & (share_below >= _STAYS))
    if not len(stays) or steps[stays[0]] > _EARLY * steps[-1]:
        return Finding(ENTROPY, "ok", course_text, "", numbers)
    at = float(steps[stays[0]])
    order = np.argsort(course.episode_steps, kind="stable")
    returns, when = course.returns[order].astype(float), course.episode_steps[order]
    after = returns[when > at]
    if len(after) < _FEWEST:
        return Finding(ENTROPY, "ok", f"{course_text}; too few episodes after it to judge", "", numbers)
    first = returns[: max(_FEWEST, int((when <= min(at, 0.1 * steps[-1])).sum()))]
    rise = float(after.mean() - first.mean())
    error = math.sqrt(float(first.var()) / len(first) + float(after.var()) / len(after))
    numbers |= {
        "gone_after_steps": at,
        "first_return": float(first.mean()),
        "return_after": float(after.mean()),
        "standard_error": error,
    }
    if rise > _PROGRESS * error + 1e-9 * abs(float(first.mean())):
        found = f"{course_text}; returns rose from {first.mean():.3g} to {after.mean():.3g}: the policy has settled"
        return Finding(ENTROPY, "ok", found, "", numbers)
    what = "noise" if course.dimensions else "entropy"
    found = (
        f"the policy stopped to try things: {what} under {_COLLAPSED:.0%} of its start after {at:,.0f} of "
        f"{steps[-1]:,.0f} steps, while returns did not rise: {first.mean():.3g}, then {after.mean():.3g}"
    )
    advice = "raise ent_coef, or lower learning_rate or n_epochs; no harm if these returns are the best there are"
    return Finding(ENTROPY, "warning", found, advice, numbers)
