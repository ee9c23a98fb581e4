"""Every formula against cases worked out by hand, those of the founding text among them; then what must be monotone."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.memory.schema import rollout_schema
from headrace.memory.spaces import Box, Discrete
from headrace.planning.cost import MachineType, cheapest, per_million_steps
from headrace.planning.link import levers, observed_bytes, policy_to_the_data, sent_bytes, traffic, transition_bytes
from headrace.planning.quantities import memory_bytes, parse_bytes, parse_rate
from headrace.planning.sizing import ACTORS, LEARNER, LINK, Job, curve, size, what_helps
from headrace.planning.sweep import Point, curve_of, explained, fitted, moved
from headrace.planning.throughput import (
    actors_needed,
    demand,
    knee,
    rollout_demand,
    supply,
    surplus,
    utilisation,
    vectorised,
)

FRAMES = 84 * 84 * 4
rates = st.floats(1.0, 1e6)


def test_one_learner_of_512_in_8_ms_needs_64_actors_of_1000() -> None:
    assert demand(512, 0.008) == pytest.approx(64_000)
    assert actors_needed(demand(512, 0.008), 1_000) == 64
    sizing = size(Job(512, 0.008, 1_000))
    assert (sizing.actors, sizing.supply, sizing.rate) == (64, 64_000, pytest.approx(64_000))
    assert sizing.utilisation == pytest.approx(1)


def test_1024_in_20_ms_needs_64_actors_of_800_and_a_simulator_on_the_device_makes_the_learner_the_bottleneck() -> None:
    assert demand(1024, 0.020) == pytest.approx(51_200)
    assert actors_needed(51_200, 800) == 64
    one = size(Job(1024, 0.020, 2e6, actors=1))
    assert (one.actors_needed, one.binding, one.rate) == (1, LEARNER, pytest.approx(51_200))
    assert size(Job(1024, 0.020, 2e6, actors=2)).rate == one.rate  # more simulators do not help
    assert [name for name, _ in what_helps(Job(1024, 0.020, 2e6), one)] == ["gradient steps twice as fast"]


def test_the_warehouse() -> None:
    """Demand 60,000, actors of 900: 8 of them keep the learner busy for an eighth of its time, 80 for all of it."""
    assert actors_needed(60_000, 900) == 67
    few = size(Job(480, 0.008, 900, actors=8, actor_price=0.04, learner_price=2.0))
    assert (few.binding, few.utilisation) == (ACTORS, pytest.approx(0.12))
    many = size(Job(480, 0.008, 900, actors=80, actor_price=0.04, learner_price=2.0))
    assert (many.binding, many.utilisation) == (LEARNER, pytest.approx(1))
    assert few.price_per_million == pytest.approx((8 * 0.04 + 2) / 3600 / 7_200 * 1e6)
    assert many.price_per_million < few.price_per_million / 3  # dearer by the hour, cheaper by the step
    name, rate = what_helps(Job(480, 0.008, 900, actors=8), few)[0]
    assert (name, rate) == ("67 actors instead of 8", pytest.approx(60_000))


def test_frames_over_a_link() -> None:
    """84 x 84 x 4 bytes at 1,000 steps/s: 28.2 MB/s an actor; 80 of them fill 22.6 % of 10 GB/s, 354 fill it."""
    sent = traffic(FRAMES, 1_000, 80, 10e9)
    assert sent.actor_bytes_per_s == 28_224_000
    assert sent.fleet_bytes_per_s == 2_257_920_000
    assert sent.share_of_link == pytest.approx(0.2258, abs=1e-4)
    assert sent.most_actors == 354
    job = Job(512, 1e-4, 1_000, step_bytes=FRAMES, link_bytes_per_s=10e9)
    assert [size(replace(job, actors=n)).binding for n in (354, 355)] == [ACTORS, LINK]
    assert [(one.step_bytes, one.most_actors) for one in levers(FRAMES, 1_000, 10e9)] == [
        (FRAMES / 2, 708),
        (FRAMES / 4, 1417),
    ]
    assert policy_to_the_data(weight_bytes=6.7e6, updates_per_s=10, link_bytes_per_s=10e9) == 149


def test_only_the_observation_of_a_transition_gets_smaller() -> None:
    """43 bytes of which 16 are the observation: half of that leaves 35, a quarter 31."""
    found = levers(43, 1_000, 43e6, observation_bytes=16)
    assert [(one.step_bytes, one.most_actors) for one in found] == [(35, 1228), (31, 1387)]
    job = Job(512, 1e-4, 1_000, actors=2_000, step_bytes=43, link_bytes_per_s=43e6, observation_bytes=16)
    assert dict(what_helps(job, size(job))) == {"observations compressed 2x": pytest.approx(43e6 / 35)}


def test_memory_of_rollouts_has_room_for_final_observations() -> None:
    """Two rollouts of 1,024 steps of 79 bytes each; without that number, of the 43 that travel."""
    job = Job(64, 0.001, 1_000, rollout=1_024, step_bytes=43, memory_bytes=79)
    assert size(job).ring_bytes == 2 * 1_024 * 79
    assert size(replace(job, memory_bytes=0)).ring_bytes == 2 * 1_024 * 43


def test_ppo_uses_a_transition_more_than_once() -> None:
    """A rollout of 2,048, minibatches of 64, 10 epochs of 1 ms each: 320 ms an update, 6,400 transitions a second."""
    assert rollout_demand(64, 0.001, 10, 2048) == pytest.approx(6_400)
    assert demand(64, 0.001) == pytest.approx(64_000)
    assert rollout_demand(64, 0.001, 1, 64) == demand(64, 0.001)
    assert rollout_demand(64, 0.001, 1, 65) == pytest.approx(65 / 0.002)  # the rest is a minibatch, too


def test_surplus_goes_to_a_buffer() -> None:
    assert surplus(supply(80, 900), 60_000, 1_200_000).buffer_s == pytest.approx(100)
    assert surplus(1, 2, 10).buffer_s == math.inf
    assert utilisation(1, 2) == 0.5


def test_vectorising_amortises_the_fixed_cost() -> None:
    assert vectorised(1e-3, 1e-5, 1) == pytest.approx(1 / 1.01e-3)
    assert vectorised(1e-3, 1e-5, 100) == pytest.approx(100 / 2e-3)
    assert vectorised(1e-3, 1e-5, knee(1e-3, 1e-5)) == pytest.approx(0.9 / 1e-5)


def test_bytes_of_a_transition_are_the_schemas() -> None:
    schema = rollout_schema(Box((84, 84, 4), "uint8", (0,), (255,)), Discrete(4), 128, 8)
    own = 8 + 4 + 3 + 8 + 4  # action, reward, three flags, episode, step
    assert (sent_bytes(schema), observed_bytes(schema)) == (FRAMES + own, FRAMES)
    # In a slab there is room for a final observation at every row, so it takes about twice as much.
    assert 2 * FRAMES < transition_bytes(schema) < 2.05 * FRAMES
    assert memory_bytes(FRAMES) == pytest.approx(transition_bytes(schema), rel=0.01), "as plan --observation says"


def test_the_cheapest_fleet_is_the_cheapest_of_all() -> None:
    kinds = [
        MachineType("small", 0.05, 900),
        MachineType("large", 0.30, 7_000, at_most=3),
        MachineType("spot", 0.01, 50),
    ]
    for wanted in (40, 900, 901, 5_000, 21_500, 24_000):
        best = cheapest(wanted, kinds)
        ranges = (range(min(k.at_most, math.ceil(wanted / k.sps)) + 1) for k in kinds)
        every = (
            (sum(n * k.price_per_hour for n, k in zip(counts, kinds, strict=True)), -sps)
            for counts in product(*ranges)
            if (sps := sum(n * k.sps for n, k in zip(counts, kinds, strict=True))) >= wanted
        )
        assert (best.price_per_hour, best.sps) == pytest.approx(((lowest := min(every))[0], -lowest[1]))
    assert per_million_steps(3.6, 1_000) == pytest.approx(1.0)
    many = [MachineType("a", 0.0004, 10), MachineType("b", 0.0031, 80), MachineType("c", 0.0005, 13)]
    best = cheapest(64_000, [*many, MachineType("d", 0.01, 300)])  # 213 d leave 100: 7 c and 1 a
    assert (best.machines, best.price_per_hour) == ({"d": 213, "c": 7, "a": 1}, pytest.approx(2.1339))
    with pytest.raises(UsageError, match="no fleet"):
        cheapest(1e6, [MachineType("large", 0.30, 7_000, at_most=3)])


@pytest.mark.parametrize("field", ["batch", "update_s", "actor_sps"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_numbers_without_an_answer_are_refused(field: str, value: float) -> None:
    with pytest.raises(UsageError, match="expected a number larger than 0"):
        size(replace(Job(512, 0.008, 1_000), **{field: value}))


@given(batch=rates, update_s=st.floats(1e-4, 10), sps=rates, factor=st.floats(1.0, 50.0))
def test_levers_work_in_the_direction_that_is_said(batch: float, update_s: float, sps: float, factor: float) -> None:
    job = Job(batch, update_s, sps)
    needed = size(job).actors_needed
    assert size(replace(job, update_s=update_s * factor)).actors_needed <= needed  # a heavier learner is easier to feed
    assert size(replace(job, actor_sps=sps * factor)).actors_needed <= needed
    assert size(replace(job, batch=batch * factor)).actors_needed >= needed
    assert size(replace(job, n_epochs=3)).actors_needed <= needed
    assert supply(needed, sps) >= size(job).rollout_demand * (1 - 1e-6)
    assert needed == 1 or supply(needed - 1, sps) < size(job).rollout_demand * (1 + 1e-6)


@given(update_s=st.floats(1e-4, 1), sps=rates, step_bytes=st.floats(1, 1e5), link=st.floats(1e3, 1e10))
def test_the_rate_is_the_least_of_three_and_the_binding_one_alone_moves_it(
    update_s: float, sps: float, step_bytes: float, link: float
) -> None:
    job = Job(512, update_s, sps, actors=16, step_bytes=step_bytes, link_bytes_per_s=link)
    sizing = size(job)
    assert sizing.rate == min(sizing.supply, sizing.rollout_demand, sizing.link_sps)
    better = {
        ACTORS: replace(job, actors=17),
        LEARNER: replace(job, update_s=update_s * 0.9),
        LINK: replace(job, link_bytes_per_s=link * 1.1),
    }
    for name, changed in better.items():
        others = sorted({sizing.supply, sizing.rollout_demand, sizing.link_sps})
        if len(others) == 3:
            assert (size(changed).rate > sizing.rate) == (name == sizing.binding)
    rates_along = [one.rate for _, one in curve(job, 40)]
    assert rates_along == sorted(rates_along)


@given(fixed_us=st.floats(0.0, 5_000), each_us=st.floats(0.01, 100))
def test_a_fit_finds_the_costs_that_made_the_curve(fixed_us: float, each_us: float) -> None:
    sizes = (1, 4, 16, 64, 256, 1024)
    found = fitted([(b, (fixed_us + b * each_us) * 1e-6) for b in sizes])
    assert found == pytest.approx((fixed_us * 1e-6, each_us * 1e-6), rel=1e-6, abs=1e-9 * (fixed_us + each_us))


def test_the_knee_is_where_the_fixed_cost_is_amortised() -> None:
    """2 ms + 5 us a row: at 1,024 rows the curve still rises. 10 us + 10 us: B = 16 is enough."""
    sizes = (1, 4, 16, 64, 256, 1024)
    device = curve_of("policy", [Point(b, (b / (2e-3 + 5e-6 * b),)) for b in sizes])
    assert (device.knee, device.is_still_rising) == (1024, True)
    assert "still rising at B = 1024" in explained(device)
    cheap = curve_of("environments", [Point(b, (b / (1e-5 + 1e-5 * b),)) for b in sizes])
    assert (cheap.knee, cheap.is_still_rising) == (16, False)
    assert explained(cheap).startswith("knee at B = 16 (1.9x of B = 1): there the 10 us of a call are 6% of its time")
    flat = curve_of("environments", [Point(b, (1e5 * (1 + 0.05 * (b > 4)),)) for b in sizes])
    assert explained(flat).startswith("flat: every environment costs 9.")


def test_errors_are_of_the_mean() -> None:
    point = Point(4, (90.0, 100.0, 110.0))
    assert (point.typical, point.error) == (100.0, pytest.approx(10 / 3**0.5))
    assert Point(4, (90.0,)).error is None, "one repetition says nothing of its error"


def test_one_batch_size_shows_no_knee() -> None:
    said = explained(curve_of("environments", [Point(64, (1e5,))]))
    assert said == "one batch size (B = 64) shows no knee: give several, as in --n-envs 1 8 64"


def test_larger_batches_that_are_slower_are_named() -> None:
    """A knee alone, or the word flat, would hide that a larger B costs more than it brings."""
    worse = explained(curve_of("environments", [Point(b, (sps,)) for b, sps in ((1, 100.0), (16, 95.0), (256, 40.0))]))
    assert worse == "nothing is amortised: B = 1 is as good as any; B = 256 reaches only 0.40x of the most"
    bent = explained(curve_of("both", [Point(b, (sps,)) for b, sps in ((1, 100.0), (16, 900.0), (256, 450.0))]))
    assert bent.startswith("knee at B = 16 (9.0x of B = 1)")
    assert bent.endswith("; B = 256 reaches only 0.50x of the most")


def test_whether_the_knee_would_move_by_hand() -> None:
    """10 us + 10 us reach 90 % of the most at B = 16; 2 ms + 5 us still rise at 1,024."""
    here, there, flat = (
        curve_of(name, [Point(b, (b / (fixed + each * b),)) for b in (1, 4, 16, 64, 256, 1024)])
        for name, fixed, each in (("policy", 1e-5, 1e-5), ("policy on X", 2e-3, 5e-6), ("policy on Y", 1e-5, 1e-5))
    )
    costs = "a call costs 2 ms there whatever B is, 10 us here"
    assert moved(here, there) == f"policy on X: the knee moves, it is beyond B = 1024 and not at B = 16; {costs}"
    assert moved(here, flat).startswith("policy on Y: the knee does not move, it is at B = 16 as well; ")
    assert moved(curve_of("policy", [Point(2, (1.0,))]), there) == ""
    assert "both still rise at B = 1024, so whether the knee moves needs larger B" in moved(there, there)


@pytest.mark.parametrize("text", ["28kb", "2gb", "28Kb"])
def test_a_size_that_may_be_bits_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="may be bits or bytes"):
        parse_bytes("--need", text)


@pytest.mark.parametrize(
    ("text", "size"), [("28KB", 28e3), ("28kB", 28e3), ("8kbit", 1e3), ("8Kbit", 1e3), ("8bIt", 1), ("28224", 28224)]
)
def test_sizes(text: str, size: float) -> None:
    assert parse_bytes("--need", text) == size


@pytest.mark.parametrize("text", ["10Gb", "10Gbps", "10gbit/s", "1.25GB", "1.25GB/s"])
def test_rates_of_links_are_in_bits_where_a_small_b_says_so(text: str) -> None:
    assert parse_rate("--link", text) == 1.25e9
