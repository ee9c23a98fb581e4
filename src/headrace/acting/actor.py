"""The actor: fills one slab after the other with its shard's experience. The same code in every topology.

    for each row: act on obs[t] with noise -> version · step -> obs[t+1]     then: inspect, note where it stands

It runs only what acting needs: log-probabilities and values are completed by the learner. Noise is drawn for the whole
slab in one call; the noise counter moves once per real transition, so invalid rows consume none.
Everything an actor must remember between two slabs is its `Carry` (the environments number their own episodes); with a
journal it can be rebuilt anywhere (start).
Does not know where slabs or weights come from, nor whether it runs in a thread, a process or inline.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.acting.culprit import Culprit
from headrace.acting.inspection import Inspection
from headrace.acting.stacked import Act, end_stacks, keeping
from headrace.acting.start import Carry
from headrace.clock import now_ns, thread_cpu_ns
from headrace.envs.vector_env import EnvFailure, VectorEnv
from headrace.memory.layout import Word
from headrace.memory.slab import Slab
from headrace.policies.noise import CounterNoise


class Actor:
    """One shard's environments and the noise they are driven with."""

    def __init__(
        self,
        envs: VectorEnv,
        noise: CounterNoise,
        culprit: Culprit,
        carry: Carry,
        inspect: Inspection | None = None,
    ) -> None:
        self._envs, self._noise, self._culprit, self._carry = envs, noise, culprit, carry
        self._inspect = inspect or Inspection(culprit, envs)

    def fill(self, slab: Slab, act: Act) -> None:
        """One rollout into a leased slab. The caller commits it."""
        carry = self._carry
        started, cpu_started = now_ns(), thread_cpu_ns()
        slab.header[Word.STARTED_NS] = started
        for name, leaf in carry.obs.items():
            slab.rows[0].obs[name][...] = leaf
        if slab.stacks is not None:
            act = keeping(slab.stacks, act)
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
        except Exception as error:
            earlier = self._culprit.earlier(slab, t)
            if earlier is None:
                raise
            raise earlier from error  # the policy failed, for a NaN that it was given
        if slab.stacks is not None:
            end_stacks(slab, slab.stacks, self._culprit)
        self._inspect(slab)
        counter = carry.noise_counter + (drawn if self._envs.skips_rows else slab.schema.n_steps)
        slab.noise_counter[:] = counter
        for name, leaf in carry.obs.items():
            leaf[...] = slab.rows[-1].next_obs[name]
        carry.noise_counter = counter
        slab.step_ns[:] = self._envs.step_ns
        slab.header[Word.ENV_NS : Word.IDLE_NS] = env_ns, act_ns, setup_ns + now_ns() - mark
        slab.header[Word.CPU_NS] = thread_cpu_ns() - cpu_started

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()
