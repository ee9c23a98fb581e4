"""A host: orders and reports travel as records, times add up, and rows are acted on with the versions asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.collecting.host import Host
from headrace.collecting.order import Order
from headrace.errors import HeadraceError
from headrace.inference.local import LocalInference, following
from headrace.memory.lease import Lease
from support.generators import quick
from support.stages import Stage, stage

numbers = st.integers(0, 2**62)


@quick
@given(st.lists(numbers, min_size=6, max_size=6))
def test_an_order_comes_out_of_its_record_as_it_was(n: list[int]) -> None:
    order = Order(Lease(*n[:4]), n[4], n[5])
    assert Order.decode(order.encode()) == order
    assert len(order.encode()) == 48, "records have one size: a line carries them whole"


def order_of(here: Stage, version: int, versions: tuple[int, ...] | None = None) -> Order:
    here.ring.state.grant(100)
    lease = here.ring.lease(0)
    assert lease is not None
    return Order(lease, version, here.ring.offset(lease), versions)


@pytest.fixture
def here() -> object:
    with stage("inline", n_shards=1, n_steps=6, max_lag=3) as one:  # keeps five versions
        for _ in range(4):
            one.publish(0.3)
        yield one


def host_of(here: Stage, pick_up_rows: int = 0) -> Host:
    plan = replace(here.plan, pick_up_rows=pick_up_rows)
    return Host(plan, here.ring.segment.buffer, following(plan, here.store).acting, {0: None})


def test_recorded_versions_act_row_by_row(here: Stage) -> None:
    """A schedule is replayed: whatever the order names, and whatever is the latest."""
    host = host_of(here, pick_up_rows=1)
    order = order_of(here, 4, (0, 0, 3, 1, 4, 2))
    host.fill(order)
    assert here.ring.slab(order.lease).version.tolist() == [0, 0, 3, 1, 4, 2]
    host.close()


def test_a_recorded_version_that_is_gone_is_named(here: Stage) -> None:
    here.publish()
    host = host_of(here)
    with pytest.raises(HeadraceError, match="weights of version 0 are gone"):
        host.fill(order_of(here, 5, (0,) * 6))
    host.close()


@pytest.mark.parametrize(("every", "seen"), [(1, [4, 5, 6, 7, 8, 9]), (2, [4, 4, 6, 6, 8, 8]), (4, [4, 4, 4, 4, 8, 8])])
def test_the_newest_weights_are_picked_up_every_few_rows(
    here: Stage, every: int, seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version is published after every row."""
    act = LocalInference.act

    def acts_and_publishes(*arguments: object) -> None:
        act(*arguments)  # type: ignore[arg-type]
        here.publish(0.1)

    monkeypatch.setattr(LocalInference, "act", acts_and_publishes)
    host = host_of(here, pick_up_rows=every)
    order = order_of(here, 0)
    host.fill(order)
    assert here.ring.slab(order.lease).version.tolist() == seen
    host.close()


def test_a_start_may_be_asked_for_when_its_turn_comes(here: Stage) -> None:
    """Inline says where a shard stands shard by shard: a large journal is not copied for all of them at once."""
    asked: list[str] = []
    acting = following(here.plan, here.store).acting
    host = Host(here.plan, here.ring.segment.buffer, acting, {0: lambda: asked.append("now")})
    assert asked == ["now"]
    host.close()
    host.close()
