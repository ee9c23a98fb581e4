"""Any order of commits, kills in mid-slab, batches, rejected slabs, snapshots and restores: nothing is lost or changed.

    hosts (real actors over real environments) ──committed slabs──> waiting ──> ledger, journal      kill: a fresh host
    a second set of hosts that nothing ever happens to: the n-th slab of a shard must be its n-th slab, to the last byte

What a host that was killed goes on with is what was committed · the journal holds the actions, counters and last
observations of what was entered, and no more · the ledger balances, and knows each slab once · a restored run stands
where it was saved. The same machine, driven by hand, goes red under mutations of journal, standing and ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.acting.actor import Actor
from headrace.acting.start import Carry
from headrace.collecting import plan as planning
from headrace.collecting.plan import HostPlan, build_actor
from headrace.envs.seeds import Purpose
from headrace.envs.spec import EnvSpec
from headrace.episodes import standing as standings
from headrace.episodes.journal import Journal
from headrace.errors import HeadraceError
from headrace.memory.layout import slab_bytes
from headrace.memory.ledger import Ledger
from headrace.memory.numbering import Numbering
from headrace.memory.schema import rollout_schema
from headrace.memory.slab import Slab
from headrace.memory.spaces import Box, Discrete, Leaves
from headrace.policies.noise_spec import NoiseSpec

SEED, N_STEPS, MOST_WAITING = 9, 4, 3
SHARDS = (range(2), range(2, 3))
OBSERVATION, ACTION = Box((2,), "float32", (-1e6,), (1e6,)), Discrete(3)
FIELDS = ("obs", "action", "reward", "terminated", "truncated", "valid", "episode", "step", "last_obs", "noise_counter")


class Drifts(gym.Env[Any, Any]):
    """Where it is depends on every action and on its generator; episodes end at random, some cut, some of one step."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1e6, 1e6, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._at = self.np_random.normal(size=2)
        return self._at.astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._at = 0.9 * self._at + (int(action) - 1) + self.np_random.normal(size=2)
        luck = self.np_random.random()
        return self._at.astype(np.float32), float(self._at[0]), luck < 0.15, luck > 0.85, {}


def _plan() -> HostPlan:
    schemas = tuple(rollout_schema(OBSERVATION, ACTION, N_STEPS, len(shard)) for shard in SHARDS)
    nothing: Any = None  # no policy: `act` below
    noise = NoiseSpec("gumbel", 3)
    return HostPlan(EnvSpec(Drifts), SEED, SHARDS, schemas, nothing, noise, OBSERVATION, ACTION, 4, 0)


PLAN = _plan()


class _Killed(BaseException):
    """In the middle of a slab."""


def act(row: int, obs: Leaves, noise: Any, out: Any) -> int:
    out[:] = np.argmax(noise + obs["obs"][:, :1], axis=1)
    return row


def killed_at(last: int) -> Callable[..., int]:
    def acting(row: int, obs: Leaves, noise: Any, out: Any) -> int:
        if row == last:
            raise _Killed
        return act(row, obs, noise, out)

    return acting


def fresh_slab(shard: int) -> Slab:
    slab = Slab(PLAN.schemas[shard], memoryview(bytearray(slab_bytes(PLAN.schemas[shard]))))
    slab.poison()
    return slab


def content(slab: Slab) -> dict[str, bytes]:
    return {name: slab.arrays[name].tobytes() for name in FIELDS} | {
        "final": slab.final_row.tobytes() + slab.final_obs["obs"].tobytes()
    }


class Calm:
    """What comes out of a shard that nothing ever happens to; made once, as far as it was needed."""

    def __init__(self, shard: int) -> None:
        self._shard, self._actor = shard, build_actor(PLAN, shard, None)
        self._slabs: list[Slab] = []

    def slab(self, number: int) -> Slab:
        while len(self._slabs) <= number:
            slab = fresh_slab(self._shard)
            self._actor.fill(slab, act)
            self._slabs.append(slab)
        return self._slabs[number]

    def live(self, count: int, env: int) -> tuple[int, list[int]]:
        """After so many slabs: the episode that an environment is in, and its actions so far."""
        episode, actions = 0, []
        for number in range(count):
            slab = self.slab(number)
            for t in range(N_STEPS):
                actions.append(int(slab.action[t, env]))
                if slab.terminated[t, env] or slab.truncated[t, env]:
                    episode, actions = episode + 1, []
        return episode, actions


