"""resolve(): what was said becomes what will run, with a reason for every choice, or one clear error."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.collecting.topology import Choice, Topology, TopologyConfig, publishing, resolve, split
from headrace.errors import UsageError
from support.generators import quick
from support.pairwise import Cell, matrix

PLACES = ("inline", "threads", "processes")


def never(config: TopologyConfig) -> Choice:
    raise AssertionError("everything was said, so nobody is asked")


def chooses(topology: str, workers: int) -> Any:
    return lambda config: Choice(topology, workers, "topology=because")


@pytest.mark.parametrize(
    "cell",
    matrix(
        {"place": PLACES, "workers": (1, 2, 4), "shards": (0, 4, 5), "max_lag": (0, 1, 3)},
        lambda cell: cell["place"] != "inline" or cell["workers"] == 1,
    ),
)
def test_what_is_said_is_what_runs(cell: Cell) -> None:
    """Nobody is asked, and every environment is in exactly one shard."""
    place, workers, shards, max_lag = cell.values()
    said = TopologyConfig(n_envs=6, topology=place, workers=str(workers), max_lag=max_lag, shards=shards)
    got = resolve(said, never)
    assert (got.topology, got.workers, got.max_lag, got.inference) == (place, workers, max_lag, "local")
    assert len(got.shards) == got.pace.per_update == (shards or workers)
    assert [env for shard in got.shards for env in shard] == list(range(6))
    assert got.pick_up_rows == (8 if max_lag else 0)
    assert got.is_even
    assert not any(reason.startswith("topology") for reason in got.reasons)
    assert any(reason.startswith("shards=") for reason in got.reasons) is (shards == 0)


@pytest.mark.parametrize("said", ["auto", *PLACES])
@pytest.mark.parametrize("workers", ["auto", "1"])
def test_it_asks_only_where_something_is_open(said: str, workers: str) -> None:
    is_open = said == "auto" or (said != "inline" and workers == "auto")
    chosen = "threads" if said == "auto" else said
    got = resolve(TopologyConfig(n_envs=4, topology=said, workers=workers), chooses(chosen, 3) if is_open else never)
    assert (got.topology, got.workers) == (chosen, 3 if is_open else 1)
    assert ("topology=because" in got.reasons) is is_open
    assert len(got.shards) == got.workers


def test_a_choice_of_inline_has_one_worker() -> None:
    got = resolve(TopologyConfig(n_envs=4), chooses("inline", 1))
    assert (got.topology, got.workers, got.shards) == ("inline", 1, (range(4),))


def test_shards_may_outnumber_workers() -> None:
    got = resolve(TopologyConfig(n_envs=5, topology="threads", workers="2", shards=3), never)
    assert got.shards == (range(2), range(2, 4), range(4, 5))


@pytest.mark.parametrize(("said", "runs"), [(-1, 8), (0, 0), (1, 1), (100, 100)])
def test_rows_between_looks_for_newer_weights(said: int, runs: int) -> None:
    got = resolve(TopologyConfig(topology="inline", max_lag=1, pick_up_rows=said), never)
    assert got.pick_up_rows == runs


def test_what_is_for_others_is_handed_on() -> None:
    said = TopologyConfig(
        topology="processes",
        workers="1",
        max_lag=1,
        start_method="spawn",
        spares=2,
        batch="first_come",
        inference="local",
    )
    got = resolve(said, never)
    assert (got.start_method, got.spares, got.is_even, got.inference) == ("spawn", 2, False, "local")
    assert not any(reason.startswith("inference") for reason in got.reasons)
    assert isinstance(got, Topology)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"n_envs": 0}, "n_envs: expected a whole number of at least 1, got 0"),
        ({"n_envs": 2, "shards": 3}, "shards: expected 0 .auto. to n_envs = 2, got 3"),
        ({"shards": -1}, "shards: expected .*got -1"),
        ({"topology": "cluster"}, "topology: expected one of auto, .*got 'cluster'"),
        ({"topology": "ray"}, "topology=ray is not built yet; use one of auto, inline, threads, processes"),
        ({"topology": "fused"}, "topology=fused is not built yet"),
        ({"inference": "central", "topology": "inline"}, "inference=central needs topology=processes, got inline"),
        ({"inference_servers": 0}, "inference_servers: expected 1 to n_envs = 8, got 0"),
        (
            {"inference_device": "cuda:0,cuda:1"},
            "inference_device: 2 devices need inference=central, .* with inference=local, name one",
        ),
        (
            {"inference": "auto", "inference_device": "cuda:0,cuda:1", "inference_servers": 2},
            "2 devices need inference=central, .* with inference=auto, name one",
        ),
        (
            {"inference": "central", "inference_device": "cuda:0,cuda:1,cuda:2", "inference_servers": 2},
            "inference_device: 3 devices need as many servers, got inference_servers = 2; a server acts on one device",
        ),
        ({"inference_device": "cuda:0,"}, "inference_device: expected cpu, cuda, .*got ''"),
        ({"inference_device": "cpu,cuda"}, "inference_device: expected devices of one kind, .*got 'cpu,cuda'"),
        ({"inference_max_batch": -1}, "inference_max_batch: expected 0 .all. or more, got -1"),
        ({"inference_max_wait_ms": -1.0}, "inference_max_wait_ms: expected 0 to 1000, got -1.0"),
        ({"inference": "remote"}, "inference: expected one of"),
        ({"max_lag": -1}, "max_lag: expected 0 or more, got -1"),
        ({"workers": "0"}, "workers: expected auto or a number of at least 1, got '0'"),
        ({"workers": "-2"}, "workers: expected auto or .*got '-2'"),
        ({"workers": "many"}, "workers: expected auto or .*got 'many'"),
        ({"topology": "inline", "workers": "2"}, "workers=2: topology=inline has none"),
        ({"start_method": "fork"}, "start_method: expected forkserver or spawn, got 'fork'"),
        ({"batch": "newest", "max_lag": 1}, "batch: expected every_shard or first_come, got 'newest'"),
        ({"batch": "first_come"}, "batch=first_come needs max_lag of at least 1"),
        ({"spares": -1}, "spares: expected 0 to 64, got -1"),
        ({"spares": 65}, "spares: expected 0 to 64, got 65"),
        ({"spares": 1.5}, "spares: expected a whole number, got 1.5"),
        ({"pick_up_rows": 1}, "pick_up_rows needs max_lag of at least 1"),
        ({"pick_up_rows": -2, "max_lag": 1}, "pick_up_rows: expected -1 .auto., 0 or more, got -2"),
        ({"publish_every": "never"}, "publish_every: expected .*got 'never'"),
        ({"max_lag": "1"}, "max_lag: expected"),
        ({"workers": 2}, "workers: expected"),
        ({"publish_every": 1}, "publish_every: expected"),
        ({"double_buffering": True}, "double_buffering: expected one of auto, on, off, got True"),
    ],
    ids=str,
)
def test_what_can_not_be_said(said: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TopologyConfig(**said)


@pytest.mark.parametrize("place", ["threads", "processes"])
def test_workers_without_anything_to_do_are_refused(place: str) -> None:
    with pytest.raises(UsageError, match="workers: expected at most n_envs = 2, got 3"):
        resolve(TopologyConfig(n_envs=2, topology=place, workers="3"), never)
    with pytest.raises(UsageError, match="shards: expected at least workers = 3, got 2"):
        resolve(TopologyConfig(n_envs=4, topology=place, workers="3", shards=2), never)


@pytest.mark.parametrize(
    ("text", "due", "not_yet"),
    [
        ("1", (7, 0.0), None),
        ("20", (40, 0.0), (39, 1e9)),
        ("0.5s", (1, 0.5), (20, 0.49)),
        ("2s", (1, 2.0), (2, 1.99)),
        ("1e-3s", (3, 1e-3), (3, 0.0)),
    ],
)
def test_how_often_weights_are_published(text: str, due: tuple[int, float], not_yet: tuple[int, float] | None) -> None:
    """By the updates so far, and the seconds since the last time."""
    assert publishing(text)(*due)
    assert not_yet is None or not publishing(text)(*not_yet)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "s", "0s", "-1s", "infs", "nans", "1m", "1 minute"])
def test_publishing_that_can_not_be(text: str) -> None:
    with pytest.raises(UsageError, match=r"publish_every: expected updates, as in 1, or seconds, as in 0\.5s, got"):
        publishing(text)


@quick
@given(st.integers(1, 200), st.data())
def test_shards_are_consecutive_and_even(n_envs: int, data: st.DataObject) -> None:
    shards = split(n_envs, data.draw(st.integers(1, n_envs)))
    assert [env for shard in shards for env in shard] == list(range(n_envs))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


# -------------------------------------------------------------------------------------------------- limits of workers


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"hang_floor_s": 0.0}, "hang_floor_s: expected more than 0 seconds, got 0.0"),
        ({"hang_floor_s": float("nan")}, "hang_floor_s: expected more than 0 seconds, got nan"),
        ({"hang_floor_s": "30"}, "hang_floor_s: expected a number, got '30'"),
        ({"hang_ceiling_s": 10.0}, "hang_ceiling_s: expected 0 .never. or at least hang_floor_s = 30, got 10.0"),
        ({"hang_ceiling_s": float("inf")}, "hang_ceiling_s: expected 0 .never. or at least hang_floor_s = 30, got inf"),
        ({"worker_max_memory_mb": -1}, "worker_max_memory_mb: expected 0 .no limit. or more, got -1"),
        ({"worker_max_memory_mb": 0.5}, "worker_max_memory_mb: expected a whole number, got 0.5"),
        ({"worker_max_episodes": -5}, "worker_max_episodes: expected 0 .no limit. or more, got -5"),
    ],
)
def test_limits_of_workers_that_make_no_sense(said: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TopologyConfig(**said)


def test_limits_of_workers_are_taken_over() -> None:
    said = {"hang_floor_s": 2, "hang_ceiling_s": 0, "worker_max_memory_mb": 500, "worker_max_episodes": 7}
    got = resolve(TopologyConfig(topology="processes", workers="1", **said), never)
    assert (got.limits.hang_floor_s, got.limits.hang_ceiling_s) == (2, 0)
    assert (got.limits.max_memory_mb, got.limits.max_episodes) == (500, 7)
    assert not any("no effect" in reason for reason in got.reasons)


@pytest.mark.parametrize("place", ["inline", "threads"])
def test_recycling_without_processes_has_no_effect_and_says_so(place: str) -> None:
    got = resolve(TopologyConfig(topology=place, workers="1", worker_max_episodes=7), never)
    assert any("worker_max_episodes: no effect, there are no worker processes" in reason for reason in got.reasons)
