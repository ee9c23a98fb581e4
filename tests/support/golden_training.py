"""How golden runs are played: trained, resumed, replayed, collected from, evaluated; and what is kept of them.

    train, resume, replay ──> run directory ──parts_of──> Parts: weights, optimiser, episodes, ledger, losses
    collect ──> digests of every field of its batches      judge ──> digests of returns and actions

Only what users reach is used: hr.PPO, hr.Collector, hr.evaluate_policy, the command line, files of a run directory.
Does not know which runs there are (golden) or where results are kept (golden_file).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn

import headrace as hr
from support import golden_schedules
from support.command import run as run_command
from support.golden_file import Parts, array_digest, digest

SEED = 41
EPISODE = ("env_index", "episode", "total_reward", "length", "terminated", "steps")
SERIES = ("train/", "rollout/", "eval/")
BATCH = (
    "obs", "action", "reward", "terminated", "truncated", "valid", "log_prob", "value", "bootstrap_value", "episode",
    "step", "version",
)  # fmt: skip


# --------------------------------------------------------------------------------------------------------- what is kept


@contextmanager
def no_report() -> Iterator[None]:
    """It takes longer than these runs."""
    with mock.patch("headrace.views.report.write_report"):
        yield


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """What a user's program has set, or the number of cores: bits of what runs inside must not depend on it.

    Initial weights still do, by an orthogonal decomposition. So models are built with one thread, and everything else
    runs with two, on a machine of any size.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def parts_of(run_dir: Path) -> Parts:
    """Everything that a run directory says about bits."""
    result = json.loads((run_dir / "result.json").read_text())
    episodes = [json.loads(line) for line in (run_dir / "episodes.jsonl").read_text().splitlines()]
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    series = sorted({key for record in records for key in record if key.startswith(SERIES)})
    return {
        **{name: result[name] for name in ("weights_sha256", "optimizer_sha256", "steps", "updates", "ledger")},
        "episodes": {"count": len(episodes), "digest": digest([[one[key] for key in EPISODE] for one in episodes])},
        "losses": {key: digest([record.get(key) for record in records]) for key in series},
    }


# ------------------------------------------------------------------------------------------------------------- training


def options_of(**options: Any) -> dict[str, Any]:
    """A few hundred steps; 13 environments, which no number of workers divides; minibatches that do not fit either.

    The learning rate is high, so that actions, and with them episodes, soon depend on what was learned.
    """
    rollout: dict[str, Any] = {"n_envs": 13, "n_steps": 8, "topology": "inline"}
    return rollout | {"learning_rate": 5e-3, "batch_size": 40, "n_epochs": 2, "seed": SEED} | options


def built(policy: str | nn.Module, env: Any, **options: Any) -> hr.PPO:
    """A model before its first update."""
    with torch_threads(1):
        return hr.PPO(policy, env, **options)


def train(
    folder: Path,
    env: Any,
    policy: str | Callable[[], nn.Module] = "MlpPolicy",
    updates: int = 4,
    session: dict[str, Any] | None = None,
    **options: Any,
) -> Parts:
    """Learn from the start."""
    options = options_of(**options)
    module = policy if isinstance(policy, str) else policy()
    with no_report(), built(module, env, **options) as model:
        model.learn(updates * options["n_envs"] * options["n_steps"], run_dir=folder, **session or {})
    return parts_of(folder)


def resume(folder: Path, env: str, before: int, after: int, place: dict[str, Any], **options: Any) -> Parts:
    """Learn, let everything go, load, learn on: one run directory."""
    options = options_of(**options)
    per_update = options["n_envs"] * options["n_steps"]
    with no_report():
        with built("MlpPolicy", env, **options) as model:
            model.learn(before * per_update, run_dir=folder)
        with hr.PPO.load(folder, **place) as model:
            model.learn(after * per_update, run_dir=folder)
    return parts_of(folder)


def replay(name: str, folder: Path, schedule: Path | None = None) -> Parts:
    """An asynchronous run's schedule, inline, by the command line."""
    with torch_threads(1):
        outcome = run_command(*golden_schedules.arguments(name, folder / "run", schedule), cwd=folder)
    assert outcome.code == 0, outcome.err
    return parts_of(folder / "run")


