"""Two processes, one slab: a spawned writer fills shared memory through the same actor code, the reader does not copy.

parent: create, lease ──name, order──> child: attach, build actor, fill, commit ──> parent: read in place, unlink
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from headrace.envs.spec import EnvSpec
from headrace.learning.assembly import assemble
from headrace.memory.layout import Word, slab_bytes
from headrace.memory.lease import Lease
from headrace.memory.ring import RingState
from headrace.memory.schema import Schema
from headrace.memory.segment import SharedSegment
from headrace.memory.slab import Slab
from support.bare_writer import write_rewards
from support.slab_filler import Order, fill_and_commit, in_another_process, order_for
from support.slabs import COMPLETED, Array, heap_slab, small_schema

JOIN_S = 120.0

# Choices and numbers. The first is cut often, so its slab holds final observations.
ENVIRONMENTS = (EnvSpec("CartPole-v1", {"max_episode_steps": 9}), EnvSpec("Pendulum-v1"))


@contextmanager
def shared_slab(schema: Schema) -> Iterator[SharedSegment]:
    """A poisoned slab in shared memory; afterwards it is gone."""
    segment = SharedSegment.create(slab_bytes(schema))
    try:
        Slab(schema, segment.buffer).poison()
        yield segment
    finally:
        name = segment.name
        segment.unlink()
    assert not os.path.exists(f"/dev/shm/{name}")


def exit_code_of(target: Callable[..., None], *arguments: object) -> int | None:
    """Run it in a spawned process, to the end."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
    process.start()
    try:
        process.join(JOIN_S)
        if process.exitcode is None:
            process.kill()
            process.join()
        return process.exitcode
    finally:
        process.close()


def granted(state: RingState, shard: int = 0) -> Lease:
    state.grant(100)
    lease = state.lease(shard)
    assert lease is not None
    return lease


def written_by_actor(slab: Slab) -> dict[str, Array]:
    """Every field an actor writes; of final observations, as many as there are."""
    finals = {"final_row": slab.final_row, "final_obs": slab.final_obs["obs"]}
    return {name: finals.get(name, array) for name, array in slab.arrays.items() if name not in COMPLETED}


def test_a_spawned_process_fills_slabs_that_the_reader_reads_in_place() -> None:
    state = RingState(num_slots=len(ENVIRONMENTS), num_shards=len(ENVIRONMENTS))
    with ExitStack() as stack:
        work, leases = {}, []
        for shard, spec in enumerate(ENVIRONMENTS):
            leases.append(granted(state, shard))
            order = order_for(spec, range(3, 9), seed=7, n_steps=20, fence=leases[-1].fence, version=4)
            work[stack.enter_context(shared_slab(order.schema))] = order
        assert exit_code_of(in_another_process, {segment.name: order for segment, order in work.items()}) == 0
        for (segment, order), lease in zip(work.items(), leases, strict=True):
            assert_committed_in_place(segment, order, state, lease)


def assert_committed_in_place(segment: SharedSegment, order: Order, state: RingState, lease: Lease) -> None:
    slab = Slab(order.schema, segment.buffer, create=False)
    assert lease in state.commit({lease.slot: slab.header[Word.COMMIT]}.get)
    assert slab.header[Word.STARTED_NS] <= slab.header[Word.COMMITTED_NS]

    ours = heap_slab(order.schema)
    fill_and_commit(order, ours)
    theirs_by_name, ours_by_name = written_by_actor(slab), written_by_actor(ours)
    for name, array in theirs_by_name.items():
        assert array.tobytes() == ours_by_name[name].tobytes(), name
    assert all(np.isnan(slab.arrays[name]).all() for name in COMPLETED), "an actor does not complete"
    assert (slab.final_count > 0) == ("max_episode_steps" in order.plan.env.kwargs)
    assert (slab.version == order.version + np.arange(order.schema.n_steps)).all()

    memory = np.frombuffer(segment.buffer, np.uint8)
    batch = assemble([slab])
    for name in ("obs", "action", "reward", "terminated", "truncated", "valid", "last_obs", "final_obs", "log_prob"):
        array = getattr(batch, name)
        assert array.size == 0 or np.shares_memory(array, memory), f"{name} was copied"


def test_a_process_whose_lease_was_revoked_can_not_pass_its_slab_off() -> None:
    schema, state = small_schema(), RingState(num_slots=1, num_shards=1)
    stale = granted(state)
    assert state.revoke(0) == [stale]
    current = granted(state)
    with shared_slab(schema) as segment:
        assert exit_code_of(write_rewards, segment.name, schema, stale.fence, False) == 0
        assert commit_word(segment) == stale.fence
        assert state.commit(lambda slot: commit_word(segment)) == []
        assert exit_code_of(write_rewards, segment.name, schema, current.fence, False) == 0
        assert state.commit(lambda slot: commit_word(segment)) == [current]


def test_a_process_killed_before_its_commit_has_committed_nothing() -> None:
    schema, state = small_schema(), RingState(num_slots=1, num_shards=1)
    lease = granted(state)
    with shared_slab(schema) as segment:
        assert exit_code_of(write_rewards, segment.name, schema, lease.fence, True) == -signal.SIGKILL
        assert state.commit(lambda slot: commit_word(segment)) == []
        assert state.revoke(0) == [lease]
        assert granted(state).sequence == lease.sequence, "the lost rollout is asked for again"


def test_a_process_of_another_schema_is_refused_before_it_writes(capfd: pytest.CaptureFixture[str]) -> None:
    ours, theirs = small_schema(n_steps=5), small_schema(n_steps=4)
    with shared_slab(ours) as segment:
        before = bytes(segment.buffer)
        assert exit_code_of(write_rewards, segment.name, theirs, 1, False) == 1
        assert bytes(segment.buffer) == before
    assert "fingerprint" in capfd.readouterr().err


def commit_word(segment: SharedSegment) -> int:
    return int.from_bytes(segment.buffer[Word.COMMIT * 8 : Word.COMMIT * 8 + 8], "little")