CALM = [Calm(shard) for shard in range(len(SHARDS))]


def new_journal() -> Journal:
    return Journal(3, PLAN.env.seed_of(SEED, Purpose.ENV), OBSERVATION, ACTION)


class RecoveryMachine(RuleBasedStateMachine):
    """A reader's books, the hosts they are kept for, and plain counts of what happened."""

    @initialize()
    def start(self) -> None:
        self.journal, self.ledger, self.numbering = new_journal(), Ledger(), Numbering(len(SHARDS))
        self.waiting: list[list[Slab]] = [[] for _ in SHARDS]
        self.entered = [0 for _ in SHARDS]  # slabs
        self.consumed = self.rejected = 0  # steps
        self.hosts: list[Actor] = [build_actor(PLAN, shard, None) for shard in range(len(SHARDS))]
        self.saved: list[tuple[Any, ...]] = []

    # ----------------------------------------------------------------------------------------------------- what happens

    @rule(shard=st.integers(0, 1))
    def commit(self, shard: int) -> None:
        """Whatever happened to hosts before, this shard's next slab is the one that it would have been."""
        if len(self.waiting[shard]) == MOST_WAITING:
            return
        slab = fresh_slab(shard)
        self.hosts[shard].fill(slab, act)
        number = self.entered[shard] + len(self.waiting[shard])
        assert content(slab) == content(CALM[shard].slab(number)), f"slab {number} of shard {shard}"
        self.waiting[shard].append(slab)

    @rule(shard=st.integers(0, 1), row=st.integers(0, N_STEPS))
    def kill(self, shard: int, row: int) -> None:
        """In any row of a slab, or after the last and before the commit; another host goes on."""
        with suppress(_Killed):
            self.hosts[shard].fill(fresh_slab(shard), killed_at(row))
        self.replace(shard)

    def replace(self, shard: int) -> None:
        standing = standings.standing(self.journal, SHARDS[shard], self.waiting[shard])
        self.hosts[shard].close()
        self.hosts[shard] = build_actor(PLAN, shard, standing)  # refuses a replay that ends elsewhere

    @precondition(lambda self: all(self.waiting))
    @rule()
    def learn(self) -> None:
        """One slab of every shard, as a batch."""
        for shard in range(len(SHARDS)):
            steps = self.enter(shard)
            self.ledger.consumed += steps
            self.consumed += steps

    @precondition(lambda self: any(self.waiting))
    @rule(shard=st.integers(0, 1))
    def reject(self, shard: int) -> None:
        if self.waiting[shard]:
            steps = self.enter(shard)
            self.ledger.rejected += steps
            self.rejected += steps

    def enter(self, shard: int) -> int:
        slab = self.waiting[shard].pop(0)
        self.numbering.enter(shard, self.entered[shard])
        self.journal.enter(SHARDS[shard], slab)
        self.entered[shard] += 1
        steps = int(slab.valid.sum())
        self.ledger.produced += steps
        slab.poison()  # it is another's now
        return steps

    @rule()
    def save(self) -> None:
        books = standings.snapshot(self.journal), (self.ledger.encode(), list(self.numbering.next))
        self.saved.append((*books, list(self.entered), self.consumed, self.rejected))

    @precondition(lambda self: self.saved)
    @rule(pick=st.integers(0, 1000))
    def restore(self, pick: int) -> None:
        """Any snapshot, with fresh hosts; what waited is collected again."""
        (state, arrays), (ledger, sequences), entered, self.consumed, self.rejected = self.saved[pick % len(self.saved)]
        self.journal, self.ledger, self.numbering = new_journal(), Ledger(), Numbering(len(SHARDS))
        standings.restore(self.journal, state, arrays)
        self.ledger.restore(ledger)
        self.numbering.restore(sequences)
        self.entered, self.waiting = list(entered), [[] for _ in SHARDS]
        for shard in range(len(SHARDS)):
            self.replace(shard)

    # ------------------------------------------------------------------------------------------------------ comparisons

    @invariant()
    def the_journal_is_what_was_entered(self) -> None:
        for shard, envs in enumerate(SHARDS):
            live = standings.live_episodes(self.journal, envs)
            for b, one in enumerate(live):
                assert (one.episode, one.actions.tolist()) == CALM[shard].live(self.entered[shard], b)
            if self.entered[shard]:
                last, part = CALM[shard].slab(self.entered[shard] - 1), slice(envs.start, envs.stop)
                assert self.journal.noise_counter[part].tolist() == last.noise_counter.tolist()
                assert self.journal.last_obs["obs"][part].tobytes() == last.last_obs["obs"].tobytes()

    @invariant()
    def the_ledger_balances(self) -> None:
        self.ledger.check()
        steps = sum(count * N_STEPS * len(envs) for count, envs in zip(self.entered, SHARDS, strict=True))
        assert self.numbering.next == self.entered
        assert self.ledger.produced == steps
        assert (self.ledger.consumed, self.ledger.rejected) == (self.consumed, self.rejected)

    def teardown(self) -> None:
        for host in getattr(self, "hosts", []):
            host.close()


