"""Records of LLM rollouts are a function of the seed: not of workers, backends, batches, failures or resumes.

The scripted engine answers from each request's seed and prompt and takes a random time for it, so two ways to run agree
only if they ask the same questions. The in-process model samples for real.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

import headrace as hr
from headrace.agents.engines.batching import Batching
from headrace.agents.engines.in_process import InProcessEngine, in_process
from headrace.agents.engines.scripted import Latency, scripted
from headrace.agents.engines.tiny import tiny_codec, tiny_model
from headrace.agents.episode import Rules
from headrace.agents.metrics import summary
from headrace.agents.plan import GroupPlan
from headrace.agents.records import Group, fingerprint
from support.agent_envs import Counting, Heavy, spec
from support.pairwise import matrix

ENVS = ("Bandit", "FrozenLake", "Sokoban", "Countdown")
MIXED = [*ENVS, spec(Heavy)]


def rolled(backend: str, n_jobs: int, groups: int = 10, envs: Any = MIXED, **options: Any) -> list[Group]:
    engine = scripted(latency=Latency(0.0005, 0.0001, 0.003), batching=options.pop("batching", None))
    try:
        with hr.AgentRollouts(envs, engine, n_jobs, backend, group_size=options.pop("group_size", 3), **options) as one:
            return one.run(groups)
    finally:
        engine.close()


@pytest.fixture(scope="module")
def calm() -> list[Group]:
    return rolled("sequential", 1)


PLACES = matrix(
    {
        "engine": ["scripted", "model"],
        "backend": ["threading", "loky", "multiprocessing"],
        "n_jobs": [1, 2, 3, 4, 7],
    }
)


def places(engine: str) -> list[Any]:
    """Every backend with every number of workers, by one engine or the other; `make test-full` does it by both."""
    chosen = [param for param in PLACES if param.values[0]["engine"] == engine]
    return [pytest.param(*(list(param.values[0].values())[1:]), marks=param.marks) for param in chosen]


@pytest.mark.parametrize(("backend", "n_jobs"), places("scripted"))
def test_workers_and_backends_do_not_matter(backend: str, n_jobs: int, calm: list[Group]) -> None:
    """10 groups on 4 workers, and more workers than some tags have groups."""
    got = rolled(backend, n_jobs)
    assert len(got) == 10
    assert fingerprint(got) == fingerprint(calm)
    assert summary(got) == summary(calm)
    assert any("pass@3" in name for name in summary(got))


@pytest.mark.parametrize("backend", ["threading", "loky", "multiprocessing"])
def test_more_workers_than_groups(backend: str) -> None:
    assert fingerprint(rolled(backend, 7, groups=3)) == fingerprint(rolled("sequential", 1, groups=3))


@pytest.mark.parametrize("options", [{"batching": Batching(1, 0.0)}, {"batching": Batching(3, 0.05)}, {"pooled": True}])
def test_batches_and_pools_do_not_matter(options: dict[str, Any], calm: list[Group]) -> None:
    assert fingerprint(rolled("threading", 3, **options)) == fingerprint(calm)
    assert fingerprint(rolled("sequential", 1, **options)) == fingerprint(calm)
    assert fingerprint(rolled("lock-step", 1, **options)) == fingerprint(calm)


def test_groups_do_not_depend_on_how_many_are_asked_for(calm: list[Group]) -> None:
    assert fingerprint(rolled("threading", 2, groups=6)) == fingerprint(calm[:6])


def test_members_differ_and_groups_share_their_seed(calm: list[Group]) -> None:
    for group in calm:
        assert len({one.seed for one in group.episodes}) == 1
        assert len({one.turns[0].prompt for one in group.episodes}) == 1, "the same task"
    answers = [one.turns[0].answer for group in calm for one in group.episodes]
    assert len(set(answers)) > len(answers) / 2, "but not the same play"


def test_another_seed_is_another_run(calm: list[Group]) -> None:
    assert fingerprint(rolled("threading", 2, seed=2)) != fingerprint(calm)


@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_seeds_by_worker_would_be_seen(backend: str, calm: list[Group]) -> None:
    """The comparison can fail: sampling seeds that know who plays, as in the known attempt."""
    import os
    import threading

    def by_worker(self: GroupPlan, group: int, member: int, turn: int) -> int:
        return hash((os.getpid(), threading.get_ident(), group, member, turn)) % 2**62

    with mock.patch.object(GroupPlan, "sampling_seed", by_worker):
        assert fingerprint(rolled("threading", 3)) != fingerprint(calm)


# ------------------------------------------------------------------------------------------------ a real model


@pytest.fixture(scope="module")
def parts() -> tuple[Any, Any]:
    codec = tiny_codec(["Say one or two. number 17 <think>abc</think><answer>one || two</answer> Reward: 1"] * 4, 300)
    return tiny_model(codec.vocabulary, 3), codec


@pytest.fixture
def model(parts: tuple[Any, Any]) -> Iterator[InProcessEngine]:
    engine = in_process(*parts, slots=8, max_context=512)
    yield engine
    engine.close()


RULES = Rules(max_turn=3, max_tokens=12, max_context=512, enable_think=False)


def sampled(engine: InProcessEngine, backend: str, n_jobs: int, groups: int = 10) -> list[Group]:
    with hr.AgentRollouts([spec(Counting)], engine, n_jobs, backend, group_size=2, rules=RULES) as rollouts:
        return rollouts.run(groups)


@pytest.fixture(scope="module")
def calmly_sampled(parts: tuple[Any, Any]) -> list[Group]:
    engine = in_process(*parts, slots=8, max_context=512)
    try:
        return sampled(engine, "sequential", 1)
    finally:
        engine.close()


def test_a_sampling_model_in_lock_step(model: InProcessEngine, calmly_sampled: list[Group]) -> None:
    assert fingerprint(sampled(model, "lock-step", 1)) == fingerprint(calmly_sampled)


@pytest.mark.parametrize(("backend", "n_jobs"), places("model"))
def test_a_sampling_model_gives_the_same_records_everywhere(
    backend: str, n_jobs: int, model: InProcessEngine, calmly_sampled: list[Group]
) -> None:
    """10 groups, also on 4 and on 7 workers."""
    got = sampled(model, backend, n_jobs)
    assert fingerprint(got) == fingerprint(calmly_sampled)
    texts = {turn.answer for group in got for one in group.episodes for turn in one.turns}
    assert len(texts) > 12, "it does sample"


@pytest.mark.parametrize("backend", ["threading", "loky", "multiprocessing"])
def test_a_sampling_model_and_more_workers_than_groups(
    backend: str, model: InProcessEngine, calmly_sampled: list[Group]
) -> None:
    assert fingerprint(sampled(model, backend, 7, groups=3)) == fingerprint(calmly_sampled[:3])


@pytest.mark.parametrize("parked", [0, 3, 64])
def test_what_a_model_remembers_does_not_matter(parts: tuple[Any, Any], parked: int) -> None:
    """Twenty conversations in four slots: their places are taken by others, or not; the tokens are the same."""
    records = []
    for remembering, backend, n_jobs in ((parked, "threading", 3), (0, "sequential", 1)):
        engine = in_process(*parts, slots=4, max_context=512, parked=remembering)
        try:
            records.append(fingerprint(sampled(engine, backend, n_jobs)))
        finally:
            engine.close()
    assert records[0] == records[1]


def test_neighbours_that_matter_would_be_seen(parts: tuple[Any, Any]) -> None:
    """The self-test can fail: a model whose answers depend on who else is in the batch."""
    model, codec = parts
    engine = InProcessEngine(model, codec, slots=8, max_context=256)
    forward = engine._passes.forward

    def leaky(ids: Any, is_reading: bool = False) -> Any:
        logits = forward(ids, is_reading)
        return logits + logits.mean(0, keepdim=True)

    try:
        with (
            mock.patch.object(engine._passes, "forward", leaky),
            pytest.raises(hr.errors.HeadraceError, match="in other company"),
        ):
            engine.self_test()
        engine.self_test()
    finally:
        engine.close()
