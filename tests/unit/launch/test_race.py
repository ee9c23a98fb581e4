"""The race on made-up machines with a clock of its own: finds the fastest, in time, whatever fails or is noisy."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collecting.topology import TopologyConfig
from headrace.launch.race import Race, Verdict
from headrace.launch.tuning import Bounds, Candidate, candidates

ALL = candidates(TopologyConfig(), (), Bounds(2))
FIRST = ALL[0]
Speed = Callable[[Candidate], float]


def cost_s(one: Candidate) -> float:
    return 0.5 + (0.5 * one.workers if one.topology == "processes" else 0.0)


def run(
    race: Race, speed: Speed, noise: float = 0.0, seed: int = 0, fails: Callable[[Candidate], bool] = lambda one: False
) -> tuple[Verdict, float]:
    """The verdict, and when it fell."""
    draw, elapsed_s, again, failed = random.Random(seed), 0.0, 0, set[Candidate]()
    while (one := race.next(elapsed_s)) is not None:
        again += 1
        assert again < 1000, "it does not end"
        assert one not in failed, "it failed before"
        elapsed_s += cost_s(one)
        if fails(one):
            race.fail(one, "it broke")
            failed.add(one)
        else:
            race.add(one, speed(one) * (1.0 + noise * draw.uniform(-1.0, 1.0)), cost_s(one))
    return race.verdict(), elapsed_s


def processes_win(one: Candidate) -> float:
    """Steps of 200 us: two cores, and a policy that is a little faster for more rows."""
    cores = {"inline": 1.0, "threads": 1.02, "processes": min(2, one.workers) * 0.95}[one.topology]
    return 4_000 * cores * (0.8 if one.inference == "central" else 1.0) * (1.0 - 0.5 / one.n_envs)


def many_envs_win(one: Candidate) -> float:
    """Cheap steps: what a row costs is shared by more environments; workers cost more than they bring."""
    return 60_000 * one.n_envs / (one.n_envs + 20) * (1.0 if one.topology == "inline" else 0.6)


def central_wins(one: Candidate) -> float:
    """A policy that one call of many rows makes fast."""
    return {("central", 2): 9_000, ("central", 1): 7_000}.get((one.inference, one.turns), 3_000) * min(
        1, one.n_envs / 32
    )


SURFACES = pytest.mark.parametrize("speed", [processes_win, many_envs_win, central_wins])


@SURFACES
@pytest.mark.parametrize("seed", range(8))
def test_it_finds_the_fastest_under_noise_with_predictions_that_are_off(speed: Speed, seed: int) -> None:
    draw = random.Random(seed)
    guesses = {one: speed(one) * draw.uniform(0.75, 1.3) for one in ALL}
    verdict, _ = run(Race(guesses, FIRST, 20.0), speed, noise=0.08, seed=seed)
    assert verdict.choice is not None
    assert speed(verdict.choice) >= 0.9 * max(map(speed, ALL))


@SURFACES
def test_places_that_were_predicted_too_slow_are_tried_all_the_same(speed: Speed) -> None:
    best = max(ALL, key=speed)
    guesses = {one: speed(one) * (0.7 if one.topology == best.topology else 1.0) for one in ALL}
    verdict, _ = run(Race(guesses, FIRST, 20.0), speed, noise=0.02)
    assert verdict.choice is not None
    assert speed(verdict.choice) >= 0.9 * speed(best)


@settings(max_examples=60, deadline=None)
@given(seconds=st.floats(0.1, 60.0), seed=st.integers(0, 99), noise=st.floats(0.0, 0.5), broken=st.floats(0.0, 1.0))
def test_it_keeps_within_its_time(seconds: float, seed: int, noise: float, broken: float) -> None:
    draw = random.Random(seed)
    speeds = {one: draw.uniform(100.0, 10_000.0) for one in ALL}
    bad = {one for one in ALL if draw.random() < broken}
    race = Race({one: draw.uniform(100.0, 10_000.0) for one in ALL}, FIRST, seconds)
    verdict, ended_s = run(race, speeds.__getitem__, noise, seed, bad.__contains__)
    longest = max(map(cost_s, ALL))
    assert ended_s <= seconds + longest  # the first of a kind may take longer than is usual
    assert verdict.choice is None or verdict.choice not in bad
    assert (verdict.choice is None) == all(row.failure for row in race.rows())


def test_a_clear_lead_ends_it_early() -> None:
    _, ended_s = run(Race({one: processes_win(one) for one in [*ALL[:1], ALL[-1]]}, FIRST, 60.0), processes_win)
    assert ended_s < 10.0


def test_what_fails_is_left_out_and_kept_in_the_table() -> None:
    race = Race({one: processes_win(one) for one in ALL}, FIRST, 20.0)
    verdict, _ = run(race, processes_win, fails=lambda one: one.topology == "processes")
    assert verdict.choice is not None
    assert verdict.choice.topology != "processes"
    assert {row.failure for row in race.rows() if row.candidate.topology == "processes"} == {"it broke"}


def test_what_can_not_be_told_apart_goes_to_the_simplest() -> None:
    verdict, _ = run(Race(dict.fromkeys(ALL, 1000.0), FIRST, 20.0), lambda one: 1000.0, noise=0.03)
    assert verdict.choice == FIRST
    assert "nothing that was tried is faster" in verdict.why


def test_measurements_that_differ_are_repeated() -> None:
    calm, wild = (Race(dict.fromkeys(ALL[:2], 1000.0), FIRST, 60.0) for _ in range(2))
    _, calm_s = run(calm, lambda one: 1000.0 if one == FIRST else 800.0, noise=0.01)
    _, wild_s = run(wild, lambda one: 1000.0 if one == FIRST else 970.0, noise=0.3)
    assert wild_s > calm_s


def test_the_best_ones_are_compared_in_turns() -> None:
    race = Race(dict.fromkeys(ALL[:3], 1000.0), FIRST, 30.0)
    order = []
    while (one := race.next(0.5 * len(order))) is not None:
        order.append(one)
        race.add(one, 1000.0, 0.5)
    assert all(order[i] != order[i + 1] for i in range(len(order) - 1))


def test_nothing_measured_leaves_everything_as_it_is() -> None:
    race = Race(dict.fromkeys(ALL, 1.0), FIRST, 5.0)
    verdict, _ = run(race, processes_win, fails=lambda one: True)
    assert verdict.choice is None


def test_what_the_user_would_have_had_is_compared_after_a_single_trial() -> None:
    own, other = ALL[0], ALL[-1]
    race = Race({own: 2000, other: 2000}, own, 10.0)
    race.add(own, 19219, 3.2)
    race.add(other, 19000, 2.5)
    race.add(other, 19068, 0.3)
    assert race.verdict().choice == own


def test_a_run_that_stays_open_is_tried_again_without_its_start() -> None:
    own, other = ALL[0], ALL[-1]
    race = Race({own: 2000, other: 2000}, own, 10.0)
    race.add(own, 19219, 3.2, again_s=0.3)
    race.add(other, 19000, 2.5, again_s=0.3)
    assert race.next(7.0) == own
    race.add(own, 19219, 0.3, again_s=0.3)
    assert race.next(7.3) == other


def test_a_faster_one_that_was_tried_once_is_named() -> None:
    race = Race(dict.fromkeys(ALL, 1000.0), FIRST, 5.0)
    for one, sps in ((FIRST, 1000.0), (FIRST, 1010.0), (ALL[-1], 1500.0)):
        race.add(one, sps, 1.0)
    assert race.verdict().choice == FIRST
    assert f"{ALL[-1].place} reached 1.49x of it in a single trial" in race.verdict().why


@settings(max_examples=60, deadline=None)
@given(trials=st.lists(st.tuples(st.integers(0, 5), st.floats(100.0, 200.0)), max_size=12), own=st.floats(100.0, 200.0))
def test_nothing_slower_is_chosen_unless_it_is_simpler(trials: list[tuple[int, float]], own: float) -> None:
    race = Race(dict.fromkeys(ALL, 100.0), FIRST, 20.0)
    race.add(FIRST, own, 1.0)
    for number, sps in trials:
        race.add(ALL[number * (len(ALL) - 1) // 5], sps, 1.0)
    choice = race.verdict().choice
    assert choice is not None
    typical = {row.candidate: row.typical for row in race.rows()}
    assert typical[choice] >= typical[FIRST] or choice.simplicity(FIRST) < FIRST.simplicity(FIRST)


@pytest.mark.parametrize(
    ("promised", "said"), [(2000.0, "no other one could be tried in this time"), (1.0, "no other one that can be run")]
)
def test_one_row_says_nothing_of_the_others(promised: float, said: str) -> None:
    others = [one for one in ALL if one.topology == "processes"]
    race = Race({FIRST: 1000.0} | dict.fromkeys(others, promised), FIRST, 5.0)
    race.add(FIRST, 1000.0, 4.9)
    assert said in race.verdict().why
