"""Reading the journal: where a shard continues, and the journal in a checkpoint.

    Journal --standing(shard, slabs that wait)--> Standing: an actor goes on from it (lost worker, resume, rescale)
            --snapshot--> JSON and arrays --restore--> Journal

Runs when a worker starts, when a run is saved or goes on; never per update. An environment without a slab so far is at
the beginning of its episode 0, and no observation is recorded for it. Does not know how an environment is replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.envs.vector_env import LiveEpisode
from headrace.episodes.journal import Array, Journal
from headrace.errors import ReplayError
from headrace.memory.slab import Slab
from headrace.memory.spaces import Leaves, shape_of


@dataclass(frozen=True)
class Standing:
    """Where a shard goes on: its live episodes, the observations they stand at (and a recurrent policy's state)."""

    live: list[LiveEpisode]
    last_obs: Leaves
    noise_counter: Array


def standing(journal: Journal, env_indices: range, waiting: Sequence[Slab] = ()) -> Standing | None:
    """Where environments of one shard stand after its slabs that wait for a batch; None before its first."""
    if not waiting and not any(journal.episode[env] or journal.chunks[env] for env in env_indices):
        return None
    fork = Journal(len(journal.episode), journal.seed_of, *journal.spaces)
    part = slice(env_indices.start, env_indices.stop)
    fork.episode[part] = journal.episode[part]
    fork.chunks[part] = [list(chunks) for chunks in journal.chunks[part]]
    fork.noise_counter[part] = journal.noise_counter[part]
    fork.checksum[part] = journal.checksum[part]
    fork.last_obs = {name: leaf.copy() for name, leaf in journal.last_obs.items()}
    for slab in waiting:
        fork.enter(env_indices, slab)
    last_obs = {name: leaf[part].copy() for name, leaf in fork.last_obs.items()}
    return Standing(live_episodes(fork, env_indices), last_obs, fork.noise_counter[part].copy())


def live_episodes(journal: Journal, env_indices: range) -> list[LiveEpisode]:
    """The live episodes of some environments, as they stood at the last commit."""
    _, action = journal.spaces
    none = np.zeros((0, *shape_of(action)), action.dtype)
    return [
        LiveEpisode(
            env,
            journal.episode[env],
            journal.seed_of(env, journal.episode[env]),
            np.concatenate(journal.chunks[env]) if journal.chunks[env] else none,
            int(journal.checksum[env]),
        )
        for env in env_indices
    ]


def snapshot(journal: Journal) -> tuple[dict[str, Any], dict[str, Array]]:
    """As JSON and arrays, copied."""
    live = live_episodes(journal, range(len(journal.episode)))
    state = {"live_episodes": [[one.episode, one.seed] for one in live], "statistics": statistics(journal)}
    arrays = {
        "noise_counter": journal.noise_counter.copy(),
        "lengths": np.array([len(one.actions) for one in live], np.int64),
        "actions": np.concatenate([one.actions for one in live]),
        "checksum": journal.checksum.copy(),
    }
    return state, arrays | {f"last_{name}": leaf.copy() for name, leaf in journal.last_obs.items()}


def statistics(journal: Journal) -> dict[str, Any]:
    """What was counted, as JSON. Python writes floats so that they read back to the last bit."""
    return {
        "return": journal.total_reward.tolist(),
        "length": [journal.length(env) for env in range(len(journal.episode))],
        "recent": [list(pair) for pair in journal.results.recent],
        "finished": journal.results.episodes,
    }


def restore(journal: Journal, state: dict[str, Any], arrays: dict[str, Array]) -> None:
    """Go on from a checkpoint, whatever the shards were then."""
    starts = np.concatenate([[0], np.cumsum(arrays["lengths"])])
    for env, (episode, seed) in enumerate(state["live_episodes"]):
        actions, checksum = arrays["actions"][starts[env] : starts[env + 1]], int(arrays["checksum"][env])
        _take_over(journal, LiveEpisode(env, episode, seed, actions, checksum))
    for name, leaf in journal.last_obs.items():
        leaf[:] = arrays[f"last_{name}"]
    journal.noise_counter[:] = arrays["noise_counter"]
    counted, results = state["statistics"], journal.results
    journal.total_reward[:], results.episodes = counted["return"], counted["finished"]
    results.recent.clear()
    results.recent.extend((total, length) for total, length in counted["recent"])


def _take_over(journal: Journal, live: LiveEpisode) -> None:
    if live.seed != journal.seed_of(live.env_index, live.episode):
        raise ReplayError(
            f"env {live.env_index}, episode {live.name}: its seed {live.seed} is not the seed tree's; "
            f"the journal belongs to a run with another seed"
        )
    journal.episode[live.env_index] = live.episode
    journal.checksum[live.env_index] = live.checksum
    journal.chunks[live.env_index] = [live.actions] if len(live.actions) else []
