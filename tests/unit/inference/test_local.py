"""Local inference: a row's action does not depend on tiles, places or neighbours, and a policy that cheats is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headrace.errors import HeadraceError, UsageError
from headrace.inference.local import LocalInference
from headrace.inference.self_test import fitting_tile, self_test
from headrace.memory.spaces import shape_of
from headrace.policies.config import PolicyConfig
from headrace.policies.networks import as_policy, build_policy
from headrace.policies.threads import torch_threads
from support.bit_envs import ACTIONS, OBSERVATIONS
from support.pairwise import Cell, matrix
from support.ppo_rows import observations, shaken, spaces_named
from support.toy_policies import (
    NeighbourlyPolicy,
    OwnPolicy,
    PlacedPolicy,
    RollingPolicy,
    WhisperingPolicy,
    mlp_policy,
    own_policy,
)

TILE = 8


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    with torch_threads(1):
        yield


def acted(module: nn.Module, cell: Cell, obs: np.ndarray, noise: np.ndarray | None, tile: int = TILE) -> np.ndarray:
    spaces = spaces_named(cell["observation"], cell["action"])
    out = np.zeros((len(obs), *shape_of(spaces[1])), spaces[1].dtype)
    LocalInference(module, *spaces, tile).act({"obs": obs}, noise, out)
    return out


def policy_for(cell: Cell) -> nn.Module:
    spaces = spaces_named(cell["observation"], cell["action"])
    if cell["policy"] == "own":
        return own_policy(*spaces)
    options = {"activation": cell["policy"]} if cell["policy"] in ("tanh", "relu") else {"policy": cell["policy"]}
    return shaken(build_policy(PolicyConfig(**options), *spaces, seed=1), 1, 0.3)


CELLS = matrix(
    {
        "policy": ["tanh", "relu", "CnnPolicy", "own"],
        "observation": list(OBSERVATIONS),
        "action": list(ACTIONS),
    },
    lambda cell: cell["policy"] != "CnnPolicy" or cell["observation"].startswith("image"),
)


@pytest.mark.parametrize("cell", CELLS)
def test_rows_do_not_depend_on_tiles_and_the_self_test_says_so(cell: Cell) -> None:
    """Full tiles, short ones, any order, alone or in company: the same bits for the same row."""
    module = policy_for(cell)
    rng = np.random.default_rng(0)
    count = 3 * TILE + 3
    obs = observations(cell["observation"], count, 1)
    noise = rng.normal(size=(count, as_policy(module).noise.width)).astype(np.float32)
    for given in (noise, None):
        want = acted(module, cell, obs, given)
        for order in (rng.permutation(count), np.arange(5), np.array([7]), rng.permutation(count)[:TILE]):
            got = acted(module, cell, obs[order], None if given is None else given[order])
            assert got.tobytes() == want[order].tobytes()
    self_test(module, *spaces_named(cell["observation"], cell["action"]), TILE)


@pytest.mark.parametrize("observation", ["vector", "wide", "multi_binary"])
@pytest.mark.parametrize("net_arch", [(), (1,), (5,), (10, 10), (50, 50), (33, 6)])
def test_narrow_and_odd_networks_keep_their_bits_too(observation: str, net_arch: tuple[int, ...]) -> None:
    """Matrix libraries have kernels of their own for few outputs, whose bits depend on where a row starts in memory."""
    spaces = spaces_named(observation, "box_2d")
    module = shaken(mlp_policy(*spaces, net_arch=net_arch), 1, 0.3)
    for tile in (4, 8, 64):
        self_test(module, *spaces, tile)


def test_rows_may_lie_anywhere_in_memory() -> None:
    """A shard of 5 environments with 5 numbers each: its rows start at any multiple of 4 bytes."""
    cell = {"observation": "vector", "action": "box"}
    for net_arch in ((), (4,), (64, 64)):
        module = shaken(mlp_policy(*spaces_named("vector", "box"), net_arch=net_arch), 2, 0.3)
        obs = observations("vector", TILE, 3)
        want = acted(module, cell, obs, None)
        for offset in range(1, 16):
            memory = np.zeros(obs.size + 16, np.float32)
            moved = memory[offset : offset + obs.size].reshape(obs.shape)
            moved[:] = obs
            assert acted(module, cell, moved, None).tobytes() == want.tobytes(), (net_arch, offset)


class BatchNormPolicy(OwnPolicy):
    """The classic: batch statistics in the middle of the network, also when acting."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.mix = nn.Sequential(nn.BatchNorm1d(24, track_running_stats=False), self.mix)


