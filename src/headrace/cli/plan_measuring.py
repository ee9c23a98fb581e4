"""What `headrace plan --measure ENV` finds out: the numbers of a run of PPO, on this machine.

environment, policy, update --measured--> Job (for the sizing), steps/s of every place of this machine
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headrace.build import acting_policy, build_algorithm
from headrace.cli.options import env_kwargs
from headrace.cli.own_modules import find_own_modules
from headrace.cli.printing import passing
from headrace.collecting.topology import TopologyConfig
from headrace.envs.spec import EnvSpec
from headrace.launch.auto import cpus
from headrace.launch.prediction import Forecast, forecasts, look_at
from headrace.launch.rehearsal import Rehearsal, rehearse
from headrace.learning.config import PpoConfig
from headrace.memory.schema import rollout_schema
from headrace.memory.spaces import ObservationSpace, Space
from headrace.planning.link import observed_bytes, sent_bytes, transition_bytes
from headrace.planning.quantities import parse_rate
from headrace.planning.sizing import Job
from headrace.planning.throughput import vectorised
from headrace.policies.config import PolicyConfig
from headrace.policies.masks import built
from headrace.policies.policy import state_size_of
from headrace.presets import preset
from headrace.run_config import RunConfig

if TYPE_CHECKING:
    from headrace.cli.plan_command import PlanOptions

_N_ENVS, _N_STEPS = 8, 128


def measured_job(options: PlanOptions, env: str) -> tuple[Job, list[Forecast], float]:
    """The numbers of a run of PPO with this environment, what places of this machine would reach, bytes of weights."""
    chosen = preset(options.preset)

    def number(name: str, usual: int, given: int | None) -> int:
        return int(chosen.options.get(name, usual)) if given is None else given

    learning = PpoConfig(
        batch_size=number("batch_size", PpoConfig.batch_size, options.batch),
        n_epochs=number("n_epochs", PpoConfig.n_epochs, options.n_epochs),
    )
    place = TopologyConfig(
        n_envs=number("n_envs", _N_ENVS, options.n_envs), n_steps=number("n_steps", _N_STEPS, options.n_steps)
    )
    policy = chosen.options.get("policy", "auto") if options.policy is None else options.policy
    kwargs = chosen.env_kwargs | env_kwargs("{}" if options.env_kwargs is None else options.env_kwargs)
    spec = EnvSpec(env, kwargs, options.wrappers or chosen.wrappers)
    policy_config = PolicyConfig(policy=policy, net_arch=options.net_arch, action_masks=options.action_masks)
    config = RunConfig(spec, 1, policy_config, learning, place)
    find_own_modules(config.env.encode())
    passing(f"measuring {env} ...")
    weight_bytes, state_size = 0.0, 0

    def rehearsed(observation: ObservationSpace, action: Space) -> Rehearsal:
        nonlocal weight_bytes, state_size
        module = acting_policy(built(config.policy, observation, action, 0), config, observation, action)
        weight_bytes = float(sum(one.numel() * one.element_size() for one in module.parameters()))
        state_size = state_size_of(module)
        return rehearse(module, observation, action, place, 0, learning, build_algorithm)

    look = look_at(config.env, config.seed, place, rehearsed)
    passing("")
    measured, rollout = look.measured, place.n_envs * place.n_steps
    batch = min(learning.batch_size, rollout)  # a minibatch has no more rows than there are
    minibatches = math.ceil(rollout / batch) * learning.n_epochs
    schema = rollout_schema(look.observation, look.action, place.n_steps, place.n_envs, state_size)
    call_s = measured.policy.act_s  # for a row of all environments
    job = Job(
        batch,
        measured.policy.update_s / minibatches,
        vectorised(call_s, measured.step_s, place.n_envs),
        options.actors or 0,
        learning.n_epochs,
        rollout,
        sent_bytes(schema),
        parse_rate("--link", options.link),
        options.actor_price or 0,
        options.learner_price or 0,
        observed_bytes(schema),
        transition_bytes(schema),
    )
    return job, forecasts(measured, place, cpus()), weight_bytes
