"""The contract of places of actors, over every one: launch, order, wait, replace_lost, worker_of, close.

    the same orders, inline, in threads, in worker processes, with an inference server ──> the same bytes in the slabs

What fails in an environment is raised by `wait` (or `launch`) with its place named, wherever it ran. A host may be
built in the middle of episodes, in any place, and goes on to the last bit. Only Processes can lose a host; what it does
about it is at the end.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from headrace.collecting.processes import Processes
from headrace.envs.seeds import Purpose, leaf
from headrace.envs.spec import EnvSpec
from headrace.episodes.journal import Journal
from headrace.episodes.standing import live_episodes, standing
from headrace.errors import EnvError, HeadraceError, NumericsError, ReplayError
from headrace.memory.layout import Word
from headrace.memory.lease import Taken
from support.faulty_envs import Faulty
from support.stages import PLACES, SEED, Stage, bits_of, stage
from support.waiting import is_gone, wait_until

every_place = pytest.mark.parametrize("kind", PLACES)
BEGINNING: Callable[[int], None] = lambda shard: None  # noqa: E731

Bits = dict[int, dict[str, bytes]]


def played(here: Stage, rounds: int) -> list[Bits]:
    """Rollouts of every shard, under weights that change between them."""
    told = []
    for _ in range(rounds):
        told.append(here.rollout())
        here.publish(0.3)
    return told


@cache
def calm(rounds: int) -> list[Bits]:
    """What every place should leave in the slabs: inline's, made once per session."""
    with stage("inline") as here:
        here.launch()
        return played(here, rounds)


# ------------------------------------------------------------------------------------------------------------- rollouts


@every_place
def test_every_place_leaves_the_same_bytes(kind: str) -> None:
    with stage(kind) as here:
        here.launch()
        assert played(here, 3) == calm(3)


@pytest.mark.parametrize(
    ("kind", "workers", "n_shards"),
    [("threads", 1, 1), ("threads", 1, 3), ("threads", 3, 3), ("threads", 2, 5), ("processes", 3, 3)],
)
def test_nor_does_it_matter_how_many_hosts_there_are(kind: str, workers: int, n_shards: int) -> None:
    if n_shards == 3:
        with stage(kind, workers=workers) as here:
            here.launch()
            assert played(here, 2) == calm(2)
        return
    with stage(kind, workers=workers, n_shards=n_shards) as here, stage("inline", n_shards=n_shards) as there:
        here.launch()
        there.launch()
        assert played(here, 2) == played(there, 2)


def test_bytes_that_differ_would_be_seen() -> None:
    """The comparison can fail: other weights, or one noise counter skipped."""
    with stage("inline") as here:
        here.launch()
        here.publish(0.3)
        assert played(here, 1) != calm(3)[:1]
    with stage("inline") as here:
        here.launch()
        here.place._host._actors[1]._carry.noise_counter += 1  # type: ignore[attr-defined]
        (got,), (want, *_) = played(here, 1), calm(3)
        assert [shard for shard in want if got[shard] != want[shard]] == [1]


@every_place
def test_orders_of_a_shard_are_filled_in_the_order_they_were_given(kind: str) -> None:
    """Two at once: the second begins where the first one ends."""
    with stage(kind) as here:
        here.launch()
        leases = here.order() + here.order()
        taken = here.collect(len(leases))
        assert sorted(one.lease.fence for one in taken) == sorted(lease.fence for lease in leases)
        for first, second in zip(taken[::2], taken[1::2], strict=True):
            assert (first.lease.sequence, second.lease.sequence) == (0, 1)
            assert first.lease.shard == second.lease.shard
            assert first.slab.last_obs["obs"].tobytes() == second.slab.obs["obs"][0].tobytes()
            assert bits_of(first.slab) == calm(3)[0][first.lease.shard]


@every_place
def test_shards_do_not_wait_for_each_other(kind: str) -> None:
    """Only some are ordered, some more often than others."""
    with stage(kind) as here:
        here.launch()
        here.order([2])
        (one,) = here.collect(1)
        assert bits_of(one.slab) == calm(3)[0][2]
        here.release([one])
        here.order([2, 0])
        zero, two = here.collect(2)
        assert (zero.lease.shard, zero.lease.sequence) == (0, 0)
        assert (two.lease.shard, two.lease.sequence) == (2, 1)
        assert bits_of(zero.slab) == calm(3)[0][0]