@pytest.mark.parametrize("kind", [NeighbourlyPolicy, PlacedPolicy, RollingPolicy, BatchNormPolicy, WhisperingPolicy])
@pytest.mark.parametrize("action", ["box", "discrete", "multi_discrete", "multi_binary"])
def test_self_test_finds(kind: type[OwnPolicy], action: str) -> None:
    torch.manual_seed(0)
    spaces = spaces_named("vector", action)
    module = kind(*spaces)
    module.eval()
    with pytest.raises(HeadraceError, match=rf"{kind.__name__}: .*(another place in a tile|a padded tile)"):
        self_test(module, *spaces, TILE)


class SmallTilesRound(OwnPolicy):
    """As a processor may do it: in tiles below 16 rows, the last bits depend on a row's place."""

    def _outputs(self, obs: Any) -> Any:
        params, value = super()._outputs(obs)
        return (params if len(obs) >= 16 else params * (1 + 1e-6 * torch.arange(len(obs)).unsqueeze(1))), value


def test_the_tile_is_the_smallest_that_passes_and_one_that_is_asked_for_is_kept_to() -> None:
    torch.manual_seed(0)
    spaces = spaces_named("vector", "box")
    fine, odd, hopeless = OwnPolicy(*spaces).eval(), SmallTilesRound(*spaces).eval(), BatchNormPolicy(*spaces).eval()
    assert [fitting_tile(odd, *spaces, n_envs) for n_envs in (1, 8, 16, 64)] == [16, 16, 16, 16]
    assert fitting_tile(odd, *spaces, 64, asked=32) == 32
    assert fitting_tile(fine, *spaces, 8) <= 16, "nothing depends on place but what the processor does"
    for module, asked in ((odd, 8), (hopeless, 0)):
        with pytest.raises(HeadraceError, match=f"another place in a tile of {asked or 64}"):
            fitting_tile(module, *spaces, 4, asked)


@pytest.mark.parametrize("tile", [-1, 0, 1, 2, 3])
def test_tiles_that_are_too_small_are_refused(tile: int) -> None:
    spaces = spaces_named("vector", "discrete")
    with pytest.raises(UsageError, match=f"tile: expected at least 4 rows, got {tile}"):
        LocalInference(mlp_policy(*spaces), *spaces, tile)


@pytest.mark.parametrize(("action", "observation"), [("discrete", "vector"), ("box", "wide"), ("box_2d", "float64")])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("tile", [8, 64])
def test_actions_are_the_policys_own(action: str, observation: str, activation: str, tile: int) -> None:
    """Whatever shortcut acts: up to rounding it is `policy.act`, also after the weights have changed."""
    spaces = spaces_named(observation, action)
    module = shaken(mlp_policy(*spaces, activation=activation), 1, 0.5)
    inference = LocalInference(module, *spaces, tile)
    rng = np.random.default_rng(2)
    obs = observations(observation, 200, 1)
    noise = rng.gumbel(size=(200, as_policy(module).noise.width)).astype(np.float32)
    for change in range(3):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(1 + 0.1 * change)
            for given in (noise, None):
                want = (
                    as_policy(module)
                    .act(torch.from_numpy(obs), None if given is None else torch.from_numpy(given))
                    .numpy()
                )
                out = np.zeros((200, *shape_of(spaces[1])), spaces[1].dtype)
                inference.act({"obs": obs}, given, out)
                np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)


def test_inputs_are_not_written_to() -> None:
    for action in ("discrete", "box"):
        spaces = spaces_named("vector", action)
        module = shaken(mlp_policy(*spaces), 0)
        obs, noise = observations("vector", 19, 0), np.ones((19, as_policy(module).noise.width), np.float32)
        before = obs.tobytes(), noise.tobytes(), [p.clone() for p in module.parameters()]
        out = np.zeros((19, *shape_of(spaces[1])), spaces[1].dtype)
        LocalInference(module, *spaces, TILE).act({"obs": obs}, noise, out)
        assert (obs.tobytes(), noise.tobytes()) == before[:2]
        assert all(torch.equal(a, b) for a, b in zip(module.parameters(), before[2], strict=True))
