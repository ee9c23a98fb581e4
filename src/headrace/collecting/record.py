"""What is logged of a batch's collection: the numbers of its account, summed and named.

    Account --record_of--> headrace/time, lag, actors, worker_N, envs, ledger ... · rollout/ep_rew_mean

Made when a record is read, and not within an update. Does not know what is concluded from it (planning/evidence).
"""

from __future__ import annotations

import numpy as np

from headrace.collecting.accounts import Account

_NAMES = ("env", "inference", "copy", "idle", "cpu")  # in the order of accounts.SPENT


def record_of(account: Account) -> dict[str, float]:
    """Everything by its name."""
    version, sizes = account.version, [size for size, _ in account.versions]
    means = [versions.mean() for _, versions in account.versions]
    record = {
        "headrace/time/wait": 0.0 if account.is_inline else account.wait_s,
        "headrace/time/hand_over": account.hand_over_s,
        "headrace/lag": float(version - min(versions.min() for _, versions in account.versions)),
        "headrace/lag_mean": float(version - np.average(means, weights=sizes)),
        "headrace/rollout_age_s": account.age_s,
        "headrace/queue_depth": float(account.queue_depth),
        "headrace/restarts": float(account.replaced.restarts),
        "headrace/recycled": float(account.replaced.recycled),
        "headrace/env_failures": float(account.replaced.env_failures),
        "headrace/server_restarts": float(account.replaced.servers),
        **_spent(account),
        **_slowest(account),
        **account.counted,
        "headrace/least_share": float(account.shares.min() / max(account.shares.mean(), 1e-9)),
        "headrace/episodes": float(account.episodes),
        **{f"headrace/ledger/{name}": float(count) for name, count in account.ledger.items()},
    }
    if account.recent:  # by SB3's names
        returns, lengths = zip(*account.recent, strict=True)
        record |= {"rollout/ep_rew_mean": float(np.mean(returns)), "rollout/ep_len_mean": float(np.mean(lengths))}
    return record


def _spent(account: Account) -> dict[str, float]:
    """Seconds of the hosts. Inline it is the learner's own thread that spent them."""
    spent_s = account.spent_ns / 1e9
    total = dict(zip(_NAMES, spent_s.sum(0).tolist(), strict=True))
    record = {f"headrace/time/{name}": account.is_inline * total[name] for name in _NAMES[:3]}
    record |= {f"headrace/actors/{name}_s": seconds for name, seconds in total.items()}
    for worker, own in enumerate([] if account.is_inline else spent_s.tolist()):
        record |= {f"headrace/worker_{worker}/{name}_s": own[i] for i, name in enumerate(_NAMES)}
    return record


def _slowest(account: Account) -> dict[str, float]:
    """Which environment takes the longest step, beside what is usual; nothing if they can't be told apart."""
    step_ns = account.step_ns
    if len(step_ns) < 2 or not step_ns.all():
        return {}
    in_order = np.argsort(step_ns)
    slowest, usual = in_order[-1], in_order[(len(in_order) - 1) // 2]
    return {
        "headrace/envs/slowest": float(slowest),
        "headrace/envs/slowest_s": float(step_ns[slowest]) / 1e9,
        "headrace/envs/median_s": float(step_ns[usual]) / 1e9,
        "headrace/envs/mean_s": float(step_ns.mean()) / 1e9,
    }
