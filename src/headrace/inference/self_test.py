"""The start-up test of a policy: that a row's action depends neither on its place in a tile nor on its neighbours.

    made-up observations, in order, shuffled, and in a short tile --LocalInference--> the same bits, or a clear error

Looked at are actions and the numbers behind them: rounding that another place changes may not show in an argmax today,
and will in some later step of the run. Runs once, on this machine, with the policy that is about to act.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.errors import HeadraceError
from headrace.inference.local import LocalInference
from headrace.memory.spaces import Box, Discrete, Leaves, MultiBinary, Space, as_seen, bounds, leaves_of, shape_of
from headrace.policies.networks import as_policy
from headrace.policies.policy import Module

Array = npt.NDArray[Any]


def self_test(module: Module, observation: Space, action: Space, tile: int) -> None:
    """Raise unless rows come out bit for bit the same at any place in a tile and among any neighbours."""
    rng = np.random.default_rng(0)
    policy, inference = as_policy(module), LocalInference(module, observation, action, tile)
    obs = {name: plausible(leaf, rng, 2 * tile) for name, leaf in leaves_of(observation).items()}
    noise = rng.standard_normal((2 * tile, policy.noise.width)).astype(np.float32)
    order = rng.permutation(2 * tile)

    def acted(rows: Array | slice) -> Array:
        out = np.zeros((len(noise[rows]), *shape_of(action)), action.dtype)
        inference.act(_picked(obs, rows), noise[rows], out)
        return out

    def numbers(rows: Array | slice) -> Array:
        return _numbers(inference, module, _picked(obs, rows), action, tile)

    everything, short = slice(None), slice(tile - 1)
    whole, behind = acted(everything), numbers(everything)
    if not (_same(acted(order), whole[order]) and _same(acted(short), whole[short])
            and _same(numbers(order), behind[order])):  # fmt: skip
        raise HeadraceError(
            f"{type(policy).__name__}: the same observation gave other numbers at another place in a tile of "
            f"{tile}; runs could not be repeated. Choose another tile size (4 to 64), and keep batch "
            f"statistics and own randomness out of act()"
        )


def plausible(space: Space, rng: np.random.Generator, count: int) -> Array:
    """Made-up rows that lie in the space."""
    shape = (count, *shape_of(space))
    match space:
        case Box():
            low, high = (
                np.clip(bound.astype(np.float64), -3, 3) if space.dtype != "uint8" else bound for bound in bounds(space)
            )
            return rng.uniform(low, high, shape).astype(space.dtype)
        case Discrete():
            return rng.integers(space.start, space.start + space.n, shape).astype(space.dtype)
        case MultiBinary():
            return rng.integers(0, 2, shape).astype(space.dtype)
    start = np.asarray(space.start).reshape(space.shape)
    return (start + rng.integers(0, np.asarray(space.nvec).reshape(space.shape), shape)).astype(space.dtype)


def _numbers(inference: LocalInference, module: Module, obs: Leaves, action: Space, tile: int) -> Array:
    """What lies behind the actions of whole tiles: the head's outputs, or log-probabilities of fixed actions."""
    if inference.plain is not None:
        return inference.plain.forward(as_seen(obs)).copy()
    parts = []
    no_action = torch.from_numpy(np.zeros((tile, *shape_of(action)), action.dtype))
    with torch.inference_mode():
        for start in range(0, len(next(iter(obs.values()))), tile):
            seen = {name: torch.from_numpy(leaf[start : start + tile]).clone() for name, leaf in obs.items()}
            parts.append(as_policy(module).evaluate(as_seen(seen), no_action).log_prob.numpy().copy())
    return np.concatenate(parts)


def _picked(obs: Leaves, rows: Array | slice) -> Leaves:
    return {name: np.ascontiguousarray(leaf[rows]) for name, leaf in obs.items()}


def _same(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()
