"""The actor: fills one slab after the other with its shard's experience. The same code in every topology.

    lease -> for each row: act on obs[t] with noise -> send -> step -> obs[t+1] -> number the rows -> check -> commit

It runs only what acting needs: log-probabilities and values are completed by the reader. Noise is drawn for the whole
slab in one call; the noise counter moves once per real transition, so invalid rows consume none.
Everything an actor must remember between two slabs is its `Carry`; with a journal it can be rebuilt anywhere.
Does not know where slabs or weights come from, nor whether it runs in a thread, a process or inline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.clock import now_ns
from headrace.envs.vector_env import EnvFailure, LiveEpisode, VectorEnv
from headrace.episodes.counting import Counters, number_rows
from headrace.errors import EnvError, NumericsError, ReplayError
from headrace.memory.slab import Slab, Word
from headrace.policies.noise import CounterNoise

Array = npt.NDArray[Any]
Act = Callable[[Array, Array, Array], None]  # obs [B, ...], noise [B, width], out [B, ...]
VersionAt = Callable[[int], int]  # row -> the version `act` runs from that row on, loaded when it is another one


@dataclass
class Carry:
    """What goes over from one slab to the next."""

    obs: Array
    counters: Counters
    noise_counter: npt.NDArray[np.int64]


@dataclass
class Spent:
    """Where an actor's time went, in nanoseconds."""

    env: int = 0
    inference: int = 0
    copy: int = 0


