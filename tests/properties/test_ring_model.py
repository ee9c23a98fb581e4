"""Every interleaving of two writers and a reader over a few slabs: the hand-over loses, tears and repeats none.

    owner: lease (poison, order) · reap · revoke      writer: see the order, cell, cell, commit word; or crash anywhere
    reader: look at one commit word, cell, cell, release or reject

RingState decides; memory is plain cells, and each of these is one atomic step that anybody may take next. A writer may
also be thought dead while it is only stopped: its leases are revoked, it goes on, and the slabs it may still write into
are leased again only once it has been reaped. A breadth-first search visits every state that can be reached (fences are
renamed in the order they appear: only their being equal counts), so what holds here holds for every schedule of this
size.

In all states: no slab has two owners · both cells that are read are this lease's · every shard's rollouts are consumed
in order, none left out, none twice · the end can still be reached, and at the end everything was consumed.
Mutations of the protocol are found, with the shortest way there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from headrace.memory.lease import Lease
from headrace.memory.ring import RingState

POISON = 0
ALIVE, DEAD, REAPED, STOPPED = "alive", "dead", "reaped", "stopped"  # stopped: revoked, but may still go on

Order = tuple[int, int, int, int]  # a lease: slot, shard, sequence, fence
SLOT, SHARD, SEQUENCE, FENCE = range(4)


class Writer(NamedTuple):
    """One shard's writer: its orders, first to last, and how far it is with the first (0: has not seen it)."""

    life: str = ALIVE
    step: int = 0
    orders: tuple[Order, ...] = ()
    quarantined: tuple[int, ...] = ()  # slots that it may write into although they were taken from it


class Reading(NamedTuple):
    """A slab that the reader has taken."""

    order: Order
    step: int = 0
    first: int = POISON


class State(NamedTuple):
    """Everything there is, as plain data."""

    held: tuple[Order | None, ...]
    committed: tuple[int, ...]
    base: tuple[int, ...]
    open: tuple[tuple[Order, ...], ...]
    next_fence: int
    cells: tuple[tuple[int, int], ...]
    words: tuple[int, ...]
    writers: tuple[Writer, ...]
    readings: tuple[Reading, ...]
    consumed: tuple[int, ...]
    faults: int  # that may still happen
    rejections: int


class ViolationError(Exception):
    """A promise was broken."""


def as_order(lease: Lease) -> Order:
    return (lease.slot, lease.shard, lease.sequence, lease.fence)


def believe_the_fence(ring: RingState, slot: int, word: int) -> Lease | None:
    return looked_at(ring, slot, word)


def looked_at(ring: RingState, slot: int, word: int) -> Lease | None:
    """At one commit word alone."""
    return next(iter(ring.commit({slot: word}.get)), None)


def revoke(ring: RingState, shard: int) -> list[Lease]:
    return ring.revoke(shard)