class OwnGaussian(nn.Module):
    """A user's own policy for Pendulum: one body, a residual, a buffer that scales observations."""

    noise = hr.NoiseSpec("normal", 1)
    largest_tile = 16

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([1.0, 1.0, 0.125]))
        self.into, self.mix, self.heads = nn.Linear(3, 24), nn.Linear(24, 24), nn.Linear(24, 2)
        self.log_std = nn.Parameter(torch.full((1,), -0.5))

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        mean = self._outputs(obs)[:, :1]
        return mean if noise is None else mean + self.log_std.exp() * noise

    def evaluate(self, obs: Tensor, actions: Tensor) -> hr.Evaluation:
        out = self._outputs(obs)
        normal = torch.distributions.Normal(out[:, :1], self.log_std.exp().expand(len(out), 1))
        return hr.Evaluation(normal.log_prob(actions).sum(-1), normal.entropy().sum(-1), out[:, 1])

    def value(self, obs: Tensor) -> Tensor:
        return self._outputs(obs)[:, 1]

    def _outputs(self, obs: Tensor) -> Tensor:
        x = nn.functional.silu(self.into(obs * self.scale))
        return self.heads(x + torch.tanh(self.mix(x)))


def own_module() -> nn.Module:
    """Initialised from a seed, without a trace in torch's global generator."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return OwnGaussian()


def self_resetting(num_envs: int, mode: str) -> gym.vector.VectorEnv[Any, Any, Any]:
    """Class B: a vector environment that resets itself, in the next row, which is then no transition, or at once."""
    return gym.make_vec("CartPole-v1", num_envs, "sync", vector_kwargs={"autoreset_mode": AutoresetMode(mode)})


def half_the_reward(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """A wrapper of a user's own."""
    return gym.wrappers.TransformReward(env, lambda reward: 0.5 * float(reward))


# ------------------------------------------------------------------------------------------- collecting and evaluating


def collect(folder: Path, env: str, policy: str | Callable[[], nn.Module], **options: Any) -> Parts:
    """A learner of the user's own, whose update is a little arithmetic. Rows that are no transition do not count."""
    found: dict[str, list[Any]] = {name: [] for name in (*BATCH, "last_value")}
    module = policy if isinstance(policy, str) else policy()
    options = {"n_envs": 13, "n_steps": 8, "seed": SEED, "topology": "inline"} | options
    with torch_threads(1):
        rollouts = hr.Collector(env, module, **options)
    with rollouts as one:
        learned = copy.deepcopy(one.policy)
        for number, batch in enumerate(islice(one, 5)):
            valid = np.array(batch.valid)
            for name in BATCH:
                values = np.array(getattr(batch, name))
                found[name].append(values if name == "valid" else values[valid])
            found["last_value"].append(np.array(batch.last_value))
            push = float(np.where(valid, batch.reward, 0.0).sum()) / 512.0
            with torch.no_grad():
                for parameter in learned.parameters():
                    parameter.add_(push * parameter)
            if number != 2:  # once nothing new is published
                one.publish(learned)
        ledger = one.ledger
    return {
        "batches": {name: array_digest(arrays) for name, arrays in found.items()},
        "learned": array_digest(parameter.detach().numpy() for parameter in learned.parameters()),
        "ledger": ledger,
    }


def judge(folder: Path, env: str, **options: Any) -> Parts:
    """Evaluations and predictions of a model that was trained a little, and of the same one from its files."""
    options = options_of(**options)
    parts: Parts = {}
    with no_report(), built("MlpPolicy", env, **options) as model:
        model.learn(3 * options["n_envs"] * options["n_steps"], run_dir=folder)
        parts["trained"] = acted(model)
    with hr.PPO.load(folder, weights_only=True) as model:
        parts["loaded"] = acted(model)
    return parts


def acted(model: hr.PPO) -> Parts:
    """What it does, alone and in company, at its best and by chance."""
    obs = np.random.default_rng(SEED).normal(size=(21, 3)).astype(np.float32)
    parts: Parts = {}
    for kind, is_best in (("deterministic", True), ("sampled", False)):
        returns = hr.evaluate_policy(model, n_eval_episodes=5, deterministic=is_best, return_episode_rewards=True)
        parts[f"returns_{kind}"] = digest(returns)
        rows = [obs, obs[:1], obs[5], obs]
        parts[f"actions_{kind}"] = array_digest(model.predict(one, deterministic=is_best)[0] for one in rows)
    return parts
