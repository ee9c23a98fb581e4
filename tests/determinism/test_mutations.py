"""The comparisons made here can fail: each rule of the design is broken once, and the bits change or it is told.

Journal, noise counters and seeds are changed in a checkpoint; the order of batches and the seed tree in the code.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.checkpoints.snapshot import Snapshot
from headrace.envs.seeds import Purpose, leaf
from headrace.errors import HeadraceError, LedgerError, ReplayError
from headrace.learning.assembly import assemble
from headrace.learning.batch import Batch
from headrace.memory.slab import Slab
from support.bit_runs import WORKLOADS, Trace, Workload, advance, play, trace_of

STOP, END = 6, 9
HIDDEN = Workload("hidden", "support.bit_envs:Hidden", 8, 8, 32)

JOURNALLED = ("mlp", "continuous", "noisy", "long", "multi_discrete")


@functools.cache
def stopped(workload: Workload) -> Snapshot:
    with workload.start() as model:
        advance(model, workload, STOP)
        return model.run.snapshot()


def resumed(workload: Workload, snapshot: Snapshot) -> Trace:
    with hr.PPO.from_snapshot(snapshot) as model:
        return trace_of(model, advance(model, workload, END - STOP))


def journal_of(snapshot: Snapshot) -> tuple[int, np.ndarray]:
    """An environment with a journal of some length, and the places of its actions."""
    lengths = snapshot.episodes["lengths"]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    env = random.Random(5).choice([int(env) for env in np.flatnonzero(lengths > 3)])
    return env, np.arange(starts[env], starts[env + 1])


def with_episodes(snapshot: Snapshot, **arrays: Any) -> Snapshot:
    return replace(snapshot, episodes=snapshot.episodes | arrays)


def live_episodes(snapshot: Snapshot) -> list[list[int]]:
    """The number and the seed of every environment's episode, to be changed."""
    return [list(one) for one in snapshot.state["source"]["live_episodes"]]


def with_live_episodes(snapshot: Snapshot, live: list[list[int]]) -> Snapshot:
    source = snapshot.state["source"] | {"live_episodes": live}
    return replace(snapshot, state=snapshot.state | {"source": source})


def drop_action(snapshot: Snapshot, place: int = 1) -> Snapshot:
    env, places = journal_of(snapshot)
    lengths = snapshot.episodes["lengths"].copy()
    lengths[env] -= 1
    return with_episodes(
        snapshot, lengths=lengths, actions=np.delete(snapshot.episodes["actions"], places[place], axis=0)
    )


def change_action(snapshot: Snapshot, place: int = 1) -> Snapshot:
    _, places = journal_of(snapshot)
    actions = snapshot.episodes["actions"].copy()
    actions[places[place]] = next(one for one in actions if not np.array_equal(one, actions[places[place]]))
    return with_episodes(snapshot, actions=actions)


def swap_journals(snapshot: Snapshot) -> Snapshot:
    """Two environments of equal length get each other's actions."""
    lengths = snapshot.episodes["lengths"]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    actions = snapshot.episodes["actions"].copy()
    a, b = next((a, b) for a in range(len(lengths)) for b in range(a) if lengths[a] == lengths[b] > 0)
    for to, of in ((a, b), (b, a)):
        actions[starts[to] : starts[to + 1]] = snapshot.episodes["actions"][starts[of] : starts[of + 1]]
    return with_episodes(snapshot, actions=actions)


@pytest.mark.parametrize("name", JOURNALLED)
def test_untouched_snapshots_resume(name: str) -> None:
    """What the mutations below are measured against."""
    workload = WORKLOADS[name]
    assert resumed(workload, stopped(workload)).weights_sha256 == play(workload, END).weights_sha256


@pytest.mark.parametrize(
    ("name", "mutate"),
    [
        *((name, mutate) for name in JOURNALLED for mutate in (drop_action, change_action)),
        *((name, swap_journals) for name in ("mlp", "continuous", "long")),  # where some are equally long
    ],
)
def test_a_wrong_journal_is_noticed(name: str, mutate: Callable[[Snapshot], Snapshot]) -> None:
    with pytest.raises(ReplayError, match=r"env \d+, episode \d+:\d+, seed \d+"):
        resumed(WORKLOADS[name], mutate(stopped(WORKLOADS[name])))


def test_an_environment_that_raises_in_replay_is_named() -> None:
    """An action that its space does not hold, for instance after an upgrade of the environment."""
    snapshot = stopped(WORKLOADS["multi_discrete"])
    env, places = journal_of(snapshot)
    actions = snapshot.episodes["actions"].copy()
    actions[places[1]] = 77
    with pytest.raises(HeadraceError, match=rf"env {env}, episode .*AssertionError"):
        resumed(WORKLOADS["multi_discrete"], with_episodes(snapshot, actions=actions))


