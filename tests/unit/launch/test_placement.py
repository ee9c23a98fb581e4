"""Where the policy should run: arithmetic on what was measured. Each placement is bounded by what is always busy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.launch.placement import BUFFERED, CENTRAL, LOCAL, Costs, Layout, Time, place, promises
from support.generators import quick

ALL = (LOCAL, CENTRAL, BUFFERED)
US = 1e-6


def both(seconds: float) -> Time:
    return Time(seconds, seconds)


def device(batch_s: float, row_s: float, layout: Layout) -> dict[int, Time]:
    return {rows: Time(batch_s + rows * row_s, 0.0) for rows in layout.rows(can_buffer=True)}


FREE = Costs(both(0.0), both(0.0), {}, both(0.0), both(0.0), cores=1000.0)
FOUR = Layout(n_envs=16, n_steps=10**9, workers=4)  # of rollouts so long that handing them over is nothing


def cycles(costs: Costs, layout: Layout) -> dict[str, float]:
    """Seconds of one step of all environments, without what the reader does with it."""
    return {kind: layout.n_envs / speed - 0.4e-6 * layout.n_envs for kind, speed in promises(costs, layout).items()}


def test_an_accelerator_has_one_queue() -> None:
    """2 ms a batch: four workers queue four batches, a server one; half of the environments cost as much as all."""
    costs = replace(FREE, acting=device(2e-3, 0.0, FOUR), has_one_queue=True)
    assert cycles(costs, FOUR) == pytest.approx({LOCAL: 8e-3, CENTRAL: 2e-3, BUFFERED: 4e-3})
    alone = Layout(16, FOUR.n_steps, 1)
    assert cycles(replace(costs, acting=device(2e-3, 0.0, alone)), alone)[LOCAL] == pytest.approx(2e-3)


def test_servers_with_a_device_each_do_not_queue() -> None:
    """2 ms a batch: two servers on two devices take as long as one on one, on one device twice as long."""
    servers = replace(FOUR, servers=2)
    costs = replace(FREE, acting=device(2e-3, 0.0, servers), has_one_queue=True)
    for devices, expected in ((1, 4e-3), (2, 2e-3)):
        assert cycles(costs, replace(servers, devices=devices))[CENTRAL] == pytest.approx(expected)


def test_batches_that_are_limited_follow_one_another() -> None:
    """2 ms a batch: with one worker in each a server takes four, as local inference does; a shard is not split."""
    for most, batches in ((16, 1), (9, 2), (4, 4), (1, 4)):
        limited = replace(FOUR, max_batch=most)
        costs = replace(FREE, acting=device(2e-3, 0.0, limited), has_one_queue=True)
        got = cycles(costs, limited)
        assert got[CENTRAL] == pytest.approx(batches * 2e-3)
        assert got[LOCAL] == pytest.approx(8e-3)
    assert [replace(FOUR, max_batch=most).per_batch(2) for most in (0, 5, 1)] == [8, 4, 2]


def test_double_buffering_hides_the_shorter_of_stepping_and_acting() -> None:
    costs = replace(FREE, step=both(2e-3), acting=device(2e-3, 0.0, FOUR), has_one_queue=True)
    assert cycles(costs, FOUR) == pytest.approx({LOCAL: 10e-3, CENTRAL: 10e-3, BUFFERED: 8e-3})
    assert place(costs, FOUR, ALL).turns == 2


def test_cores_are_shared() -> None:
    """Stepping in four workers takes twice as long on two cores, unless the environments only wait."""
    acting = {rows: both(1e-3) for rows in FOUR.rows(can_buffer=True)}
    costs = replace(FREE, step=both(1e-3), acting=acting, cores=2.0)
    assert cycles(costs, FOUR) == pytest.approx({LOCAL: 10e-3, CENTRAL: 9e-3, BUFFERED: 9e-3})
    waiting = replace(costs, step=Time(1e-3, 0.0))
    assert cycles(waiting, FOUR) == pytest.approx({LOCAL: 5e-3, CENTRAL: 5e-3, BUFFERED: 4e-3})


def test_a_server_waits_for_a_core_that_workers_never_leave() -> None:
    """100 us a batch and 1.6 ms of steps on two cores: double buffering would pay, if the server were let in."""
    two = Layout(16, FOUR.n_steps, 2)
    costs = replace(FREE, step=both(200 * US), acting=device(900 * US, 0.0, two), has_one_queue=True, cores=2.0)
    assert cycles(costs, two)[BUFFERED] == pytest.approx(2 * 1.9e-3)
    assert cycles(replace(costs, cores=4.0), two)[BUFFERED] == pytest.approx(1.8e-3)


def test_a_round_trip_decides_for_cheap_policies() -> None:
    acting = {rows: both(10 * US) for rows in FOUR.rows(can_buffer=True)}
    costs = replace(FREE, step=both(10 * US), acting=acting, round_trip=both(50 * US), slot=both(10 * US), cores=4.0)
    assert cycles(costs, FOUR)[LOCAL] == pytest.approx(50 * US)
    assert cycles(costs, FOUR)[CENTRAL] == pytest.approx((40 + 10 + 50 + 30) * US)
    got = place(costs, FOUR, ALL)
    assert (got.inference, got.turns) == ("local", 1)
    assert next(iter(got.promised)) == LOCAL
    assert set(got.promised) == set(ALL)


def test_several_servers_share_the_cores_or_the_device() -> None:
    two = replace(FOUR, servers=2)
    acting = {rows: both(rows * 1e-3) for rows in two.rows(can_buffer=True)}
    costs = replace(FREE, acting=acting, cores=2.0)
    assert cycles(costs, two)[CENTRAL] == pytest.approx(8e-3)
    assert cycles(replace(costs, cores=1.0), two)[CENTRAL] == pytest.approx(16e-3)
    assert cycles(replace(costs, has_one_queue=True, cores=100.0), two)[CENTRAL] == pytest.approx(16e-3)


def test_the_reason_has_all_numbers() -> None:
    costs = replace(FREE, step=both(50 * US), acting=device(2e-3, 5 * US, FOUR), has_one_queue=True)
    reason = place(costs, FOUR, ALL).reason
    assert reason.startswith("inference=central, double_buffering=off: predicted steps/s while collecting: local 1,9")
    assert "a step takes 50 us, acting 2.02 ms for 4" in reason
    assert place(costs, FOUR, (LOCAL, CENTRAL)).inference == "central"
    assert place(costs, FOUR, (CENTRAL, BUFFERED)).turns == 1


times = st.floats(1e-6, 1e-1).flatmap(lambda wall: st.floats(0.0, 1.0).map(lambda share: Time(wall, share * wall)))


@given(times, times, times, st.integers(1, 8), st.integers(1, 8), st.floats(1.0, 16.0), st.booleans())
@quick
def test_slower_parts_never_promise_more(
    step: Time, acting: Time, trip: Time, workers: int, per_worker: int, cores: float, has_one_queue: bool
) -> None:
    layout = Layout(2 * workers * per_worker, 128, workers)
    costs = Costs(step, both(1e-6), dict.fromkeys(layout.rows(True), acting), trip, both(1e-6), cores, has_one_queue)
    fast = promises(costs, layout)
    for name in ("step", "round_trip"):
        one = getattr(costs, name)
        slow = promises(replace(costs, **{name: Time(2 * one.wall_s, 2 * one.cpu_s)}), layout)
        assert all(slow[kind] <= fast[kind] for kind in ALL)
    assert all(promises(replace(costs, cores=2 * cores), layout)[kind] >= fast[kind] for kind in ALL)