TestRecovery = RecoveryMachine.TestCase
TestRecovery.settings = settings(deadline=None, max_examples=40, stateful_step_count=30)


# ---------------------------------------------------------------------------------------------------------- it can fail


def by_hand() -> None:
    """A run with every mishap, and no randomness."""
    m = RecoveryMachine()
    m.start()

    def do(
        *steps: tuple[Callable[..., None], int] | tuple[Callable[..., None], int, int] | Callable[..., None],
    ) -> None:
        for step in steps:
            function, arguments = (step[0], step[1:]) if isinstance(step, tuple) else (step, ())
            function(*arguments)
            m.the_journal_is_what_was_entered()
            m.the_ledger_balances()

    try:
        do((m.kill, 0, 2), (m.commit, 0), (m.commit, 1), m.save, (m.commit, 0), (m.kill, 0, 1), (m.commit, 0), m.learn)
        for _ in range(5):  # episodes end
            do((m.commit, 1), (m.kill, 1, N_STEPS), (m.commit, 1), m.learn, (m.commit, 0), (m.reject, 1), m.save)
            do((m.commit, 0), (m.kill, 1, 0), (m.commit, 1), (m.kill, 0, 3), (m.reject, 0), (m.commit, 0), m.learn)
        do((m.restore, 2), (m.commit, 0), (m.commit, 1), (m.kill, 1, 1), m.learn, (m.commit, 1), (m.restore, 0))
        do((m.commit, 0), (m.commit, 1), m.learn, (m.restore, 3), (m.kill, 0, 1), (m.commit, 0), (m.commit, 1), m.learn)
    finally:
        m.teardown()


STANDING, SNAPSHOT, RESTORE, LIVE = standings.standing, standings.snapshot, standings.restore, standings.live_episodes
ENTER, COUNT, BALANCE, GO_ON = Journal.enter, Numbering.enter, Ledger.restore, planning.go_on


def forgets_what_waits(journal: Journal, envs: range, waiting: Any = ()) -> Any:
    return STANDING(journal, envs)


def enters_what_waits(journal: Journal, envs: range, waiting: Any = ()) -> Any:
    for slab in waiting:
        journal.enter(envs, slab)
    return STANDING(journal, envs)


def drops_an_action(journal: Journal, envs: range, slab: Slab) -> Any:
    entered = ENTER(journal, envs, slab)
    chunk = journal.chunks[envs.start][-1]
    journal.chunks[envs.start][-1] = chunk[:-1]
    return entered


def keeps_a_view(journal: Journal, envs: range, slab: Slab) -> Any:
    """Of a slab that will be another's."""
    entered = ENTER(journal, envs, slab)
    for b, env in enumerate(envs):
        chunk = journal.chunks[env][-1]
        if len(chunk) == len(slab.action):
            journal.chunks[env][-1] = slab.action[:, b]
    return entered


