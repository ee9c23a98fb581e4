"""The contract of sources, over the reader in every place, groups of LLM episodes and a plain list.

    collect -> a batch, lent ... give_back -> Harvest · run_ahead · totals · snapshot and restore, bit for bit · close

Between give_back and the next collect a snapshot is all it takes to repeat what follows, in the same source, in another
one, and (readers) in another place. A collect that is broken off has entered nothing. The ledger always balances.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.agents.engines.protocol import Engine
from headrace.agents.engines.scripted import scripted
from headrace.agents.limits import Limits
from headrace.agents.records import Group, fingerprint
from headrace.build import build_parts
from headrace.collecting.groups import GroupSource
from headrace.collecting.reader import Reader
from headrace.collecting.source import Source
from headrace.collecting.topology import TopologyConfig
from headrace.envs.spec import EnvSpec
from headrace.episodes.finished import Finished
from headrace.errors import EnvError, HeadraceError
from headrace.learning.batch import Batch
from headrace.learning.config import PpoConfig
from headrace.memory.lease import Taken
from headrace.policies.config import PolicyConfig
from headrace.run_config import RunConfig
from headrace.weights import saving
from headrace.weights.store import Weights
from support.agent_envs import Counting, spec
from support.list_source import ListSource
from support.ppo_rows import completed_batch, spaces_named
from support.toy_policies import mlp_policy

READERS = ("inline", "threads", "processes")
SOURCES = (*READERS, "groups", "list")
SEED = 7
N_STEPS, N_ENVS = 6, 5
STEADY = EnvSpec("support.faulty_envs:Steady")  # episodes of five steps

every_source = pytest.mark.parametrize("kind", SOURCES)
every_reader = pytest.mark.parametrize("kind", READERS)

Bits = dict[str, bytes]
COMPLETED = {"log_prob", "value", "bootstrap_value", "last_value"}  # by the algorithm


def bits_of(batch: Batch | list[Group]) -> Bits:
    """What was collected, by name."""
    if isinstance(batch, list):
        return {f"group {group.number}": fingerprint([group]).encode() for group in batch}
    arrays = {name: array for name, array in vars(batch).items() if isinstance(array, np.ndarray)}
    for name in ("leaves", "last_leaves", "final_leaves"):
        arrays |= {f"{name}.{leaf}": array for leaf, array in getattr(batch, name).items()}
    return {name: array.tobytes() for name, array in arrays.items() if name not in COMPLETED}


@dataclass
class Rig:
    """A source as a run drives it: weights change after every batch, so that batches differ by their history."""

    source: Source
    weights: Weights | Engine | None
    break_off: Callable[[], None]
    """The next collect is broken off by KeyboardInterrupt, in the middle if it has one."""

    def advance(self) -> Bits:
        """One update."""
        bits = bits_of(self.source.collect())
        self.source.give_back()
        self.publish()
        self.source.run_ahead()
        return bits

    def publish(self) -> None:
        """Other weights."""
        if isinstance(self.weights, Weights):
            vector = self.weights.flat.vector
            with torch.no_grad():
                vector.add_(0.3 * torch.sin(torch.arange(len(vector)) + float(self.weights.version)))
            self.weights.publish()
        elif self.weights is not None:
            self.weights.publish(None)

    def snapshot(self) -> tuple[Any, ...]:
        """Copied, the JSON of it through JSON."""
        state, arrays = self.source.snapshot()
        weights = (
            saving.snapshot(self.weights) if isinstance(self.weights, Weights) else getattr(self.weights, "version", 0)
        )
        return json.loads(json.dumps(state, allow_nan=False)), arrays, weights

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """As a run does: the source first."""
        state, arrays, weights = snapshot
        self.source.restore(state, arrays)
        if isinstance(self.weights, Weights):
            saving.restore(self.weights, *weights)
        elif self.weights is not None:
            self.weights.publish(None, weights)  # type: ignore[call-arg]


@contextmanager
def rig(kind: str, env: EnvSpec | None = None, **place: Any) -> Iterator[Rig]:
    """Some environments in some place, groups of LLM episodes, or a list."""
    if kind == "list":
        listing = ListSource(listed())
        yield Rig(listing, None, lambda: setattr(listing, "fails_with", KeyboardInterrupt()))
        listing.close()
        return
    if kind == "groups":
        with group_rig() as here:
            yield here
        return
    workers = {} if kind == "inline" else {"workers": "2"}
    late = place.pop("late", "weight")
    usual = {"n_envs": N_ENVS, "n_steps": N_STEPS, "shards": 3, "topology": kind}
    topology = TopologyConfig(**usual | workers | place)
    env = env or EnvSpec("support.bit_envs:Noisy")
    parts = build_parts(RunConfig(env, SEED, PolicyConfig(net_arch=(8,)), PpoConfig(late=late), topology))
    reader = parts.reader

    def break_off() -> None:
        """With one of several rollouts in hand."""
        real = reader._next_ready

        def next_ready() -> Taken | None:
            if reader._in_hand:
                reader._next_ready = real  # type: ignore[method-assign]
                raise KeyboardInterrupt
            return real()

        reader._next_ready = next_ready  # type: ignore[method-assign]

    try:
        yield Rig(reader, parts.weights, break_off)
    finally:
        parts.close()


@contextmanager
def group_rig() -> Iterator[Rig]:
    engine = scripted()
    paced = {"max_lag": 0, "groups_per_update": 3, "group_size": 2, "limits": Limits(publish_s=20.0)}
    rollouts = hr.AgentRollouts([spec(Counting)], engine, 1, "sequential", **paced)  # type: ignore[arg-type]
    source, played = GroupSource(rollouts), iter([False, True])

    def stop(group: Group) -> None:
        if next(played):
            rollouts.on_group = None
            raise KeyboardInterrupt

    try:
        yield Rig(source, engine, lambda: setattr(rollouts, "on_group", stop))
    finally:
        source.close()
        engine.close()


@cache
def listed() -> tuple[Batch, ...]:
    observation, action = spaces_named("vector", "discrete")
    module = mlp_policy(observation, action)
    return tuple(completed_batch(module, "vector", action, N_STEPS, N_ENVS, seed, invalid=0.2) for seed in range(8))


@cache
def calm(kind: str, updates: int = 5) -> tuple[Bits, ...]:
    """What every source of a kind should lend; all readers' are inline's."""
    with rig("inline" if kind in READERS else kind) as here:
        return tuple(here.advance() for _ in range(updates))


# ---------------------------------------------------------------------------------------------- lend, give back, totals


@every_source
def test_batches_are_the_same_wherever_they_are_collected(kind: str) -> None:
    with rig(kind) as here:
        got = tuple(here.advance() for _ in range(5))
    assert got == calm(kind)
    assert len({json.dumps(sorted(map(str, one.values()))) for one in got}) == 5, "and no two of them are"


@pytest.mark.parametrize("kind", [*READERS, "list"])
def test_a_batch_is_settled_when_it_is_given_back(kind: str) -> None:
    """The ledger of groups counts those that were handed over (unit/agents)."""
    with rig(kind) as here:
        consumed = 0
        for _ in range(3):
            batch = here.source.collect()
            steps = batch.steps
            ledger = here.source.totals().ledger
            assert (ledger["produced"], ledger["consumed"]) == (consumed + steps, consumed), "in hand"
            harvest = here.source.give_back()
            consumed += steps
            assert harvest.steps == steps
            assert all(isinstance(value, float) for value in harvest.record.values())
            ledger = here.source.totals().ledger
            assert ledger == {"produced": consumed, "consumed": consumed, "rejected": 0, "discarded": {}}
            here.source.run_ahead()
        assert not here.source.is_interruptible


@every_source
def test_a_batch_stays_as_it_is_until_it_is_given_back(kind: str) -> None:
    with rig(kind) as here:
        batch = here.source.collect()
        before = bits_of(batch)
        here.source.snapshot()
        here.source.totals()
        assert bits_of(batch) == before == calm(kind)[0]
        with pytest.raises(HeadraceError, match="the last batch was not given back"):
            here.source.collect()
        here.source.give_back()
        here.publish()
        assert here.advance() != before


# ------------------------------------------------------------------------------------------------- snapshot and restore


@every_source
@pytest.mark.parametrize("after", [0, 2])
def test_another_source_goes_on_from_a_snapshot_bit_for_bit(kind: str, after: int) -> None:
    with rig(kind) as first:
        for _ in range(after):
            first.advance()
        snapshot = first.snapshot()
        totals = first.source.totals()
        first.advance()  # a snapshot is a copy
    with rig(kind) as second:
        second.restore(snapshot)
        assert second.source.totals() == totals
        assert tuple(second.advance() for _ in range(3)) == calm(kind)[after : after + 3]


@every_source
@pytest.mark.parametrize("after", [0, 1])
def test_the_same_source_goes_back_to_a_snapshot(kind: str, after: int) -> None:
    """Also to its own beginning."""
    with rig(kind) as here:
        for _ in range(after):
            here.advance()
        snapshot = here.snapshot()
        for _ in range(2):
            here.advance()
        here.restore(snapshot)
        assert tuple(here.advance() for _ in range(3)) == calm(kind)[after : after + 3]


@pytest.mark.parametrize(
    ("before", "after"), [("processes", "inline"), ("inline", "threads"), ("threads", "processes")]
)
def test_a_reader_goes_on_in_another_place(before: str, after: str) -> None:
    with rig(before) as first:
        first.advance()
        snapshot = first.snapshot()
    with rig(after, shards=5) as second:  # other shards too
        second.restore(snapshot)
        assert tuple(second.advance() for _ in range(3)) == calm(after)[1:4]


# ----------------------------------------------------------------------------------------------------------- broken off


@every_source
def test_a_collect_that_is_broken_off_has_entered_nothing(kind: str) -> None:
    with rig(kind) as here:
        here.advance()
        before, totals = here.snapshot(), here.source.totals()
        here.break_off()
        with pytest.raises(KeyboardInterrupt):
            here.source.collect()
        now = here.source.totals()
        assert (now.episodes, now.mean_return) == (totals.episodes, totals.mean_return)
        if kind != "groups":  # whose ledger counts what was handed over
            assert now == totals
        state, arrays, _ = here.snapshot()
        assert state == before[0]
        assert {name: array.tobytes() for name, array in arrays.items()} == {
            name: array.tobytes() for name, array in before[1].items()
        }
        here.restore(before)
        assert tuple(here.advance() for _ in range(2)) == calm(kind)[1:3]


@every_source
def test_a_source_that_was_halted_can_be_saved_and_goes_on_after_a_restore(kind: str) -> None:
    """A batch that is lent stays as it is; workers are gone."""
    with rig(kind) as here:
        here.advance()
        batch = here.source.collect()
        before = bits_of(batch)
        here.source.halt()
        here.source.halt()
        if kind == "processes":
            assert isinstance(here.source, Reader)
            assert here.source.place.workers.pids == []
        assert bits_of(batch) == before == calm(kind)[1]
        here.source.give_back()
        here.publish()
        here.source.run_ahead()
        snapshot = here.snapshot()
        here.restore(snapshot)
        assert here.advance() == calm(kind)[2]


@every_source
def test_a_source_says_when_it_begins_to_wait(kind: str) -> None:
    """So that a signal which came before is not forgotten."""

    def stop() -> None:
        raise KeyboardInterrupt

    with rig(kind) as here:
        here.advance()
        if kind == "list":
            return  # never waits
        here.source.before_wait = stop
        snapshot = here.snapshot()
        with pytest.MonkeyPatch.context() as patch:
            if isinstance(here.source, Reader):  # hosts may be so quick that there is nothing to wait for
                patch.setattr(here.source.ring, "take", list)
            with pytest.raises(KeyboardInterrupt):
                here.source.collect()
        here.source.before_wait = lambda: None
        here.restore(snapshot)
        assert here.advance() == calm(kind)[1]


@every_reader
def test_a_reader_may_be_interrupted_where_it_waits_and_nowhere_else(kind: str) -> None:
    seen: list[bool] = []
    with rig(kind) as here:
        reader = here.source
        assert isinstance(reader, Reader)
        launch, wait, order = reader.place.launch, reader.place.wait, reader.place.order

        def watched(call: Callable[..., Any], is_wait: bool) -> Callable[..., Any]:
            def watch(*arguments: Any) -> Any:
                seen.append(reader.is_interruptible == is_wait)
                return call(*arguments)

            return watch

        reader.place.launch = watched(launch, True)  # type: ignore[method-assign]
        reader.place.wait = watched(wait, True)  # type: ignore[method-assign]
        reader.place.order = watched(order, False)  # type: ignore[method-assign]
        here.advance()
    assert len(seen) > 5
    assert all(seen)


# ------------------------------------------------------------------------------------------------------------- failures


@every_reader
def test_what_fails_in_an_environment_is_raised_by_collect(kind: str) -> None:
    with rig(kind, EnvSpec("support.faulty_envs:Faulty", {"fault": "step_raises"})) as here:
        for _ in range(2):
            here.advance()
        with pytest.raises(EnvError, match=r"env 1, episode 1:2, seed \d+, step 3: .*fell over"):
            here.advance()
        ledger = here.source.totals().ledger
        assert ledger["produced"] == ledger["consumed"] == 2 * N_STEPS * N_ENVS


@every_reader
@pytest.mark.parametrize("then", ["collect", "restore"])
def test_a_failure_of_what_runs_ahead_waits_for_the_next_collect(kind: str, then: str) -> None:
    """The update before it is whole; a source that goes back to a snapshot has forgotten it."""
    with rig(kind) as here:
        reader = here.source
        assert isinstance(reader, Reader)
        here.advance()
        snapshot, real = here.snapshot(), reader.place.replace_lost

        def fails() -> list[int]:
            reader.place.replace_lost = real  # type: ignore[method-assign]
            raise HeadraceError("ran into a wall")

        reader.place.replace_lost = fails  # type: ignore[method-assign]
        reader.run_ahead()
        if then == "restore":
            here.restore(snapshot)
        else:
            with pytest.raises(HeadraceError, match="ran into a wall"):
                reader.collect()
        assert here.advance() == calm(kind)[1], "and it is said once"


# ---------------------------------------------------------------------------------------------------------------- close


@every_source
@pytest.mark.parametrize("when", ["at once", "with a batch lent", "between batches"])
def test_close_ends_it_at_any_time_and_twice(kind: str, when: str) -> None:
    with rig(kind) as here:
        if when == "between batches":
            here.advance()
        if when == "with a batch lent":
            batch = here.source.collect()
            before = bits_of(batch)
        here.source.close()
        here.source.close()
        if when == "with a batch lent":
            assert bits_of(batch) == before, "who still reads may go on"


# --------------------------------------------------------------------------------------------- what a reader tells more


@every_reader
def test_a_harvest_tells_the_episodes_that_ended_and_whose_steps_they_were(kind: str) -> None:
    finished: list[Finished] = []
    with rig(kind) as here:
        for update in range(4):
            batch = here.source.collect()
            ended = (batch.terminated | batch.truncated) & batch.valid
            numbers = [(int(env), int(batch.episode[t, env])) for t, env in np.argwhere(ended)]
            harvest = here.source.give_back()
            assert [(one.env_index, one.episode) for one in harvest.finished] == numbers
            finished += harvest.finished
            assert harvest.uses == (), "a synchronous run has no schedule"
            # Shards 0 and 2 (environments 0, 1 and 4) are worker 0's.
            assert harvest.steps_by_worker == (() if kind == "inline" else (3 * N_STEPS, 2 * N_STEPS))
            record = harvest.record
            assert record["headrace/ledger/produced"] == record["headrace/ledger/consumed"] == 30.0 * (update + 1)
            assert record["headrace/episodes"] == len(finished)
            assert (record["headrace/lag"], record["headrace/restarts"]) == (0.0, 0.0)
            if finished:
                assert record["rollout/ep_rew_mean"] == pytest.approx(np.mean([one.total_reward for one in finished]))
            here.source.run_ahead()
        totals = here.source.totals()
    assert totals.episodes == len(finished) > 0
    assert totals.mean_return == pytest.approx(np.mean([one.total_reward for one in finished]))


@every_reader
def test_an_asynchronous_reader_tells_its_schedule(kind: str) -> None:
    """Inline repeats it: what was looked at when, and which version acted in which row."""
    with rig(kind, max_lag=1) as here:
        next_of = [0, 0, 0]
        for _ in range(4):
            version = here.weights.version  # type: ignore[union-attr]
            here.source.collect()
            uses = here.source.give_back().uses
            assert [use.shard for use in uses] == [0, 1, 2], "one of every shard in turn"
            for use in uses:
                assert use.sequence == next_of[use.shard]
                next_of[use.shard] += 1
                assert len(use.versions) == N_STEPS
                assert version - 1 <= min(use.versions) <= max(use.versions) <= version
            here.publish()
            here.source.run_ahead()


def test_rollouts_that_are_too_old_are_rejected_and_accounted_for() -> None:
    """With late=reject: another rollout takes their place; their episodes still happened, and are told once."""
    finished: list[Finished] = []
    with rig("inline", STEADY, max_lag=1, late="reject", pick_up_rows=0, batch="first_come") as here:
        reader = here.source
        assert isinstance(reader, Reader)
        decisions = iter([False, True, False, False, True] * 20)

        def is_late(one: Taken) -> bool:
            """Now and then; never after a younger slab of the same shard was taken, as versions only grow."""
            return next(decisions) and all(other.lease.shard != one.lease.shard for other in reader._in_hand)

        reader._is_late = is_late  # type: ignore[method-assign]
        for _ in range(8):
            reader.collect()
            harvest = reader.give_back()
            finished += harvest.finished
            here.publish()
            reader.run_ahead()
        ledger = reader.totals().ledger
        assert ledger["rejected"] > 0
        assert ledger["produced"] == ledger["consumed"] + ledger["rejected"]
        assert reader.totals().episodes == len(finished)
    assert len({(one.env_index, one.episode) for one in finished}) == len(finished) > 20
    assert {one.length for one in finished} == {5}


@pytest.mark.parametrize("late", ["reject", "weight"])
def test_rows_older_than_max_lag_are_passed_over_only_if_that_is_asked_for(late: str) -> None:
    """Two publishes for one batch: what ran ahead is two versions old."""
    with rig("inline", max_lag=1, late=late, pick_up_rows=0) as here:
        here.source.collect()
        here.source.give_back()
        here.source.run_ahead()
        here.publish()
        here.publish()
        batch = here.source.collect()
        oldest = int(batch.version.min())
        here.source.give_back()
        ledger = here.source.totals().ledger
        if late == "reject":
            assert (oldest >= 1, ledger["rejected"] > 0) == (True, True)
        else:
            assert (oldest, ledger["rejected"]) == (0, 0)


def test_reopening_moves_environments_by_replay() -> None:
    with rig("threads") as here:
        reader = here.source
        assert isinstance(reader, Reader)
        got = [here.advance()]
        reader.reopen(replace(reader._topology, workers=1))
        got += [here.advance(), here.advance()]
        assert tuple(got) == calm("threads")[:3]
