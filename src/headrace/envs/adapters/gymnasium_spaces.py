"""Gymnasium spaces to descriptors; a space that headrace does not take is refused with what to do instead.

    Dict, Tuple of spaces, nested or not --describe_observation--> one Dict of named leaves: arm/joint, pair/0
    and back, for what takes Gymnasium's: as_gymnasium (one Dict, as policies see it), kept and nested (as it was)

Texts in a Dict or Tuple are left out, and the descriptor says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import (
    ClipReward,
    FrameStackObservation,
    OrderEnforcing,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
    TimeLimit,
    TransformReward,
)

from headrace.envs.successes import Watched
from headrace.errors import EnvError, UsageError
from headrace.memory.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    ObservationSpace,
    Space,
    bounds,
    in_short,
    size_of,
)

_BLIND = (ClipReward, TransformReward, TimeLimit, RecordEpisodeStatistics, OrderEnforcing, PassiveEnvChecker, Watched)
"""Wrappers that pass observations on as they are."""

_SEVERAL = (gym.spaces.Dict, gym.spaces.Tuple)


def describe_observation(
    space: gym.Space[Any] | None, where: str, env: gym.Env[Any, Any] | None = None
) -> ObservationSpace:
    """The descriptor of an observation space; `where` names the environment. Of an `env`, stacks of images are seen."""
    if isinstance(space, _SEVERAL):
        return _described(space, where)
    described = _array(space, "observation", where)
    if not isinstance(described, Box) or described.dtype != "uint8" or len(described.shape) < 3:
        return described
    is_image = (described.low, described.high) == ((0.0,), (255.0,))
    return replace(described, stack=_stack_of(env)) if is_image else described


def describe_action(space: gym.Space[Any] | None, where: str) -> Space:
    """The descriptor of an action space."""
    found = _array(space, "action", where)
    if not size_of(found):
        raise UsageError(f"{where}: expected at least one number in an action, got {in_short(found)}")
    return found


def _described(space: gym.Space[Any], where: str) -> Dict:
    """Every array in a space, depth first."""
    found = list(_ends(space, "", where))
    texts = [name for name, one in found if _is_text(one)]
    leaves = [(name, _array(one, "observation", f"{where}, {name}")) for name, one in found if name not in texts]
    if not leaves:
        raise UsageError(f"{where}: expected an array in its observations, got texts only; encode them in a wrapper")
    return Dict(tuple(leaves), tuple(texts))


def _ends(space: gym.Space[Any], path: str, where: str) -> Iterator[tuple[str, gym.Space[Any]]]:
    if not isinstance(space, _SEVERAL):
        yield path[:-1], space
        return
    parts = _parts(space)
    if not parts:
        raise UsageError(f"{where}: expected an array in observation {path!r}, got an empty {type(space).__name__}")
    for name, one in parts.items():
        if not isinstance(name, str) or not name or "/" in name or not name.isprintable():
            raise UsageError(f"{where}: expected names of observations to be texts without /, got {path}{name!r}")
        yield from _ends(one, f"{path}{name}/", where)


def _parts(space: gym.Space[Any]) -> dict[Any, gym.Space[Any]]:
    """The parts of a Dict or Tuple by name; a Tuple's are numbered."""
    if isinstance(space, gym.spaces.Dict):
        return dict(space.spaces)
    assert isinstance(space, gym.spaces.Tuple)
    return {str(number): one for number, one in enumerate(space.spaces)}


def _is_text(space: gym.Space[Any]) -> bool:
    """Gymnasium's Text, and spaces of an environment's own whose samples are texts, as MiniGrid's missions are."""
    if isinstance(space, gym.spaces.Text):
        return True
    return space.dtype is not None and np.dtype(space.dtype).kind == "U"


