"""Where actors run changes no bit: inline, threads and processes, any number of workers, whatever happens to them.

Weights, optimiser, ledger and the list of episodes of synchronous runs are compared with an undisturbed inline run's.
The last test breaks the order of batches, and the comparison sees it.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from headrace.checkpoints.snapshot import Snapshot
from headrace.episodes.finished import Finished
from headrace.errors import UsageError
from headrace.learning.assembly import assemble
from headrace.learning.batch import Batch
from headrace.memory.slab import Slab
from support.pairwise import Cell, matrix
from support.topology_runs import CASES, INLINE, SEED, Case, bits_of, calm, processes, threads
from support.worker_envs import Ordered, order

PLACES = {
    "inline": INLINE,
    "threads": threads(2),
    "processes": processes(2),
    "processes 3": processes(3),
    "processes, 5 shards": processes(2, shards=5),
}


def test_the_runs_are_what_they_claim_to_be() -> None:
    """Episodes end in each, in different lengths where they may; some are longer than 10 slabs; all steps count."""
    for name, case in CASES.items():
        assert calm(name).ledger["consumed"] == case.total_timesteps
        assert len(calm(name).episodes) >= case.n_envs, name
    assert max(one.length for one in calm("long").episodes) > 10 * CASES["long"].n_steps
    assert len({one.length for one in calm("noisy").episodes}) > 3
    assert len({bits.weights_sha256 for bits in map(calm, CASES)}) == len(CASES)


# Every case meets every place and number of workers, and every number of workers is met in both places.
@pytest.mark.parametrize(
    "cell", matrix({"case": tuple(CASES), "place": ("threads", "processes"), "workers": (1, 2, 3, 5)})
)
def test_same_bits_anywhere(cell: Cell) -> None:
    place = {"threads": threads, "processes": processes}[cell["place"]](cell["workers"])
    assert CASES[cell["case"]].play(**place) == calm(cell["case"])


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        pytest.param(name, workers, marks=() if (name, workers) == ("noisy", 2) else pytest.mark.full)
        for name in CASES
        for workers in (1, 2, 3, 5)
    ],
)
def test_same_bits_from_spawned_workers(name: str, workers: int) -> None:
    assert CASES[name].play(**processes(workers, start_method="spawn")) == calm(name)


@pytest.mark.parametrize("shards", [2, 5, pytest.param(13, marks=pytest.mark.full)])
@pytest.mark.parametrize("place", [threads, processes])
def test_more_shards_than_workers(place: Any, shards: int) -> None:
    """A worker fills several shards' slabs in turn."""
    assert CASES["noisy"].play(**place(2, shards=shards)) == calm("noisy")


def chosen_steps(name: str, count: int, seed: int) -> list[tuple[int, int, int]]:
    """Steps (environment, episode, step) that the calm run passes, so that every order is obeyed exactly once."""
    draw, finished = random.Random(seed), calm(name).episodes
    places: set[tuple[int, int, int]] = set()
    while len(places) < count:
        one = draw.choice(finished)
        places.add((one.env_index, one.episode, draw.randrange(one.length)))
    return sorted(places)


def obedient(case: Case, folder: Path) -> Case:
    """The case, with environments that obey orders."""
    return case.wrapped(partial(Ordered, folder=str(folder)))


@pytest.mark.parametrize(
    ("name", "workers", "shards", "seed"),
    [
        ("cartpole", 2, 0, 0),
        ("noisy", 3, 5, 1),
        ("images", 2, 0, 2),
        ("stacks", 2, 3, 8),
        ("lstm", 2, 3, 10),
        ("gru", 3, 0, 11),
        ("masked_lstm", 2, 3, 12),
        ("continuous", 2, 0, 3),
        ("dict", 2, 0, 10),
        ("nested", 2, 3, 11),
        ("long", 2, 0, 4),
        ("normalized", 2, 3, 9),
        ("masked", 2, 0, 10),
        *(
            pytest.param(name, workers, shards, seed, marks=pytest.mark.full)
            for name in CASES
            for workers, shards in ((1, 0), (3, 7), (5, 0))
            for seed in (5, 6)
        ),
    ],
)
def test_kill_9_in_the_middle_of_a_slab(name: str, workers: int, shards: int, seed: int, tmp_path: Path) -> None:
    """Workers kill themselves in random steps: each is replaced, its episodes replayed, and nobody can tell."""
    kills = 4
    orders = [order(tmp_path, "kill", SEED, *place) for place in chosen_steps(name, kills, seed)]
    case = obedient(CASES[name], tmp_path)
    with case.start(**processes(workers, shards=shards)) as run:
        got = bits_of(run, case.advance(run, case.updates))
        assert run.source.place.replaced.restarts == kills
    assert not any(file.exists() for file in orders)
    assert got == calm(name)