@every_place
def test_rows_say_which_version_acted_in_them(kind: str) -> None:
    """The one that the order names while it is kept; the latest if the order waited too long."""
    with stage(kind, max_lag=1) as here:  # three versions are kept
        here.launch()
        for _ in range(2):
            here.publish(0.3)
        for named, acted in ((0, 0), (1, 1), (2, 2)):
            here.order(version=named)
            taken = here.collect()
            assert all((one.slab.version == acted).all() for one in taken)
            here.release(taken)
        for _ in range(3):
            here.publish(0.3)
        here.order(version=1)
        assert all((one.slab.version == 5).all() for one in here.collect())


@every_place
def test_newer_weights_are_picked_up_within_a_slab_if_asked_for(kind: str) -> None:
    with stage(kind, pick_up_rows=2) as here:
        here.launch()
        here.publish(0.3)
        here.order(version=0)
        assert all((one.slab.version == 1).all() for one in here.collect()), "the latest, whatever the order names"


# ------------------------------------------------------------------------------------------ small things that all offer


@every_place
def test_workers_are_numbered(kind: str) -> None:
    with stage(kind) as here:
        numbers = [here.place.worker_of(shard) for shard in range(3)]
        assert numbers == ([0, 0, 0] if kind == "inline" else [0, 1, 0])


@every_place
def test_a_slab_says_where_its_time_went(kind: str) -> None:
    with stage(kind) as here:
        here.launch()
        for _ in range(2):
            here.order()
            taken = here.collect()
            for one in taken:
                env, inference, copying, idle = one.slab.header[Word.ENV_NS : Word.IDLE_NS + 1].tolist()
                whole = one.slab.header[Word.COMMITTED_NS] - one.slab.header[Word.STARTED_NS]
                assert min(env, inference, copying) > 0
                assert env + inference + copying <= whole
                assert (idle == 0) == (kind == "inline"), "the caller never waits for an order"
            here.release(taken)


@every_place
def test_nothing_is_lost_where_nothing_happens(kind: str) -> None:
    with stage(kind) as here:
        here.launch()
        here.rollout()
        assert (here.place.replace_lost(), here.place.replaced.restarts) == ([], 0)


def test_workers_that_come_up_are_reported() -> None:
    with stage("processes") as here:
        here.launch()
        assert here.said[-1].startswith("2 of 2 workers are ready after ")


def test_inline_says_that_nothing_is_ordered_instead_of_waiting_for_ever() -> None:
    with stage("inline") as here:
        with pytest.raises(HeadraceError, match="no rollout is ordered"):
            here.place.wait()
        here.launch()
        with pytest.raises(HeadraceError, match="no rollout is ordered"):
            here.place.wait()


# ---------------------------------------------------------------------------------------------------------------- close


@every_place
@pytest.mark.parametrize("when", ["before the launch", "idle", "with orders in hand"])
def test_close_ends_it_at_any_time_and_twice(kind: str, when: str) -> None:
    with stage(kind) as here:
        if when != "before the launch":
            here.launch()
        if when == "with orders in hand":
            here.order()
            here.order()
        pids = here.place.workers.pids if isinstance(here.place, Processes) else []
        assert len(pids) == (2 if kind in ("processes", "central") and when != "before the launch" else 0)
        here.place.close()
        here.place.close()
        assert all(is_gone(pid) for pid in pids)


def closing(folder: Path, bad: int = -1) -> EnvSpec:
    return EnvSpec("support.worker_envs:Closes", {"folder": str(folder), "bad": bad, "seed": SEED})


def closed_in(folder: Path) -> set[int]:
    return {int(file.name.partition("-")[2]) for file in folder.glob("closed-*")}


FIRST_SEEDS = {leaf(SEED, Purpose.ENV, env, 0) for env in range(5)}


@every_place
def test_close_closes_every_environment(kind: str, tmp_path: Path) -> None:
    with stage(kind, closing(tmp_path)) as here:
        here.launch()
        here.rollout()
        assert closed_in(tmp_path) == set()
        here.place.close()
        assert closed_in(tmp_path) == FIRST_SEEDS


