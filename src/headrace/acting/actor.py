"""The actor: fills one slab after the other with its shard's experience. The same code in every topology.

    for each row: act on obs[t] with noise -> version · step -> obs[t+1]     then: look for NaN, note where it stands

It runs only what acting needs: log-probabilities and values are completed by the learner. Noise is drawn for the whole
slab in one call; the noise counter moves once per real transition, so invalid rows consume none.
Everything an actor must remember between two slabs is its `Carry` (the environments number their own episodes); with a
journal it can be rebuilt anywhere.
Does not know where slabs or weights come from, nor whether it runs in a thread, a process or inline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.acting.culprit import Culprit, is_finite
from headrace.clock import now_ns
from headrace.envs.vector_env import EnvFailure, LiveEpisode, VectorEnv
from headrace.memory.slab import Slab, Word
from headrace.memory.spaces import Leaves, empty_leaves
from headrace.policies.noise import CounterNoise

Array = npt.NDArray[Any]
Act = Callable[[int, Leaves, Array, Array], int]
"""(row, obs [B, ...], noise [B, width], out [B, ...]) -> the version of the policy that acted."""


@dataclass
class Carry:
    """What goes over from one slab to the next."""

    obs: Leaves
    noise_counter: npt.NDArray[np.int64]


@dataclass
class Spent:
    """Where an actor's time went, in nanoseconds."""

    env: int = 0
    inference: int = 0
    copy: int = 0


class Actor:
    """One shard's environments and the noise they are driven with."""

    def __init__(self, envs: VectorEnv, noise: CounterNoise, culprit: Culprit) -> None:
        self._envs = envs
        self._noise = noise
        self._culprit = culprit
        self._carry: Carry | None = None

    def begin(self) -> None:
        """Start every environment's first episode."""
        first = empty_leaves(self._envs.observation_space, self._envs.num_envs)
        try:
            self._envs.begin(first)
        except EnvFailure as failure:
            raise self._culprit.at_start(failure) from (failure.__cause__ or failure)
        self._culprit.check_first(first)
        self._carry = Carry(first, np.zeros(self._envs.num_envs, np.int64))

    def restore(self, live: Sequence[LiveEpisode], last_obs: Leaves, noise_counter: Array) -> None:
        """Go on after the last commit: replay the live episodes and check that they end where they did."""
        replayed = {name: np.empty_like(leaf) for name, leaf in last_obs.items()}
        try:
            self._envs.restore(live, replayed)
        except EnvFailure as failure:
            raise self._culprit.in_replay(failure, live) from (failure.__cause__ or failure)
        self._culprit.check_replayed(live, replayed, last_obs)
        self._carry = Carry(replayed, np.array(noise_counter, np.int64))

    def fill(self, slab: Slab, act: Act) -> Spent:
        """One rollout into a leased slab. The caller commits it."""
        carry = self._carry
        assert carry is not None, "begin or restore first"
        started = now_ns()
        slab.header[Word.STARTED_NS] = started
        for name, leaf in carry.obs.items():
            slab.obs[name][0] = leaf
        noise = self._noise.draw(carry.noise_counter, slab.schema.n_steps)
        t = 0

        def final(env: int, obs: dict[str, Any]) -> None:
            slab.record_final(t, env, obs)

        env_ns = act_ns = 0
        drawn = np.zeros(self._envs.num_envs, np.int64)  # real transitions in this slab so far
        everyone = np.arange(self._envs.num_envs)
        mark = now_ns()
        setup_ns = mark - started
        try:
            for t, row in enumerate(slab.rows):
                here = noise[drawn, everyone] if self._envs.skips_rows else noise[t]
                slab.version[t] = act(t, row.obs, here, row.action)
                acted = now_ns()
                self._envs.step(row, final)
                stepped = now_ns()
                if self._envs.skips_rows:
                    drawn += row.valid
                act_ns += acted - mark
                env_ns += stepped - acted
                mark = stepped
        except EnvFailure as failure:
            raise self._culprit.in_row(failure, slab, t) from (failure.__cause__ or failure)
        if not is_finite(slab):
            raise self._culprit.not_finite(slab, slab.schema.n_steps)
        counter = carry.noise_counter + (drawn if self._envs.skips_rows else slab.schema.n_steps)
        slab.noise_counter[:] = counter
        for name, leaf in carry.obs.items():
            leaf[...] = slab.last_obs[name]
        carry.noise_counter = counter
        return Spent(env_ns, act_ns, setup_ns + now_ns() - mark)

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()