def test_kill_9_between_two_updates() -> None:
    """Whoever is alive, drawn by lot, once before every update."""
    case, draw = CASES["cartpole"], random.Random(9)
    with case.start(**processes(2)) as run:
        episodes = case.advance(run, 1)
        for _ in range(1, case.updates):
            victim = draw.choice(list(run.source.place.workers.children.values()))
            os.kill(victim.pid, signal.SIGKILL)
            wait([victim.sentinel], 60.0)  # a fork server tells of a death a moment after it
            episodes += case.advance(run, 1)
        # The last one may have committed its slab before it died, and nothing is ordered after the last update.
        assert run.source.place.replaced.restarts + len(run.source.place.workers.vacant) == case.updates - 1
        assert bits_of(run, episodes) == calm("cartpole")


@pytest.mark.parametrize(
    ("name", "place", "counts"),
    [
        ("noisy", processes(2, shards=5), (1, 5, 3)),
        ("long", threads(3, shards=5), (5, 1, 2)),
        pytest.param("cartpole", processes(3, shards=13), (13, 2, 7), marks=pytest.mark.full),
        pytest.param("images", processes(1, shards=3), (3, 2), marks=pytest.mark.full),
        pytest.param("continuous", processes(1, shards=4, start_method="spawn"), (4, 2), marks=pytest.mark.full),
    ],
)
def test_another_number_of_workers_in_mid_run(name: str, place: dict[str, Any], counts: tuple[int, ...]) -> None:
    case = CASES[name]
    with case.build(**place) as (run, parts):
        episodes = case.advance(run, 1)
        for workers in counts:
            parts.rescale(workers)
            episodes += case.advance(run, 1)
            assert parts.topology.workers == workers
        assert bits_of(run, episodes + case.advance(run, case.updates - run.updates)) == calm(name)


def test_restarts_outlive_a_change_of_workers(tmp_path: Path) -> None:
    """A lost worker stays counted, and the journal still knows where everybody was."""
    case = obedient(CASES["noisy"], tmp_path)
    for place in chosen_steps("noisy", 2, 7):
        order(tmp_path, "kill", SEED, *place)
    with case.build(**processes(2, shards=4)) as (run, parts):
        episodes = case.advance(run, case.updates // 2)
        parts.rescale(3)
        episodes += case.advance(run, case.updates - run.updates)
        assert run.source.place.replaced.restarts == 2
        assert bits_of(run, episodes) == calm("noisy")


def test_what_can_not_be_rescaled() -> None:
    with CASES["noisy"].build(**INLINE) as (_, parts), pytest.raises(UsageError, match="inline has no workers"):
        parts.rescale(2)
    with CASES["noisy"].build(**threads(2, shards=3)) as (_, parts):
        for workers in (0, 4):
            with pytest.raises(UsageError, match=f"expected 1 to 3 workers.*got {workers}"):
                parts.rescale(workers)


def stopped(case: Case, place: dict[str, Any], updates: int) -> tuple[Snapshot, list[Finished]]:
    with case.start(**place) as run:
        episodes = case.advance(run, updates)
        return run.snapshot(), episodes


RESUMES = [
    ("noisy", "inline", "processes"),
    ("noisy", "processes", "inline"),
    ("noisy", "processes, 5 shards", "threads"),
    ("cartpole", "threads", "processes 3"),
    ("continuous", "processes", "processes, 5 shards"),
    ("long", "processes", "inline"),
    ("images", "inline", "processes"),
    ("stacks", "processes, 5 shards", "inline"),
    ("normalized", "processes, 5 shards", "threads"),
    ("masked", "threads", "processes"),
    ("lstm", "processes, 5 shards", "threads"),
    ("gru", "inline", "processes 3"),
    ("masked_lstm", "processes", "inline"),
]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        *RESUMES,
        *(
            pytest.param(name, before, after, marks=pytest.mark.full)
            for name in CASES
            for before in PLACES
            for after in PLACES
            if before != after and (name, before, after) not in RESUMES
        ),
    ],
)
def test_stop_and_resume_elsewhere(name: str, before: str, after: str) -> None:
    case = CASES[name]
    snapshot, episodes = stopped(case, PLACES[before], case.updates // 2)
    assert case.go_on(snapshot, episodes, **PLACES[after]) == calm(name)


def test_a_snapshot_does_not_disturb_the_run_it_is_of() -> None:
    case = CASES["noisy"]
    with case.start(**processes(2)) as run:
        episodes: list[Finished] = []
        for _ in range(case.updates):
            episodes += case.advance(run, 1)
            run.snapshot()
        assert bits_of(run, episodes) == calm("noisy")


@pytest.mark.parametrize("place", [threads, processes])
@pytest.mark.parametrize("name", ["cartpole", "continuous"])
def test_batches_in_order_of_arrival_change_the_bits(name: str, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutation that the comparisons above must notice: slabs side by side as they came, here the last one first."""

    def as_they_came(slabs: Sequence[Slab]) -> Batch:
        return assemble(list(reversed(slabs)))

    monkeypatch.setattr("headrace.collecting.reader.assemble", as_they_came)
    got = CASES[name].play(**place(2))
    assert got.weights_sha256 != calm(name).weights_sha256
    assert got.optimizer_sha256 != calm(name).optimizer_sha256
