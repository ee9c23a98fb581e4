"""The start-up test of a policy: that a row's action depends neither on its place in a tile nor on its neighbours.

    made-up observations, in order, shuffled, and in a short tile --LocalInference--> the same bits, or a clear error
    fitting_tile: the default tile, doubled until the test passes

Looked at are actions and the numbers behind them: rounding that another place changes may not show in an argmax today,
and will in some later step of the run. Runs once, on this machine, with the policy that is about to act: which tiles
are safe depends on the processor (with AVX-512, MKL rounds a layer of two outputs by place in tiles below 16 rows).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.errors import HeadraceError
from headrace.inference.local import LocalInference
from headrace.inference.recurrent import inference_of
from headrace.memory.schema import STATE
from headrace.memory.spaces import Leaves, ObservationSpace, Space, as_seen, leaves_of, made_up, shape_of
from headrace.policies.networks import as_policy
from headrace.policies.policy import Module, state_size_of
from headrace.policies.tiles import LARGEST_TILE, default_tile

Array = npt.NDArray[Any]
_LEAST_ROWS = 64  # rounding differs in some rows only: few of them could come out the same by chance


def fitting_tile(module: Module, observation: ObservationSpace, action: Space, n_envs: int, asked: int = 0) -> int:
    """The tile to act with: the one asked for, or the smallest from the default on that passes the test here."""
    tile = asked or default_tile(n_envs, as_policy(module).largest_tile)
    while True:
        try:
            self_test(module, observation, action, tile)
        except TileError:
            if asked or tile >= LARGEST_TILE:
                raise
            tile *= 2
        else:
            return tile


class TileError(HeadraceError):
    """A row's bits depend on its place."""


def self_test(module: Module, observation: ObservationSpace, action: Space, tile: int) -> None:
    """Raise unless rows come out bit for bit the same at any place in a tile and among any neighbours."""
    rng = np.random.default_rng(0)
    policy, inference = as_policy(module), inference_of(module, observation, action, tile)
    rows = tile * max(2, -(-_LEAST_ROWS // tile))
    obs = {name: made_up(leaf, rng, rows) for name, leaf in leaves_of(observation).items()}
    obs |= {name: rng.standard_normal((rows, size), np.float32) for name, size in _memory(module)}
    noise = rng.standard_normal((rows, policy.noise.width)).astype(np.float32)
    order = rng.permutation(rows)

    def acted(rows: Array | slice) -> tuple[Array, ...]:
        out, some = np.zeros((len(noise[rows]), *shape_of(action)), action.dtype), _picked(obs, rows)
        inference.act(some, noise[rows], out)
        return out, *(some[name] for name, _ in _memory(module))  # what it remembers then, too

    def numbers(rows: Array | slice) -> Array:
        return _numbers(inference, module, _picked(obs, rows), action, tile)

    everything, short = slice(None), slice(tile - 1)
    whole, behind = acted(everything), numbers(everything)
    places = [(acted(rows), [part[rows] for part in whole]) for rows in (order, short)]
    if not (all(all(map(_same, *pair)) for pair in places) and _same(numbers(order), behind[order])):
        raise TileError(
            f"{type(policy).__name__}: the same observation gave other numbers at another place in a tile of "
            f"{tile}; runs could not be repeated. Keep batch statistics and own randomness out of act(). Some "
            f"processors round by place, too, in a torch layer of fewer than 12 outputs if inputs are no multiple of "
            f"4: widen it. Choose another tile size (4 to 64) if you set one"
        )


def _numbers(inference: LocalInference, module: Module, obs: Leaves, action: Space, tile: int) -> Array:
    """What lies behind the actions of whole tiles: the head's outputs, or log-probabilities of fixed actions."""
    if inference.plain is not None:
        return inference.plain.forward(as_seen(obs)).copy()
    parts = []
    no_action = torch.from_numpy(np.zeros((tile, *shape_of(action)), action.dtype))
    with torch.inference_mode():
        for start in range(0, len(next(iter(obs.values()))), tile):
            seen = {name: torch.from_numpy(leaf[start : start + tile]).clone() for name, leaf in obs.items()}
            state = [seen.pop(name) for name, _ in _memory(module)]
            said: Any = as_policy(module).evaluate(as_seen(seen), no_action, *state)
            parts.append((said[0] if state else said).log_prob.numpy().copy())
    return np.concatenate(parts)


def _memory(module: Module) -> list[tuple[str, int]]:
    """The name and the size of what a policy remembers, if it does."""
    return [(STATE, size)] if (size := state_size_of(module)) else []


def _picked(obs: Leaves, rows: Array | slice) -> Leaves:
    return {name: np.array(leaf[rows], order="C") for name, leaf in obs.items()}  # a state is written in its place


def _same(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()