def does_not_see_ends(journal: Journal, envs: range, slab: Slab) -> Any:
    before = [list(journal.chunks[env]) for env in envs]
    entered = ENTER(journal, envs, slab)
    for b, env in enumerate(envs):
        journal.chunks[env] = [*before[b], slab.action[slab.valid[:, b], b]]
    return entered


def takes_the_first_end_for_the_last(journal: Journal, envs: range, slab: Slab) -> Any:
    entered = ENTER(journal, envs, slab)
    for b, env in enumerate(envs):
        ends = np.flatnonzero((slab.terminated | slab.truncated)[:, b] & slab.valid[:, b])
        if len(ends):
            rest = slice(ends[0] + 1, None)
            journal.chunks[env] = [slab.action[rest, b][slab.valid[rest, b]]]
    return entered


def forgets_noise(journal: Journal, envs: range, slab: Slab) -> Any:
    before = journal.noise_counter.copy()
    checksums = ENTER(journal, envs, slab)
    journal.noise_counter[:] = before
    return checksums


def forgets_checksums(journal: Journal, envs: range, slab: Slab) -> Any:
    before = journal.checksum.copy()
    checksums = ENTER(journal, envs, slab)
    journal.checksum[:] = before
    return checksums


def saves_the_books_themselves(journal: Journal) -> Any:
    state, arrays = SNAPSHOT(journal)
    return state, arrays | {"noise_counter": journal.noise_counter, "last_obs": journal.last_obs["obs"]}


def restores_no_checksums(journal: Journal, state: Any, arrays: Any) -> None:
    before = journal.checksum.copy()
    RESTORE(journal, state, arrays)
    journal.checksum[:] = before


def restores_no_actions(journal: Journal, state: Any, arrays: Any) -> None:
    RESTORE(journal, state, arrays | {"lengths": np.zeros_like(arrays["lengths"])})


def swaps_environments(journal: Journal, envs: range) -> Any:
    live = LIVE(journal, envs)
    return live if len(live) < 2 else [live[1], live[0]]


def goes_on_with_old_noise(envs: Any, culprit: Any, live: Any, last_obs: Leaves, noise_counter: Any) -> Carry:
    return GO_ON(envs, culprit, live, last_obs, np.maximum(noise_counter - 1, 0))


def counts_a_slab_twice(numbering: Numbering, shard: int, sequence: int) -> None:
    COUNT(numbering, shard, sequence)
    numbering.next[shard] += 1


def does_not_count_slabs(numbering: Numbering, shard: int, sequence: int) -> None:
    pass


def forgets_what_was_rejected(ledger: Ledger, data: dict[str, Any]) -> None:
    BALANCE(ledger, data | {"rejected": 0})


MUTATIONS: list[tuple[Any, str, Callable[..., Any]]] = [
    (standings, "standing", forgets_what_waits),
    (standings, "standing", enters_what_waits),
    (Journal, "enter", drops_an_action),
    (Journal, "enter", keeps_a_view),
    (Journal, "enter", does_not_see_ends),
    (Journal, "enter", takes_the_first_end_for_the_last),
    (Journal, "enter", forgets_noise),
    (Journal, "enter", forgets_checksums),
    (standings, "snapshot", saves_the_books_themselves),
    (standings, "restore", restores_no_checksums),
    (standings, "restore", restores_no_actions),
    (standings, "live_episodes", swaps_environments),
    (planning, "go_on", goes_on_with_old_noise),
    (Numbering, "enter", counts_a_slab_twice),
    (Numbering, "enter", does_not_count_slabs),
    (Ledger, "restore", forgets_what_was_rejected),
]


def test_recovery_passes_when_driven_by_hand() -> None:
    by_hand()


@pytest.mark.parametrize(("where", "name", "mutant"), MUTATIONS, ids=lambda part: getattr(part, "__name__", ""))
def test_a_mutation_is_caught(where: Any, name: str, mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for calm in CALM:
        calm.slab(30)  # before anything is mutated
    monkeypatch.setattr(where, name, mutant)
    with pytest.raises((AssertionError, HeadraceError)):
        by_hand()
