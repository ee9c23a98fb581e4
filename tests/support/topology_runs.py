"""Runs in different places that must come out the same.

    Case --config(place)--> RunConfig --start--> Run --advance--> Finished ... --bits_of--> Bits (compared)

A place is a few words of TopologyConfig: {"topology": "processes", "workers": "2"}. Everything else is the case's.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.build import Parts, build_run
from headrace.checkpoints.snapshot import Snapshot
from headrace.collecting.reader import Reader
from headrace.collecting.topology import TopologyConfig
from headrace.envs.spec import EnvSource, EnvSpec
from headrace.episodes.finished import Finished
from headrace.learning.config import PpoConfig
from headrace.policies.config import PolicyConfig
from headrace.run_config import RunConfig
from headrace.train import Run
from headrace.weights.flat import tensors_sha256

SEED = 23
INLINE: dict[str, Any] = {"topology": "inline"}
STACKED = ('gymnasium.wrappers:FrameStackObservation {"stack_size": 4}',)


LSTM = PolicyConfig("MlpLstmPolicy", lstm_hidden_size=16, net_arch=(16,))
GRU = PolicyConfig("MultiInputGruPolicy", lstm_hidden_size=9, n_lstm_layers=2, net_arch=(16,))
MASKED_LSTM = PolicyConfig("MlpLstmPolicy", lstm_hidden_size=16, net_arch=(16,), action_masks=True, norm_obs=True)


def threads(workers: int, **more: Any) -> dict[str, Any]:
    """So many threads."""
    return {"topology": "threads", "workers": str(workers), **more}


def processes(workers: int, **more: Any) -> dict[str, Any]:
    """So many worker processes."""
    return {"topology": "processes", "workers": str(workers), **more}


@dataclass(frozen=True, eq=False)
class Case:
    """A run in a few words."""

    name: str
    env: EnvSource
    n_steps: int = 8
    updates: int = 6
    n_envs: int = 13
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[EnvSource, ...] = ()
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    ppo: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total_timesteps(self) -> int:
        """What schedules run out at."""
        return self.updates * self.n_envs * self.n_steps

    def config(self, **place: Any) -> RunConfig:
        """The whole configuration, somewhere."""
        options = {"batch_size": 40, "n_epochs": 2, **self.ppo}
        return RunConfig(
            EnvSpec(self.env, dict(self.kwargs), self.wrappers),
            SEED,
            self.policy,
            PpoConfig(**options),
            TopologyConfig(n_envs=self.n_envs, n_steps=self.n_steps, **place),
        )

    def wrapped(self, *wrappers: EnvSource) -> Case:
        """The same, in other clothes below its own."""
        return replace(self, wrappers=(*wrappers, *self.wrappers))

    @contextmanager
    def start(self, **place: Any) -> Iterator[Run]:
        """The run, before its first update; closed at the end."""
        with self.build(**place) as (run, _):
            yield run

    @contextmanager
    def build(self, **place: Any) -> Iterator[tuple[Run, Parts]]:
        """The same, with its parts: for what only they offer, as another number of workers."""
        run, parts = build_run(self.config(**place))
        try:
            yield run, parts
        finally:
            run.close()

    def advance(self, run: Run, updates: int) -> list[Finished]:
        """That many updates; the episodes that ended in them."""
        finished: list[Finished] = []
        for _ in range(updates):
            finished += run.update(self.total_timesteps).harvest.finished
        return finished

    def play(self, **place: Any) -> Bits:
        """From the start to the end, in one place."""
        with self.start(**place) as run:
            return bits_of(run, self.advance(run, self.updates))

    def go_on(self, snapshot: Snapshot, episodes: list[Finished], **place: Any) -> Bits:
        """From a snapshot to the end, in another place."""
        with self.build(**place) as (run, parts):
            parts.require_fit(snapshot)
            run.restore(snapshot)
            return bits_of(run, episodes + self.advance(run, self.updates - run.updates))


# A classic, a generator that moves in every step, the same with normalised observations and rewards, images, stacks of
# them, continuous actions, action masks, observations of several arrays, flat and nested, policies with a memory, with
# masks as well, and episodes of more than 10 slabs. 13 environments (7 with stacks): no number of workers divides them.
CASES = {
    one.name: one
    for one in (
        Case("cartpole", "CartPole-v1", ppo={"learning_rate": "lin_5e-3", "target_kl": 0.02}),
        Case("noisy", "support.bit_envs:Noisy", 16, ppo={"clip_range": "lin_0.3"}),
        Case("images", "support.bit_envs:Pixels", 6, 3, policy=PolicyConfig("CnnPolicy"), kwargs={"limit": 9}),
        Case("stacks", "support.bit_envs:Frames", 6, 4, 7, {"limit": 9}, STACKED, PolicyConfig("CnnPolicy")),
        Case("continuous", "Pendulum-v1", 40, 6, ppo={"clip_range_vf": 0.5, "batch_size": 200}),
        Case("masked", "support.bit_envs:Cards", 10, 5, kwargs={"pairs": True}, policy=PolicyConfig(action_masks=True)),
        Case("normalized", "support.bit_envs:Noisy", 16, policy=PolicyConfig(norm_obs=True), ppo={"norm_reward": True}),
        Case("lstm", "support.memory_envs:Recall", kwargs={"delay": 10, "is_cut": True}, policy=LSTM),
        Case("gru", "support.dict_envs:Signpost", 16, 5, policy=GRU, ppo={"batch_size": 30}),
        Case("masked_lstm", "support.bit_envs:Hand", 10, 4, kwargs={"limit": 4}, policy=MASKED_LSTM),
        Case("dict", "support.dict_envs:Signpost", 8, 5, policy=PolicyConfig("MultiInputPolicy")),
        Case("nested", "support.dict_envs:Nested", 6, 3, policy=PolicyConfig("auto")),
        Case("long", "support.bit_envs:LongWalk", updates=14, kwargs={"limit": 90}, ppo={"gradients": "autograd"}),
    )
}


@dataclass(frozen=True)
class Bits:
    """What a run leaves behind, to the last bit. Sequence numbers are per shard and not compared."""

    weights_sha256: str
    optimizer_sha256: str
    buffers_sha256: str  # of the policy: statistics of normalised observations
    ledger: dict[str, Any]
    episodes: list[Finished]


def bits_of(run: Run, episodes: list[Finished]) -> Bits:
    """All of it."""
    assert isinstance(run.source, Reader)
    ledger = run.source.ledger.encode()
    buffers = tensors_sha256(dict(run.weights.module.named_buffers()))
    return Bits(**run.hashes(), buffers_sha256=buffers, ledger=ledger, episodes=episodes)


@functools.cache
def calm(name: str) -> Bits:
    """The inline run that all others of that case are compared with; made once per session."""
    return CASES[name].play(**INLINE)
