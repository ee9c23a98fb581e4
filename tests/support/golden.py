"""Short runs whose results are recorded to the last bit, so that a change of all of them alike is seen too.

    RUNS[name].play(folder) ──> Parts: weights, optimiser, episodes, ledger, losses ... ──> golden_file.differences

    python -m support.golden --record                                        keeps what is not recorded on this machine
    python -m support.golden --record --replace "docs/decisions/N.md: why"   also replaces what differs by now

Does not know how runs are played (golden_training, golden_agents) or kept (golden_file).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import headrace as hr
from support import golden_schedules
from support.golden_agents import agents_model, agents_scripted
from support.golden_file import Golden, Parts, Refused, source_commit, tag_of
from support.golden_training import (
    collect,
    half_the_reward,
    judge,
    own_module,
    replay,
    resume,
    torch_threads,
    train,
)

CARTPOLE, PENDULUM = "CartPole-v1", "Pendulum-v1"
NOISY, PIXELS, LONG, PROBE = (f"support.bit_envs:{name}" for name in ("Noisy", "Pixels", "LongWalk", "Probe"))
RESETTING = "support.golden_training:self_resetting"
RELU = {"activation": "relu"}
SHORT: dict[str, Any] = {"max_episode_steps": 11}  # ends inside of rollouts and across them
LAGGING: dict[str, Any] = {"max_lag": 1, "pick_up_rows": 0}  # weights change between slabs: the pace alone decides

LLM_PACKAGES = ("transformers", "tokenizers")


@dataclass(frozen=True)
class GoldenRun:
    """A run, and the packages that its bits hang on beside the usual ones."""

    play: Callable[[Path], Parts]
    packages: tuple[str, ...] = ()


_TRAINED: dict[str, partial[Parts]] = {
    # policies and gradients
    "mlp_tanh": partial(
        train, env=CARTPOLE, updates=8, learning_rate="lin_5e-3", target_kl=0.004, n_epochs=4,
        session={"eval_every": 300, "n_eval_episodes": 3},
    ),
    "mlp_relu": partial(
        train, env=NOISY, gradients="closed_form", clip_range="lin_0.05", ent_coef="lin_0.02",
        policy_kwargs=RELU | {"net_arch": [32, 24, 16]},
    ),
    "autograd_tanh": partial(train, env=CARTPOLE, gradients="autograd", ent_coef=0.01, target_kl=1e-3),
    "autograd_relu": partial(train, env=NOISY, gradients="autograd", policy_kwargs=RELU, normalize_advantage=False),
    "cnn": partial(train, env=PIXELS, policy="CnnPolicy", env_kwargs={"limit": 9}, n_envs=5, n_epochs=1, updates=3),
    "own_module": partial(train, env=PENDULUM, policy=own_module, env_kwargs=SHORT, clip_range_vf=0.5),
    # spaces
    "box": partial(
        train, env=PENDULUM, env_kwargs=SHORT, clip_range_vf=0.5, gae_lambda=0.9, policy_kwargs={"log_std_init": -0.3},
    ),
    "box_float64": partial(train, env=PROBE, env_kwargs={"observation": "float64", "action": "box_float64"}),
    "multi_discrete": partial(train, env=PROBE, env_kwargs={"action": "multi_discrete_2d"}, vf_coef=0.3),
    "multi_binary_of_discrete": partial(
        train, env=PROBE, env_kwargs={"observation": "discrete", "action": "multi_binary"}, max_grad_norm=0.1
    ),
    "discrete_of_multi_discrete": partial(
        train, env=PROBE, env_kwargs={"observation": "multi_discrete", "action": "discrete_from_3"}
    ),
    "discrete_of_multi_binary": partial(train, env=PROBE, env_kwargs={"observation": "multi_binary"}, gamma=0.9),
    # ends of episodes
    "truncations": partial(train, env=LONG, env_kwargs={"limit": 5}, clip_range_vf=0.2, gradients="closed_form"),
    "next_step_resets": partial(train, env=RESETTING, env_kwargs={"mode": "NextStep"}, updates=5),
    "same_step_resets": partial(
        train, env=RESETTING, env_kwargs={"mode": "SameStep"}, topology="processes", workers=2, shards=3
    ),
    "dressed": partial(
        train, env=CARTPOLE, wrappers=(half_the_reward,), action_repeat=2, n_envs=7, clip_range=lambda left: 0.3 * left
    ),
    # places
    "shards": partial(train, env=NOISY, shards=5),
    "threads": partial(train, env=NOISY, topology="threads", workers=2, shards=3),
    "processes": partial(train, env=CARTPOLE, topology="processes", workers=2, shards=5, updates=5),
    "processes_of_images": partial(
        train, env=PIXELS, policy="CnnPolicy", env_kwargs={"limit": 6}, n_envs=5, n_epochs=1, updates=2,
        topology="processes", workers=2, shards=3,
    ),
    # older weights, without a schedule
    "lag_reject": partial(train, env=CARTPOLE, updates=6, late="reject", **LAGGING),
    "lag_weight": partial(train, env=NOISY, updates=6, late="weight", **LAGGING, topology="threads", workers=2),
    "lag_vtrace": partial(
        train, env=PENDULUM, env_kwargs=SHORT, updates=6, late="vtrace", **LAGGING | {"max_lag": 2}, shards=2
    ),
    "publish_every": partial(train, env=NOISY, updates=7, **LAGGING, publish_every=2, topology="processes", workers=2),
    # stopped and gone on with, in the middle of episodes
    "resume": partial(resume, env=LONG, env_kwargs={"limit": 45}, before=3, after=4, place={}),
    "resume_elsewhere": partial(
        resume, env=NOISY, before=3, after=3, publish_every=2, shards=3, place={"topology": "threads", "workers": 2}
    ),
}  # fmt: skip

RUNS: dict[str, GoldenRun] = {
    **{name: GoldenRun(play) for name, play in _TRAINED.items()},
    **{f"replay_{name}": GoldenRun(partial(replay, name)) for name in golden_schedules.RECORDINGS},
    "collector": GoldenRun(partial(collect, env=CARTPOLE, policy="MlpPolicy", shards=3)),
    "collector_own_module": GoldenRun(
        partial(collect, env=PENDULUM, policy=own_module, topology="threads", workers=2, env_kwargs=SHORT)
    ),
    "collector_next_step_resets": GoldenRun(
        partial(collect, env=RESETTING, policy="MlpPolicy", env_kwargs={"mode": "NextStep"})
    ),
    "predict_and_evaluate": GoldenRun(partial(judge, env=PENDULUM, n_envs=4, env_kwargs=SHORT)),
    "agents_scripted": GoldenRun(agents_scripted),
    "agents_model": GoldenRun(agents_model, LLM_PACKAGES),
}


# ------------------------------------------------------------------------------------------------------------ recording


def played(name: str) -> Parts:
    """A run's parts, from a folder that is gone afterwards; as JSON gives them back."""
    with tempfile.TemporaryDirectory() as folder, torch_threads(2):
        parts: Parts = json.loads(json.dumps(RUNS[name].play(Path(folder))))
        return parts


def record(decision: str) -> None:
    """Play everything twice and keep it under this machine's tags."""
    commit, golden = source_commit(Path(hr.__file__)), Golden()
    by_tag: dict[str, dict[str, Parts]] = {}
    for name, run in RUNS.items():
        parts = played(name)
        if parts != played(name):
            raise Refused(f"{name}: two runs gave different results, so nothing is recorded")
        by_tag.setdefault(tag_of(run.packages), {})[name] = parts
        print(f"{name}: played twice", flush=True)
    for tag, results in by_tag.items():
        print(
            f"{tag}\n  kept from {commit}: {', '.join(golden.record(tag, results, commit, decision)) or 'nothing new'}"
        )


def main() -> int:
    """Record, or say why not."""
    parser = argparse.ArgumentParser(prog="python -m support.golden", description="Record golden results.")
    parser.add_argument("--record", action="store_true", required=True, help="keep results that are not recorded yet")
    parser.add_argument("--replace", default="", metavar="DECISION", help="docs/decisions/NNNN-title.md: why")
    try:
        record(parser.parse_args().replace)
    except Refused as refused:
        print(f"refused: {refused}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
