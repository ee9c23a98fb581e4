"""Runs whose bits are compared: what is run, how far, and everything that must come out the same.

    Workload --play--> Trace (weights, optimiser, ledger, statistics, episodes, losses)
    Workload --play_to--> checkpoint --go_on, here or in a fresh process--> Trace

As a program it is that fresh process: JSON {checkpoint path: workload name} on stdin, traces on stdout.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

import headrace as hr
from headrace.envs.adapters.gymnasium_spaces import describe_action, describe_observation
from support.bit_envs import Probe
from support.toy_policies import own_policy

UPDATES = 20
SEED = 11
TESTS = Path(__file__).parents[1]


def _own_policy() -> nn.Module:
    env = Probe("vector", "box_2d")
    return own_policy(describe_observation(env.observation_space, "Probe"), describe_action(env.action_space, "Probe"))


@dataclass(frozen=True, eq=False)
class Workload:
    """A run in a few words; everything else is a default of PPO."""

    name: str
    env: str
    n_envs: int
    n_steps: int
    batch_size: int
    n_epochs: int = 2
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    policy: str | Callable[[], nn.Module] = "MlpPolicy"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total_timesteps(self) -> int:
        """What schedules run out at: the end of the last update."""
        return UPDATES * self.n_envs * self.n_steps

    def start(self, seed: int = SEED, shards: int = 1, **changed: Any) -> hr.PPO:
        """The model, before its first update."""
        options = {
            "topology": "inline",  # what auto finds depends on how busy the machine is
            "n_envs": self.n_envs,
            "n_steps": self.n_steps,
            "batch_size": self.batch_size,
            "n_epochs": self.n_epochs,
            **self.options,
            **changed,
        }
        policy = self.policy if isinstance(self.policy, str) else self.policy()
        return hr.PPO(policy, self.env, env_kwargs=self.env_kwargs, seed=seed, shards=shards, **options)

    def load(self, path: Path) -> hr.PPO:
        """The model from a checkpoint; a module of the user's own has to be given again."""
        return hr.PPO.load(path, policy=None if isinstance(self.policy, str) else self.policy())


# The five of issue 2, then one for each other kind of action. Among them: minibatches that do and do not divide the
# rollout, schedules, clipped values, early stopping, tanh and relu, both kinds of gradients, a user's own module.
WORKLOADS = {
    one.name: one
    for one in (
        Workload("mlp", "CartPole-v1", 64, 16, 250, options={"learning_rate": "lin_5e-3", "target_kl": 0.005}),
        Workload("cnn", "support.bit_envs:Pixels", 16, 8, 32, 1, policy="CnnPolicy", options={"ent_coef": "lin_0.02"}),
        Workload("continuous", "Pendulum-v1", 16, 16, 64, options={"clip_range_vf": 0.5, "gae_lambda": 0.9}),
        Workload(
            "noisy",
            "support.bit_envs:Noisy",
            16,
            16,
            100,
            options={"clip_range": "lin_0.3", "policy_kwargs": {"activation": "relu"}},
        ),
        Workload("nested", "support.dict_envs:Nested", 10, 8, 32, policy="MultiInputPolicy", env_kwargs={"side": 6}),
        Workload("long", "support.bit_envs:LongWalk", 15, 8, 64, options={"gradients": "autograd"}),
        Workload("multi_discrete", "support.bit_envs:Probe", 10, 12, 64, env_kwargs={"action": "multi_discrete_2d"}),
        Workload(
            "multi_binary",
            "support.bit_envs:Probe",
            10,
            12,
            64,
            env_kwargs={"observation": "discrete", "action": "multi_binary"},
            options={"normalize_advantage": False, "max_grad_norm": 0.1},
        ),
        Workload(
            "own_policy", "support.bit_envs:Probe", 13, 12, 64, env_kwargs={"action": "box_2d"}, policy=_own_policy
        ),
        Workload(
            "masked", "support.bit_envs:Hand", 10, 12, 64,
            options={"action_masks": True, "norm_obs": True, "norm_reward": True, "ent_coef": 0.01},
        ),
        Workload(
            "masked_lstm", "support.bit_envs:Hand", 10, 12, 64, policy="MlpLstmPolicy",
            options={"action_masks": True, "norm_obs": True, "policy_kwargs": {"lstm_hidden_size": 8}},
        ),
        Workload(
            "normalized", "support.bit_envs:Probe", 13, 12, 64, env_kwargs={"action": "box_2d"}, policy=_own_policy,
            options={"norm_obs": True, "norm_reward": True},
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Trace:
    """What a run leaves behind, to the last bit. Sequence numbers are per shard and are looked at in the ledger."""

    weights_sha256: str
    optimizer_sha256: str
    ledger: dict[str, Any]
    statistics: dict[str, Any]
    episodes: list[dict[str, Any]]
    losses: list[dict[str, float]]

    def after(self, earlier: Part) -> Trace:
        """This one, with what an earlier part of the run saw put before it."""
        return Trace(
            **asdict(self) | {"episodes": earlier.episodes + self.episodes, "losses": earlier.losses + self.losses}
        )


@dataclass
class Part:
    """What some updates of a run showed."""

    episodes: list[dict[str, Any]] = field(default_factory=list)
    losses: list[dict[str, float]] = field(default_factory=list)


def advance(model: hr.PPO, workload: Workload, updates: int) -> Part:
    """That many updates."""
    part = Part()
    for _ in range(updates):
        update = model.run.update(workload.total_timesteps)
        part.episodes += [one._asdict() for one in update.harvest.finished]
        part.losses.append({key: value for key, value in update.record.items() if key.startswith("train/")})
    return part


def trace_of(model: hr.PPO, part: Part) -> Trace:
    """The trace of a run that has come to its end."""
    assert set(model.parts.reader.numbering.next) == {model.run.updates}, "every shard gave one slab to every update"
    return Trace(
        **model.run.hashes(),
        ledger=model.parts.reader.ledger.encode(),
        statistics=model.parts.reader.snapshot()[0]["statistics"],
        episodes=part.episodes,
        losses=part.losses,
    )


def play(workload: Workload, updates: int = UPDATES, **start: Any) -> Trace:
    """A calm run from its start."""
    with workload.start(**start) as model:
        return trace_of(model, advance(model, workload, updates))


@functools.cache
def calm(name: str) -> Trace:
    """The run that all others of that workload are compared with; made once per session."""
    return play(WORKLOADS[name])


def play_to(path: Path, workload: Workload, updates: int, **start: Any) -> Part:
    """Run, save, and let everything go."""
    with workload.start(**start) as model:
        part = advance(model, workload, updates)
        model.save(path)
    return part


def go_on(path: Path, workload: Workload, updates: int = UPDATES) -> Trace:
    """From a checkpoint to the given update."""
    with workload.load(path) as model:
        return trace_of(model, advance(model, workload, updates - model.run.updates))


def go_on_in_fresh_process(checkpoints: Mapping[Path, Workload]) -> dict[Path, Trace]:
    """The same in one new Python process, whose hash seed, memory and import order are not ours."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "support.bit_runs"],
        input=json.dumps({str(path): workload.name for path, workload in checkpoints.items()}),
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "PYTHONHASHSEED": "1"},
        cwd=TESTS,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {Path(path): Trace(**trace) for path, trace in json.loads(done.stdout).items()}


if __name__ == "__main__":
    wanted = json.load(sys.stdin)
    json.dump({path: asdict(go_on(Path(path), WORKLOADS[name])) for path, name in wanted.items()}, sys.stdout)