class Actor:
    """One shard's environments and the noise they are driven with."""

    def __init__(
        self,
        envs: VectorEnv,
        noise: CounterNoise,
        as_sent: Callable[[Array], Array],
        env_indices: range,
        seed_of: Callable[[int, int], int],
    ) -> None:
        self._envs = envs
        self._noise = noise
        self._as_sent = as_sent
        self._indices = env_indices
        self._seed_of = seed_of
        self._carry: Carry | None = None
        self.spent = Spent()

    def begin(self, first: Array) -> None:
        """Start every environment's first episode; `first` is scratch of last_obs' shape that the actor keeps."""
        counters = Counters.start(self._envs.num_envs)
        try:
            self._envs.begin(first)
        except EnvFailure as failure:
            raise self._located(failure, counters) from (failure.__cause__ or failure)
        if first.dtype.kind == "f" and not np.isfinite(first).all():
            env = int(np.flatnonzero(~np.isfinite(first).reshape(len(first), -1).all(1))[0])
            raise NumericsError(f"{self._named(env, 0, 0)}: the first observation is {first[env].tolist()}")
        self._carry = Carry(first, counters, np.zeros(self._envs.num_envs, np.int64))

    def restore(self, live: Sequence[LiveEpisode], last_obs: Array, noise_counter: Array) -> None:
        """Go on after the last commit: replay the live episodes and check that they end where they did."""
        episode = np.array([one.episode for one in live], np.int64)
        counters = Counters(episode, np.array([len(one.actions) for one in live], np.int64))
        replayed = np.empty_like(last_obs)
        try:
            self._envs.restore(live, replayed)
        except EnvFailure as failure:
            raise self._located(failure, counters) from (failure.__cause__ or failure)
        for one, ours, theirs in zip(live, replayed, last_obs, strict=True):
            if ours.tobytes() != theirs.tobytes():
                raise ReplayError(
                    f"env {one.env_index}, episode {one.episode}, seed {one.seed}: after {len(one.actions)} replayed "
                    f"steps the observation is not the one that was recorded; the environment is not deterministic "
                    f"(headrace check tells) or its code or version changed"
                )
        self._carry = Carry(replayed, counters, np.array(noise_counter, np.int64))

    def fill(self, slab: Slab, act: Act, version_at: VersionAt) -> None:
        """One rollout into a leased slab. The caller commits it."""
        carry = self._carry
        assert carry is not None, "begin or restore first"
        started = now_ns()
        slab.header[Word.STARTED_NS] = started
        slab.obs[0] = carry.obs
        noise = self._noise.draw(carry.noise_counter, slab.schema.n_steps)
        row_index = 0

        def final(env: int, obs: Any) -> None:
            slab.record_final(row_index, env, obs)

        env_ns = act_ns = 0
        drawn = np.zeros(self._envs.num_envs, np.int64)  # real transitions in this slab so far
        everyone = np.arange(self._envs.num_envs)
        mark = now_ns()
        setup_ns = mark - started
        try:
            for row_index, row in enumerate(slab.rows):
                slab.version[row_index] = version_at(row_index)
                act(row.obs, noise[drawn, everyone] if self._envs.skips_rows else noise[row_index], row.action)
                acted = now_ns()
                self._envs.step(self._as_sent(row.action), row, final)
                stepped = now_ns()
                if self._envs.skips_rows:
                    drawn += row.valid
                act_ns += acted - mark
                env_ns += stepped - acted
                mark = stepped
        except EnvFailure as failure:
            self._look_for_nan(slab, row_index, carry.counters)
            raise self._failed_at(failure, slab, row_index, carry.counters) from (failure.__cause__ or failure)
        after = number_rows(slab.terminated, slab.truncated, slab.valid, carry.counters, slab.episode, slab.step)
        self._look_for_nan(slab, slab.schema.n_steps, carry.counters)
        counter = carry.noise_counter + (drawn if self._envs.skips_rows else slab.schema.n_steps)
        slab.noise_counter[:] = counter
        carry.obs[...] = slab.last_obs
        self._carry = Carry(carry.obs, after, counter)
        self.spent.env += env_ns
        self.spent.inference += act_ns
        self.spent.copy += setup_ns + now_ns() - mark

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    def _look_for_nan(self, slab: Slab, rows: int, before: Counters) -> None:
        """Name the first step whose reward or observation is not finite; rows beyond `rows` were not written."""
        floats = slab.obs.dtype.kind == "f"
        obs_fine = not floats or (bool(np.isfinite(slab.obs[:rows]).all()) and bool(np.isfinite(slab.last_obs).all()))
        if floats and not np.isfinite(slab.final_obs).all():
            bad = ~np.isfinite(slab.final_obs).reshape(slab.final_count, -1).all(1)
            t, env = divmod(int(slab.final_row[bad][0]), slab.schema.n_envs)
            raise NumericsError(f"{self._place(env, slab, t, before)}: the final observation has NaN or infinity")
        if rows == slab.schema.n_steps and obs_fine and bool(np.isfinite(slab.reward).all()):
            return
        next_obs = [*slab.obs[1:rows], slab.last_obs] if rows == slab.schema.n_steps else [*slab.obs[1 : rows + 1]]
        for t in range(rows):
            bad = ~np.isfinite(slab.reward[t])
            if bad.any():
                env = int(np.flatnonzero(bad)[0])
                raise NumericsError(
                    f"{self._place(env, slab, t, before)}: the reward is {slab.reward[t, env]}; "
                    f"expected a finite number. Mend the environment or clip in a wrapper"
                )
            if floats and t < len(next_obs):
                bad = ~np.isfinite(next_obs[t]).reshape(len(bad), -1).all(1)
                if bad.any():
                    env = int(np.flatnonzero(bad)[0])
                    raise NumericsError(
                        f"{self._place(env, slab, t, before)}: the observation that followed has NaN or infinity: "
                        f"{next_obs[t][env].tolist()}. Mend the environment or clip in a wrapper"
                    )

    def _place(self, env: int, slab: Slab, t: int, before: Counters) -> str:
        """Env index, episode id, seed and step of row t, from the flags of the rows before it."""
        rows = t + 1
        episode, step = np.zeros((rows, slab.schema.n_envs), np.int64), np.zeros((rows, slab.schema.n_envs), np.int64)
        flags = (slab.terminated[:rows].copy(), slab.truncated[:rows].copy(), slab.valid[:rows].copy())
        flags[0][t], flags[1][t], flags[2][t] = False, False, True  # the row itself may be half written
        number_rows(*flags, before, episode, step)
        return self._named(env, int(episode[t, env]), int(step[t, env]))

    def _named(self, env: int, episode: int, step: int) -> str:
        index = self._indices[env]
        return f"env {index}, episode ({index}, {episode}), seed {self._seed_of(index, episode)}, step {step}"

    def _failed_at(self, failure: EnvFailure, slab: Slab, t: int, before: Counters) -> EnvError:
        return EnvError(f"{self._place(failure.position, slab, t, before)}: the environment {failure.reason}")

    def _located(self, failure: EnvFailure, counters: Counters) -> EnvError:
        env = failure.position
        place = self._named(env, int(counters.episode[env]), int(counters.step[env]))
        return EnvError(f"{place}: the environment {failure.reason}")