@pytest.mark.parametrize("mutate", [drop_action, change_action])
def test_a_wrong_journal_is_noticed_where_observations_tell_nothing(mutate: Callable[..., Snapshot]) -> None:
    """Only what comes later would show that an action is missing; the checksum knows it at once."""
    snapshot = stopped(HIDDEN)
    _, places = journal_of(snapshot)
    place = int(np.flatnonzero(snapshot.episodes["actions"][places] == 2)[0])  # dropping a 0 would change nothing
    assert resumed(HIDDEN, snapshot).weights_sha256 == play(HIDDEN, END).weights_sha256
    with pytest.raises(
        ReplayError, match=r"env \d+, episode \d+:\d+, seed \d+.*gave other rewards, flags or observations"
    ):
        resumed(HIDDEN, mutate(snapshot, place))


def test_a_checksum_that_is_another_environments_is_noticed() -> None:
    snapshot = stopped(WORKLOADS["mlp"])
    checksum = snapshot.episodes["checksum"].copy()
    checksum[[0, 1]] = checksum[[1, 0]]
    with pytest.raises(ReplayError, match=r"env 0, episode \d+:\d+, seed \d+.*expected checksum"):
        resumed(WORKLOADS["mlp"], with_episodes(snapshot, checksum=checksum))


@pytest.mark.parametrize("name", ["mlp", "cnn", "continuous", "multi_binary"])
def test_a_skipped_noise_counter_changes_the_bits(name: str) -> None:
    workload, snapshot = WORKLOADS[name], stopped(WORKLOADS[name])
    counter = snapshot.episodes["noise_counter"].copy()
    counter[3] += 1
    got = resumed(workload, with_episodes(snapshot, noise_counter=counter))
    assert got.weights_sha256 != resumed(workload, snapshot).weights_sha256


def test_a_seed_from_elsewhere_is_refused() -> None:
    snapshot = stopped(WORKLOADS["noisy"])
    live = live_episodes(snapshot)
    live[2][1] += 1
    with pytest.raises(ReplayError, match=r"env 2.*another seed"):
        resumed(WORKLOADS["noisy"], with_live_episodes(snapshot, live))


def test_a_skipped_episode_is_noticed() -> None:
    snapshot = stopped(WORKLOADS["noisy"])
    live = live_episodes(snapshot)
    live[2] = [live[2][0] + 1, leaf(11, Purpose.ENV, 2, live[2][0] + 1)]
    with pytest.raises(ReplayError, match="env 2"):
        resumed(WORKLOADS["noisy"], with_live_episodes(snapshot, live))


def test_weights_and_optimizer_both_matter() -> None:
    """A checkpoint that forgot Adam's moments, or its step, gives other weights."""
    workload, snapshot = WORKLOADS["continuous"], stopped(WORKLOADS["continuous"])
    want = resumed(workload, snapshot).weights_sha256
    for name, tensor in snapshot.optimizer.items():
        forgetful = replace(snapshot, optimizer=snapshot.optimizer | {name: tensor * 0 + 1e-3})
        assert resumed(workload, forgetful).weights_sha256 != want, name


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (3, 2, 1, 0)])
@pytest.mark.parametrize("name", ["mlp", "continuous"])
def test_batches_in_order_of_arrival_change_the_bits(
    name: str, order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if slabs had come in that order and were taken so."""
    want = play(WORKLOADS[name], END, shards=4)

    def as_they_came(slabs: Sequence[Slab]) -> Batch:
        return assemble([slabs[i] for i in order])

    monkeypatch.setattr("headrace.collecting.reader.assemble", as_they_came)
    assert play(WORKLOADS[name], END, shards=4).weights_sha256 != want.weights_sha256


@pytest.mark.parametrize("name", ["mlp", "noisy", "long", "continuous"])
def test_seeds_by_counting_change_the_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """seed + i instead of the tree."""
    want = play(WORKLOADS[name], 2)

    def counted(bits: int, seed: int, purpose: Purpose, env_index: int, episode: int) -> int:
        return seed + env_index + episode

    monkeypatch.setattr("headrace.envs.spec.episode_seed", counted)
    assert play(WORKLOADS[name], 2).weights_sha256 != want.weights_sha256


def test_no_two_leaves_of_neighbouring_runs_are_equal() -> None:
    """What seed + i gets wrong: the environment 1 of seed 0 would be the environment 0 of seed 1."""
    paths = [(purpose, env, episode) for purpose in Purpose for env in range(8) for episode in range(8)]
    leaves = [leaf(seed, *path) for seed in range(8) for path in paths]
    assert len(set(leaves)) == len(leaves)
    assert all(0 <= one < 2**63 for one in leaves)


def test_a_lost_slab_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger sees the gap in the sequence numbers."""
    with WORKLOADS["noisy"].start(shards=4) as model:
        advance(model, WORKLOADS["noisy"], 2)
        state = model.parts.reader.ring.state  # rollout 2 of every shard is leased by now; shard 1's third is skipped
        state.sequences[1] += 1
        state._base[1] += 1
        with pytest.raises(LedgerError, match="shard 1: expected rollout 3, got 4: a dropped batch"):
            advance(model, WORKLOADS["noisy"], 3)
