"""What a host is built from: plain data that can be sent to another thread or process.

    HostPlan --build_actor(shard, start)--> Actor over SerialEnvs (single environments) or GymnasiumVector (a pool)

One call serves the first start, a replaced worker, a resume, and moving to another topology: `start` says where the
shard stands (None: at its beginning).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.acting.actor import Actor
from headrace.acting.culprit import Culprit
from headrace.acting.inspection import Inspection
from headrace.acting.recurrent import RecurrentActor
from headrace.acting.start import begin, go_on
from headrace.envs.building import build_envs
from headrace.envs.seeds import Purpose, leaf
from headrace.envs.spec import EnvSpec
from headrace.envs.vector_env import VectorEnv
from headrace.episodes.standing import Standing
from headrace.errors import EnvError, HeadraceError
from headrace.inference.device_names import Device
from headrace.memory.crash_note import CrashNote
from headrace.memory.schema import STATE, Schema, state_leaf
from headrace.memory.spaces import ObservationSpace, Space
from headrace.policies.noise import CounterNoise
from headrace.policies.noise_spec import NoiseSpec

if TYPE_CHECKING:
    from headrace.policies.policy import Module  # a worker without a policy imports no torch


@dataclass(frozen=True)
class HostPlan:
    """All that hosts of a run need to be built anywhere."""

    env: EnvSpec
    seed: int
    shards: tuple[range, ...]
    schemas: tuple[Schema, ...]
    module: Module | None
    """The policy; None in a worker that asks a server."""
    noise: NoiseSpec
    observation: ObservationSpace
    action: Space
    tile: int
    pick_up_rows: int
    """Rows after which newer weights are looked for; 0: only at a slab's border, the version that the order names."""
    nan_policy: str = "raise"
    out_of_bounds: str = "warn"
    devices: tuple[Device | None, ...] = (None,)
    """Where the policy acts: here, or the servers in turn; None: on the CPU."""


def build_noise(noise: NoiseSpec, env_indices: range, seed: int, purpose: Purpose = Purpose.NOISE) -> CounterNoise:
    """Their action noise: two keys per environment."""
    return CounterNoise(noise, [(leaf(seed, purpose, env, 0), leaf(seed, purpose, env, 1)) for env in env_indices])


def build_actor(plan: HostPlan, shard: int, start: Standing | None, note: CrashNote | None = None) -> Actor:
    """A shard's actor, brought to where the shard stands."""
    indices = plan.shards[shard]
    envs = build_envs(plan.env, indices, plan.seed, nan_policy=plan.nan_policy, note=note)
    culprit = Culprit(indices, plan.env.seed_of(plan.seed, Purpose.ENV))
    try:
        _require_planned(plan, envs, indices)
        state = state_leaf(plan.schemas[shard].state_size, len(indices))
        if start is None:
            carry = begin(envs, culprit)
        else:
            last = dict(start.last_obs)
            state = {name: last.pop(name) for name in state}
            carry = go_on(envs, culprit, start.live, last, start.noise_counter)
    except BaseException:
        with suppress(HeadraceError):  # of what can't be closed either: what came first is what people should hear of
            envs.close()
        raise
    inspect = Inspection(culprit, envs, plan.out_of_bounds)
    parts = envs, build_noise(plan.noise, indices, plan.seed), culprit, carry, inspect
    return RecurrentActor(*parts, state=state[STATE]) if state else Actor(*parts)


def _require_planned(plan: HostPlan, envs: VectorEnv, env_indices: range) -> None:
    """Refuse environments that came out with other spaces here than where the run was planned."""
    for role, expected, got in (
        ("observation", plan.observation, envs.observation_space),
        ("action", plan.action, envs.action_space),
    ):
        if expected != got:
            raise EnvError(
                f"{plan.env.name}: env {env_indices.start} has the {role} space {got}, expected {expected}, as the one "
                f"that was built first; all instances of an environment must have the same spaces"
            )