@every_place
def test_an_environment_that_can_not_be_closed_does_not_keep_the_others_open(kind: str, tmp_path: Path) -> None:
    """It is named, once."""
    with stage(kind, closing(tmp_path, bad=1)) as here:
        here.launch()
        here.rollout()
        with pytest.raises(EnvError, match="env 1: could not be closed: RuntimeError: would not close"):
            here.place.close()
        assert closed_in(tmp_path) == FIRST_SEEDS
        here.place.close()


# ------------------------------------------------------------------------------------------------------------- failures


def faulty(fault: str) -> EnvSpec:
    return EnvSpec("support.faulty_envs:Faulty", {"fault": fault})


def until_it_fails(here: Stage, rounds: int = 12) -> None:
    for _ in range(rounds):
        here.rollout()


@every_place
@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("step_raises", EnvError, "raised RuntimeError: the simulator fell over"),
        ("nan_reward", NumericsError, "the reward is nan"),
        ("shape", EnvError, r"returned an observation of shape \(4,\), expected \(3,\)"),
    ],
)
def test_what_fails_in_an_environment_is_raised_by_wait_with_its_place(
    kind: str, fault: str, error: type[HeadraceError], message: str
) -> None:
    assert Faulty.SEED == SEED
    with stage(kind, faulty(fault)) as here:
        here.launch()
        with pytest.raises(error, match=message) as caught:
            until_it_fails(here)
        assert str(caught.value).startswith(Faulty.PLACE)
        if kind in ("processes", "central"):  # where it was raised is told all the same
            assert "In headrace-worker-0:\nTraceback" in "".join(caught.value.__notes__)
        here.place.close()


@every_place
def test_what_fails_at_the_start_is_raised_by_launch(kind: str, tmp_path: Path) -> None:
    with stage(kind, EnvSpec("support.worker_envs:fails_after", {"folder": str(tmp_path), "count": 3})) as here:
        with pytest.raises(HeadraceError, match="no licence for another one"):
            here.launch()
        here.place.close()


@every_place
def test_a_failed_rollout_commits_nothing(kind: str) -> None:
    with stage(kind, faulty("step_raises"), n_shards=1, workers=1) as here:
        here.launch()
        with pytest.raises(EnvError):
            until_it_fails(here)
        before = (Faulty.EPISODE * 5 + Faulty.STEP) // 6
        assert here.ring.state.sequences == [before], "rollouts before the one that failed"
        assert here.ring.take() == []


# ------------------------------------------------------------------------------------------ in the middle of an episode


def journal_for(here: Stage) -> Journal:
    return Journal(5, partial(leaf, SEED, Purpose.ENV), here.plan.observation, here.plan.action)


def journalled(here: Stage, rounds: int) -> Journal:
    """A journal of rollouts that were taken; the weights stay."""
    journal = journal_for(here)
    for _ in range(rounds):
        here.order()
        enter(journal, here, taken := here.collect())
        here.release(taken)
    return journal


def enter(journal: Journal, here: Stage, taken: list[Taken]) -> None:
    for one in taken:
        journal.enter(here.plan.shards[one.lease.shard], one.slab)


@every_place
def test_a_host_that_is_built_in_the_middle_of_episodes_goes_on_to_the_last_bit(kind: str) -> None:
    with stage("inline") as first, stage(kind) as second:
        first.launch()
        journal = journalled(first, 3)
        assert any(one.episode for one in live_episodes(journal, range(5)))
        assert any(len(one.actions) for one in live_episodes(journal, range(5)))
        second.launch(lambda shard: standing(journal, second.plan.shards[shard]))
        for _ in range(2):
            assert second.rollout() == first.rollout()


@every_place
def test_a_host_goes_on_after_slabs_that_wait_for_a_batch(kind: str) -> None:
    """They were taken, and are not in the journal yet; one shard has none."""
    with stage("inline") as first, stage(kind) as second:
        first.launch()
        journal = journalled(first, 1)
        first.order([0, 1])
        waiting = {one.lease.shard: [one.slab] for one in first.collect(2)}
        second.launch(lambda shard: standing(journal, second.plan.shards[shard], waiting.get(shard, ())))
        got = second.rollout()
        first.order([0, 1])
        assert {one.lease.shard: bits_of(one.slab) for one in first.collect(2)} == {0: got[0], 1: got[1]}
        first.order([2])
        assert bits_of(first.collect(1)[0].slab) == got[2]


