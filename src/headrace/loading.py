"""From what was read to what may be built: the one gate between a file and a run.

    Snapshot --admit--> its form is sound, its options are, it fits this machine, and what it names has consent
    Snapshot, parts of a built run --require_fit--> its arrays belong to this policy
    config.json of a run --admit_config--> its form is sound, and what it names has consent

Everything that loads goes through here before it builds: PPO.load, from_snapshot, eval, --resume, replay. Reads and
builds nothing itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from headrace.checkpoints.form import CONFIG, FormError, require_form, require_no_nan
from headrace.checkpoints.snapshot import Snapshot
from headrace.envs.consent import extractors_to_ask_for, parts_to_ask_for, require_consent
from headrace.envs.spec import EnvSource, EnvSpec
from headrace.errors import CheckpointError, HeadraceError
from headrace.memory import spaces
from headrace.memory.schema import rollout_schema
from headrace.policies.config import BUILT_IN, RECURRENT, Extractors
from headrace.policies.features import features_size
from headrace.policies.networks import name_for
from headrace.run_config import CLASS, decode, policy_of

_SMALL = 1 << 24  # weights that any machine has room for: `auto` may build another policy than net_arch describes
_PAGE = 4096
_EARLIER = "use an earlier checkpoint, or one from where this one came from"


@dataclass(frozen=True)
class Fit:
    """What a built run expects of a checkpoint's arrays."""

    shapes: Mapping[str, tuple[int, ...]]
    """Of the policy's parameters and buffers, by name."""
    num_published: int
    """Length of the published vector: parameters and floating-point buffers."""
    observation: spaces.ObservationSpace
    action: spaces.Space


def admit(
    snapshot: Snapshot,
    env: EnvSource | EnvSpec | None = None,
    trust: bool = False,
    named: EnvSpec | None = None,
    has_policy: bool = False,
) -> None:
    """Raise unless a run may be built from a snapshot.

    `env` takes the place of the saved environment, as in PPO.load: a whole EnvSpec of all of it, anything else of the
    environment alone. `named` is what the user typed, as in --resume: it takes the place of nothing, it is consent.
    `has_policy`: the user gave the policy, or its feature extractors, so that those of the file are not built.
    """
    require_sound(snapshot)
    origin = snapshot.origin
    if origin is None or trust or not origin.doubt:
        return
    config = snapshot.state["config"]
    saved = dict(config["env"])
    if env is not None:
        saved["env"] = None
    parts = [] if isinstance(env, EnvSpec) else parts_to_ask_for(saved, named)
    parts += [] if has_policy else extractors_to_ask_for(config["policy"])
    require_consent(parts, str(origin.source), origin.doubt)


def admit_config(
    config: Mapping[str, Any], source: str, doubt: str, env: EnvSource | EnvSpec | None = None, trust: bool = False
) -> None:
    """Raise unless the environment of a run's config.json may be built; `env` and `trust` as in `admit`.

    `doubt`: why it is not proved that this user wrote it; empty if it is.
    """
    try:
        CONFIG({name: value for name, value in config.items() if name != "session"}, "config")
    except FormError as error:
        raise CheckpointError(f"{source} can't be used: {error}") from error
    if trust or not doubt or isinstance(env, EnvSpec):
        return
    saved = dict(config["env"])
    if env is not None:
        saved["env"] = None
    require_consent(parts_to_ask_for(saved, None), source, doubt)


def is_admitted(snapshot: Snapshot, trust: bool = False) -> bool:
    """Whether the saved environment itself may be built."""
    origin = snapshot.origin
    return trust or origin is None or not origin.doubt or not parts_to_ask_for(snapshot.state["config"]["env"], None)