def _array(space: gym.Space[Any] | None, role: str, where: str) -> Space:
    match space:
        case gym.spaces.Box():
            if role == "action" and not np.issubdtype(space.dtype, np.floating):
                raise UsageError(
                    f"{where}: expected a float action Box, got dtype {space.dtype}; wrap it as MultiDiscrete"
                )
            return Box(tuple(space.shape), str(space.dtype), _bound(space.low), _bound(space.high))
        case gym.spaces.Discrete():
            return Discrete(int(space.n), int(space.start))
        case gym.spaces.MultiDiscrete():
            nvec, start = np.asarray(space.nvec), np.asarray(space.start)
            return MultiDiscrete(_ints(nvec), tuple(nvec.shape), _ints(start))
        case gym.spaces.MultiBinary():
            return MultiBinary(tuple(space.shape))
        case None:
            raise UsageError(f"{where}: it has no {role}_space; set self.{role}_space in its __init__")
    several = ", or a Dict or Tuple of them" if role == "observation" else ""
    advice = "convert it in a wrapper"
    if role == "observation":
        advice += ", or leave it out (in a Dict: gymnasium.wrappers.FilterObservation)"
    if _is_text(space):
        advice = "encode the text as numbers in a wrapper"
    raise UsageError(
        f"{where}: unsupported {role} space {type(space).__name__}; expected Box, Discrete, MultiDiscrete or "
        f"MultiBinary{several}; {advice}"
    )


def as_gymnasium(space: ObservationSpace) -> gym.Space[Any]:
    """A descriptor as Gymnasium's space, as policies see it: of several arrays, a Dict of their joined names."""
    match space:
        case Dict():
            return gym.spaces.Dict([(name, as_gymnasium(leaf)) for name, leaf in space.leaves])
        case Box():
            low, high = bounds(space)
            return gym.spaces.Box(low, high, space.shape, np.dtype(space.dtype).type)
        case Discrete():
            return gym.spaces.Discrete(space.n, start=space.start)
        case MultiDiscrete():
            nvec, start = (np.asarray(one).reshape(space.shape) for one in (space.nvec, space.start))
            return gym.spaces.MultiDiscrete(nvec, start=start)
    return gym.spaces.MultiBinary(space.shape)


def kept(space: gym.Space[Any]) -> gym.Space[Any]:
    """An observation space without the texts in it."""
    if not isinstance(space, _SEVERAL):
        return space
    parts = {name: kept(one) for name, one in _parts(space).items() if not _is_text(one)}
    return gym.spaces.Dict(parts) if isinstance(space, gym.spaces.Dict) else gym.spaces.Tuple(parts.values())


def nested(space: gym.Space[Any], seen: Any, path: str = "") -> Any:
    """Arrays by their joined names, as policies see them, nested as the space is; one array stays what it is."""
    if not isinstance(space, _SEVERAL):
        return seen[path[:-1]] if path else seen
    parts = {name: nested(one, seen, f"{path}{name}/") for name, one in _parts(space).items() if not _is_text(one)}
    return parts if isinstance(space, gym.spaces.Dict) else tuple(parts.values())


def require_alike(envs: Sequence[gym.Env[Any, Any]], env_indices: Sequence[int], where: str) -> None:
    """Refuse instances of one environment that have different spaces."""
    for index, env in zip(env_indices, envs, strict=True):
        for role in ("observation", "action"):
            expected, got = (getattr(one, f"{role}_space") for one in (envs[0], env))
            if expected is not got and expected != got:
                raise EnvError(
                    f"{where}: env {index} has the {role} space {got}, expected {expected}, as env {env_indices[0]}; "
                    f"all instances of an environment must have the same spaces"
                )


def _stack_of(env: gym.Env[Any, Any] | None) -> int:
    """How many frames the outermost wrapper stacks; those that do not touch observations may lie around it."""
    while type(env) in _BLIND:
        env = env.env  # type: ignore[union-attr]
    if type(env) is not FrameStackObservation or env.padding_type != "reset" or env.stack_size < 2:
        return 0
    return int(env.stack_size)


def _bound(bound: Any) -> tuple[float, ...]:
    flat = np.asarray(bound, np.float64).reshape(-1)
    return (float(flat[0]),) if flat.size and (flat == flat[0]).all() else tuple(float(x) for x in flat)


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(x) for x in np.asarray(values).reshape(-1))