@every_place
def test_a_shard_that_has_not_begun_begins_beside_one_that_goes_on(kind: str) -> None:
    with stage("inline") as first, stage(kind) as second:
        first.launch()
        first.order([1])
        journal = journal_for(first)
        enter(journal, first, taken := first.collect(1))
        first.release(taken)
        second.launch(lambda shard: standing(journal, second.plan.shards[shard]))
        assert second.rollout() == first.rollout()


@every_place
def test_a_replay_that_ends_elsewhere_is_refused_by_name(kind: str) -> None:
    with stage("inline") as first, stage(kind) as second:
        first.launch()
        journal = journalled(first, 2)
        journal.last_obs["obs"][3] += 1
        with pytest.raises(ReplayError, match=r"env 3, episode .* the observation is not the one that was recorded"):
            second.launch(lambda shard: standing(journal, second.plan.shards[shard]))
        second.place.close()


# ----------------------------------------------------------------------------------------------------------- lost hosts


def test_a_worker_that_dies_is_replaced_and_its_orders_are_void() -> None:
    """wait returns for it; replace_lost names its shards; a new one goes on where the journal says."""
    with stage("processes") as here, stage("inline") as undisturbed:
        here.launch()
        undisturbed.launch()
        journal = journalled(here, 2)
        assert isinstance(here.place, Processes)
        here.place.workers.start_of = lambda shard: standing(journal, here.plan.shards[shard])
        for _ in range(2):
            undisturbed.rollout()
        victim, survivor = here.place.workers.pids
        os.kill(victim, signal.SIGKILL)
        here.order()  # to a worker that may be gone already
        taken = here.collect(1)  # shard 1's; the death may be seen before or after
        wait_until(lambda: is_gone(victim))
        here.place.wait()
        assert here.place.replaced.restarts == 0
        lost = here.place.replace_lost()
        assert (lost, here.place.replaced.restarts) == ([0, 2], 1)
        assert [lease.shard for shard in lost for lease in here.ring.state.revoke(shard)] == [0, 2]
        assert here.place.replace_lost() == []
        here.order([0, 2])
        got = {one.lease.shard: bits_of(one.slab) for one in [*taken, *here.collect(2)]}
        assert got == undisturbed.rollout()
        assert survivor in here.place.workers.pids


def test_a_worker_that_was_ended_takes_no_more_orders() -> None:
    with stage("processes") as here:
        here.launch()
        here.place.close()
        calls: list[Callable[[], Any]] = [here.place.wait, here.place.replace_lost, here.launch]
        for call in calls:
            with pytest.raises(HeadraceError, match="the workers of this run were ended"):
                call()


def test_a_worker_owes_what_it_was_ordered_to_do() -> None:
    """Who owes nothing need not move, and is not taken for hung while it waits."""
    with stage("processes") as here:
        here.launch()
        assert isinstance(here.place, Processes)
        owed, children = here.place.workers.owed, here.place.workers.children
        assert owed == [0, 0]
        for _ in range(2):
            here.order()
            assert owed == [2, 1], "shards 0 and 2, and shard 1"
            here.release(here.collect())
            wait_until(lambda: here.place.replace_lost() == [] and owed == [0, 0])
        here.order()
        os.kill(children[0].pid, signal.SIGKILL)
        while 0 in children:
            here.place.wait()
        assert owed[0] == 0, "its successor was ordered nothing yet"


# ---------------------------------------------------------------------------------------------------- without a policy


def test_a_worker_that_asks_a_server_has_no_torch() -> None:
    with stage("central") as here, stage("processes") as beside:
        for one in (here, beside):
            one.launch()
            one.rollout()
        mapped = [Path(f"/proc/{one.place.workers.pids[0]}/maps").read_text() for one in (here, beside)]  # type: ignore[attr-defined]
        assert ["libtorch" in text for text in mapped] == [False, True]