def require_fit(snapshot: Snapshot, fit: Fit, weights_only: bool) -> None:
    """Raise unless a snapshot's arrays have the shapes of this run's."""
    if snapshot.origin is None:
        return
    if not weights_only and _spaces(snapshot) != (fit.observation, fit.action):
        return  # another environment's: restoring it explains in which field they differ
    where = f"{snapshot.origin.source}: the checkpoint's parameters do not fit this policy"
    got = {name: tuple(tensor.shape) for name, tensor in snapshot.weights.items()}
    for name in sorted({*fit.shapes, *got}):
        if got.get(name) != fit.shapes.get(name):
            expected, found = fit.shapes.get(name, "none"), got.get(name, "none")
            raise CheckpointError(f"{where}: {name[:80]!r}: expected {expected}, got {found}; pass the policy it had")
    if weights_only:
        return
    published = snapshot.episodes.get("published")
    if published is not None and (published.shape != (fit.num_published,) or published.dtype != "float32"):
        raise CheckpointError(
            f"{snapshot.origin.source}/episodes.safetensors: published: expected {fit.num_published:,} float32 "
            f"numbers, got {published.dtype} of shape {published.shape}; {_EARLIER}"
        )


@contextmanager
def read_from(snapshot: Snapshot) -> Iterator[None]:
    """What the parts of a run find wrong with a checkpoint is said with the name of its directory."""
    try:
        yield
    except CheckpointError as error:
        if snapshot.origin is None:
            raise
        raise CheckpointError(f"{snapshot.origin.source}: {error}") from error


def require_sound(snapshot: Snapshot) -> None:
    """The form of every entry, the options by their own rules, and memory enough for what they ask for."""
    state = snapshot.state
    if snapshot.origin is None:  # made by this process
        return
    where = f"{snapshot.origin.source}/state.json"
    try:
        require_form(state, snapshot.episodes)
        for part, tensors in (("weights", snapshot.weights), ("optimizer", snapshot.optimizer)):
            for name, tensor in tensors.items():
                require_no_nan(f"{part}.{name[:80]}", tensor.numpy())
        _require_options(state["config"])
        _require_room(snapshot)
    except (FormError, HeadraceError) as error:
        raise CheckpointError(f"{where} can't be used: {error}; {_EARLIER}") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{where} can't be used: {type(error).__name__}: {error}; {_EARLIER}") from error


def _require_options(config: Mapping[str, Any]) -> None:
    """The options as their own rules see them; what was a function is given again later, so a number stands for it."""
    functions = {name: 0.1 for name, value in config["algorithm"].items() if isinstance(value, dict)}
    decode(dict(config), EnvSpec("Any-v0"), Extractors({}, {}), **functions)


def _require_room(snapshot: Snapshot) -> None:
    """Layers must be there as weights, and rollouts must fit into this machine: numbers alone may claim anything."""
    config = snapshot.state["config"]
    there = sum(tensor.numel() for tensor in snapshot.weights.values())
    policy, observation = config["policy"], _spaces(snapshot)[0]
    kind = policy_of(policy)
    is_cnn = name_for(kind, observation) == "CnnPolicy"
    has_own = CLASS in policy  # of which only the user's class knows the size
    inputs, usual = 1 if has_own else features_size(observation, kind), () if is_cnn and not has_own else (64, 64)
    if policy["policy"] in RECURRENT:
        width, layers = kind.lstm_hidden_size, kind.n_lstm_layers
        if 3 * layers * width**2 > there:
            raise FormError(f"config.policy: expected a memory of {there:,} weights, got {layers} x {width}")
        inputs = width
    for name in ("net_arch", "net_arch_vf"):
        sizes = usual if policy[name] is None else policy[name]
        claimed = sum(a * b for a, b in pairwise([inputs, *sizes])) + sum(sizes)
        if policy["policy"] in BUILT_IN and claimed > max(there, _SMALL):
            raise FormError(f"config.policy.{name}: expected layers of {there:,} weights, got {claimed:,}")
    topology = config["topology"]
    schema = rollout_schema(*_spaces(snapshot), topology["n_steps"], topology["n_envs"])
    pages = _PAGE * (topology["shards"] or 1)  # a slab begins on a page of its own
    needed = (topology["max_lag"] + 2) * (schema.size_bytes + pages + 4 * there)
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        raise FormError(
            f"config: n_steps, n_envs and max_lag ask for {needed:,} bytes of rollouts, this machine has {available:,}"
        )
    workers = topology["workers"]
    if workers != "auto" and int(workers) > 1024:
        raise FormError(f"config.topology.workers: expected at most 1024 from a file, got {workers[:20]}")


def _spaces(snapshot: Snapshot) -> tuple[spaces.ObservationSpace, spaces.Space]:
    state = snapshot.state
    return spaces.decode_observation(state["observation_space"]), spaces.decode(state["action_space"])