@dataclass(frozen=True)
class Model:
    """The protocol, and its size. What a mutation changes is a field."""

    num_slots: int = 2
    rollouts: int = 2  # of each shard
    is_even: bool = True
    faults: int = 1
    rejections: int = 0
    writer_steps: tuple[str, ...] = ("cell 0", "cell 1", "commit")
    waits_for_the_reaper: bool = True
    look: Callable[[RingState, int, int], Lease | None] = field(default=believe_the_fence)
    revoke: Callable[[RingState, int], list[Lease]] = field(default=revoke)

    def start(self) -> State:
        return State(
            held=(None,) * self.num_slots,
            committed=(0, 0),
            base=(0, 0),
            open=((), ()),
            next_fence=1,
            cells=((POISON, POISON),) * self.num_slots,
            words=(0,) * self.num_slots,
            writers=(Writer(), Writer()),
            readings=(),
            consumed=(0, 0),
            faults=self.faults,
            rejections=self.rejections,
        )

    # -------------------------------------------------------------------------------------- the real thing, from and to

    def ring(self, state: State) -> RingState:
        ring = RingState(self.num_slots, 2, self.is_even)
        ring.grant(2 * self.rollouts)
        ring.held = [order and Lease(*order) for order in state.held]
        ring.sequences, ring._base = list(state.committed), list(state.base)
        ring.open = [[Lease(*order) for order in orders] for orders in state.open]
        ring._next_fence = state.next_fence
        return ring

    def with_ring(self, state: State, ring: RingState) -> State:
        return state._replace(
            held=tuple(lease and as_order(lease) for lease in ring.held),
            committed=tuple(ring.sequences),
            base=tuple(ring._base),
            open=tuple(tuple(map(as_order, leases)) for leases in ring.open),
            next_fence=ring._next_fence,
        )

    # -------------------------------------------------------------------------------------------------------- the steps

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Everything that may happen next but for misfortune."""
        for shard, writer in enumerate(state.writers):
            if writer.life in (ALIVE, STOPPED) and writer.orders:
                yield self.write(state, shard, writer)
            if writer.life in (ALIVE, DEAD):  # nobody knows yet
                yield from self.lease(state, shard, writer)
            if writer.life == DEAD:
                yield f"reap {shard}", with_writer(state, shard, writer._replace(life=REAPED))
            if writer.life == STOPPED:
                yield f"kill and reap {shard}", with_writer(state, shard, Writer())
            if writer.life == REAPED:
                yield f"revoke {shard}", with_writer(self.revoked(state, shard)[0], shard, Writer())
        for orders in state.open:
            for order in orders:
                yield from self.take(state, order[SLOT])
        if state.readings:
            yield from self.read(state, state.readings[0])

    def misfortunes(self, state: State) -> Iterator[tuple[str, State]]:
        """A crash at any step, or a stopped writer that is taken for dead."""
        if not state.faults:
            return
        fewer = state._replace(faults=state.faults - 1)
        for shard, writer in enumerate(state.writers):
            if writer.life == ALIVE:
                yield f"crash {shard}", with_writer(fewer, shard, writer._replace(life=DEAD))
                after, lost = self.revoked(fewer, shard)
                if lost:
                    stopped = writer._replace(life=STOPPED, quarantined=tuple(lease.slot for lease in lost))
                    yield f"revoke {shard} too early", with_writer(after, shard, stopped)

    def write(self, state: State, shard: int, writer: Writer) -> tuple[str, State]:
        slot, fence = writer.orders[0][SLOT], writer.orders[0][FENCE]
        name = f"writer {shard} sees its order" if not writer.step else self.writer_steps[writer.step - 1]
        if name == "commit":
            state = state._replace(words=put(state.words, slot, fence))
        elif name.startswith("cell"):
            state = state._replace(cells=put(state.cells, slot, put(state.cells[slot], int(name[-1]), fence)))
        is_last = writer.step == len(self.writer_steps)
        after = writer._replace(
            step=0 if is_last else writer.step + 1, orders=writer.orders[1:] if is_last else writer.orders
        )
        return f"{name} of slot {slot} by {shard}", with_writer(state, shard, after)

    def lease(self, state: State, shard: int, writer: Writer) -> Iterator[tuple[str, State]]:
        ring = self.ring(state)
        lease = ring.lease(shard)
        if lease is None:
            return
        if self.waits_for_the_reaper and any(lease.slot in one.quarantined for one in state.writers):
            return
        after = self.with_ring(state, ring)._replace(cells=put(state.cells, lease.slot, (POISON, POISON)))
        writer = writer._replace(orders=(*writer.orders, as_order(lease)))
        yield f"lease slot {lease.slot} to {shard}", with_writer(after, shard, writer)

    def revoked(self, state: State, shard: int) -> tuple[State, list[Lease]]:
        ring = self.ring(state)
        lost = self.revoke(ring, shard)
        return self.with_ring(state, ring), lost

    def take(self, state: State, slot: int) -> Iterator[tuple[str, State]]:
        ring = self.ring(state)
        lease = self.look(ring, slot, state.words[slot])
        if lease is not None:
            after = self.with_ring(state, ring)
            yield f"take slot {slot}", after._replace(readings=(*state.readings, Reading(as_order(lease))))

    def read(self, state: State, reading: Reading) -> Iterator[tuple[str, State]]:
        slot, shard, sequence, fence = reading.order
        rest = state.readings[1:]
        if reading.step == 0:
            seen = reading._replace(step=1, first=state.cells[slot][0])
            yield f"read cell 0 of slot {slot}", state._replace(readings=(seen, *rest))
        elif reading.step == 1:
            if (reading.first, state.cells[slot][1]) != (fence, fence):
                raise ViolationError(f"torn: {reading} and then {state.cells[slot][1]}")
            if sequence != state.consumed[shard]:
                what = "lost" if sequence > state.consumed[shard] else "read twice"
                raise ViolationError(f"{what}: rollout {sequence} of {shard} after {state.consumed[shard]}")
            consumed = put(state.consumed, shard, sequence + 1)
            yield (
                f"read cell 1 of slot {slot}",
                state._replace(readings=(reading._replace(step=2), *rest), consumed=consumed),
            )
        else:
            ring = self.ring(state)
            ring.release(Lease(*reading.order))
            yield f"release slot {slot}", self.with_ring(state, ring)._replace(readings=rest)
            if state.rejections:
                ring = self.ring(state)
                ring.reject(Lease(*reading.order))
                after = self.with_ring(state, ring)
                yield f"reject slot {slot}", after._replace(readings=rest, rejections=state.rejections - 1)

    # --------------------------------------------------------------------------------------------------- what must hold

    def check(self, state: State) -> None:
        """No slab has two owners, and the owner is who the ring says."""
        written = [order for writer in state.writers for order in writer.orders]
        read = [reading.order for reading in state.readings]
        if len({order[SLOT] for order in written + read}) < len(written) + len(read):
            raise ViolationError(f"two owners: {written}, {read}")
        if any(state.held[order[SLOT]] != order or order in state.open[order[SHARD]] for order in read):
            raise ViolationError(f"two owners: the reader reads {read}, the ring says {state.held}, {state.open}")

    def check_end(self, state: State) -> None:
        """Nothing can happen any more: then everything has happened."""
        rejected = self.rejections - state.rejections
        is_all = sum(state.consumed) == 2 * self.rollouts + rejected
        is_shared = not self.is_even or min(state.consumed) >= self.rollouts
        if not (is_all and is_shared) or any(state.held):
            raise ViolationError(f"lost: the end is {state}")


def put(values: tuple, index: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:index], value, *values[index + 1 :])


def with_writer(state: State, shard: int, writer: Writer) -> State:
    return state._replace(writers=put(state.writers, shard, writer))


def renamed(state: State) -> State:
    """The same state with fences 1, 2, ... in the order they appear: RingState only asks whether two are equal."""
    names: dict[int, int] = {POISON: POISON}

    def name(fence: int) -> int:
        return names.setdefault(fence, len(names))

    def order_of(order: Order) -> Order:
        return (*order[:FENCE], name(order[FENCE]))  # type: ignore[return-value]

    return state._replace(
        held=tuple(order and order_of(order) for order in state.held),
        open=tuple(tuple(map(order_of, orders)) for orders in state.open),
        writers=tuple(writer._replace(orders=tuple(map(order_of, writer.orders))) for writer in state.writers),
        readings=tuple(Reading(order_of(one.order), one.step, name(one.first)) for one in state.readings),
        cells=tuple((name(first), name(second)) for first, second in state.cells),
        words=tuple(map(name, state.words)),
        next_fence=len(names),
    )


def explore(model: Model) -> int:
    """Visit every reachable state; how many there are. A violation tells the shortest way to it."""
    start = model.start()
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    before: dict[State, list[State]] = {start: []}
    ends = []
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        try:
            model.check(state)
            steps = list(model.steps(state))
            if not steps:
                model.check_end(state)
                ends.append(state)
            steps += model.misfortunes(state)
        except ViolationError as error:
            way: list[str] = []
            link = came_from[state]
            while link is not None:
                way.insert(0, link[1])
                link = came_from[link[0]]
            raise ViolationError(f"{error}\nafter " + ", ".join(way)) from error
        for what, after in steps:
            after = renamed(after)
            if after not in came_from:
                came_from[after] = (state, what)
                before[after] = []
                waiting.append(after)
            before[after].append(state)
    finishing, queue = set(ends), deque(ends)
    while queue:
        for state in before[queue.popleft()]:
            if state not in finishing:
                finishing.add(state)
                queue.append(state)
    if len(finishing) < len(came_from):
        raise ViolationError(f"stuck: {len(came_from) - len(finishing)} states from which the end is not reached")
    return len(came_from)


def at_least(states: int, **size: int) -> object:
    return pytest.param(Model(**size), states, id=", ".join(f"{name}={value}" for name, value in size.items()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "states"),
    [
        at_least(36_000, num_slots=2, faults=2),
        at_least(35_000, num_slots=2, faults=1, rejections=1),
        at_least(19_000, num_slots=2, faults=1, is_even=False),
        at_least(6_000, num_slots=3, faults=0),
    ],
)
def test_no_interleaving_breaks_a_promise(model: Model, states: int) -> None:
    explored = explore(model)
    print(f"{explored:,} states")
    assert explored > states, "a search that stops early shows nothing"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "states"),
    [
        at_least(73_000, num_slots=3, faults=1),
        at_least(60_000, num_slots=2, faults=2, is_even=False),
    ],
)
def test_no_interleaving_breaks_a_promise_in_larger_rings(model: Model, states: int) -> None:
    test_no_interleaving_breaks_a_promise(model, states)


# ---------------------------------------------------------------------------------------------------------- it can fail


def believe_any_word(ring: RingState, slot: int, word: int) -> Lease | None:
    lease = ring.held[slot]
    return looked_at(ring, slot, lease.fence) if lease is not None and word != 0 else None


def believe_any_order(ring: RingState, slot: int, word: int) -> Lease | None:
    lease = ring.held[slot]
    if lease is not None and word == lease.fence:
        ring.open[lease.shard].remove(lease)
        ring.open[lease.shard].insert(0, lease)
    return looked_at(ring, slot, word)


def skip_the_lost_rollouts(ring: RingState, shard: int) -> list[Lease]:
    lost = ring.revoke(shard)
    ring.sequences[shard] += len(lost)
    return lost


def keep_counting_the_lost_rollouts(ring: RingState, shard: int) -> list[Lease]:
    lost = ring.revoke(shard)
    ring._base[shard] -= len(lost)
    return lost


@pytest.mark.parametrize(
    ("mutant", "broken"),
    [
        (Model(look=believe_any_word), "two owners|torn"),
        (Model(look=believe_any_order, faults=0), "lost"),
        (Model(waits_for_the_reaper=False), "two owners"),
        (Model(writer_steps=("commit", "cell 0", "cell 1")), "two owners|torn"),
        (Model(writer_steps=("cell 0", "commit", "cell 1")), "two owners|torn"),
        (Model(revoke=skip_the_lost_rollouts), "lost"),
        (Model(revoke=keep_counting_the_lost_rollouts), "lost"),
    ],
    ids=[
        "the reader ignores the fence",
        "the reader ignores the order",
        "leased again before the holder is reaped",
        "committed before the cells",
        "committed between the cells",
        "the next sequence is skipped at revoke",
        "what was revoked still counts",
    ],
)
def test_a_mutated_protocol_is_found(mutant: Model, broken: str) -> None:
    with pytest.raises(ViolationError, match=f"^({broken}): "):
        explore(mutant)


class WithoutOwners(Model):
    """Looks only at what is read: data must go wrong before anybody notices."""

    def check(self, state: State) -> None:
        pass


@pytest.mark.parametrize(
    "mutant",
    [
        WithoutOwners(look=believe_any_word),
        WithoutOwners(waits_for_the_reaper=False),
        WithoutOwners(writer_steps=("commit", "cell 0", "cell 1")),
        WithoutOwners(writer_steps=("cell 0", "commit", "cell 1")),
    ],
    ids=[
        "the reader ignores the fence",
        "leased again before the holder is reaped",
        "committed before the cells",
        "committed between the cells",
    ],
)
def test_two_owners_are_no_formality_data_is_torn(mutant: Model) -> None:
    with pytest.raises(ViolationError, match=r"^torn: "):
        explore(mutant)
