"""Normalised observations, as SB3's VecNormalize gives them: (x - mean) / sqrt(var + 1e-8), clipped.

    raw observations --Normalizer--> the same leaves, those of numbers normalised --> the policy

Rollouts hold raw observations. Mean and variance are buffers of the policy, so they are published, versioned and saved
with its parameters, and every row is seen with the statistics of the version that acted in it. `learning/normalization`
takes every batch into them, after its epochs. Built-in policies normalise before they encode, so the plain MLP keeps
its compiled actor and its closed form; a policy of the user's own is wrapped, and sees normalised observations only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headrace.compiler import compiled
from headrace.errors import CheckpointError, UsageError
from headrace.memory.spaces import Box, Leaves, ObservationSpace, Space, in_short, leaf_of, leaves_of, name_of, shape_of
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.config import PolicyConfig
from headrace.policies.features import is_image
from headrace.policies.networks import MlpPolicy, as_policy
from headrace.policies.plain_mlp import PlainMlpAct
from headrace.policies.policy import Evaluation, state_size_of

Array = npt.NDArray[Any]
EPSILON = 1e-8


class Normalizer(nn.Module):
    """Running mean and variance of some leaves of an observation, and how they are applied."""

    count: Tensor

    def __init__(self, leaves: dict[str, Space], clip: float) -> None:
        super().__init__()
        self.clip = clip
        self._index = {name: index for index, name in enumerate(leaves)}
        for name, leaf in leaves.items():
            self.register_buffer(f"mean_{self._index[name]}", torch.zeros(shape_of(leaf)))
            self.register_buffer(f"var_{self._index[name]}", torch.ones(shape_of(leaf)))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))  # not needed for acting, so not published

    def forward(self, obs: Any) -> Any:
        """Raw observations, one tensor or tensors by name; what is not normalised stays as it is."""
        if not isinstance(obs, dict):
            return self._normalized(self.only, obs)
        named = {leaf_of(name): (name, leaf) for name, leaf in obs.items()}
        return {
            name: self._normalized(full, leaf) if full in self._index else leaf for full, (name, leaf) in named.items()
        }

    @property
    def only(self) -> str:
        """The one leaf of observations of one array."""
        (name,) = self._index
        return name

    def statistics(self, name: str) -> tuple[Tensor, Tensor]:
        """Mean and variance of a leaf; the buffers themselves."""
        index = self._index[name]
        return self.get_buffer(f"mean_{index}"), self.get_buffer(f"var_{index}")

    def take(self, leaves: Leaves, is_valid: Array) -> None:
        """Take the valid rows of a batch [T, N, ...] into the statistics."""
        before = int(self.count)
        for name in self._index:
            leaf = leaves[name]
            rows = leaf.reshape(is_valid.size, *leaf.shape[2:])[is_valid.reshape(-1)]
            tensors = self.statistics(name)
            mean, var = (tensor.cpu().numpy().astype(np.float64) for tensor in tensors)
            new = merged(mean, var, before, rows.mean(0, np.float64), rows.var(0, np.float64), len(rows))
            for tensor, value in zip(tensors, new, strict=True):
                tensor.copy_(torch.from_numpy(np.asarray(value, np.float32)))
        self.count += int(is_valid.sum())

    def _load_from_state_dict(self, *given: Any) -> None:
        super()._load_from_state_dict(*given)
        if self.count < 0 or any((self.statistics(name)[1] < 0).any() for name in self._index):
            raise CheckpointError(
                "the statistics of observations: expected a count and variances of at least 0; use another checkpoint"
            )

    def _normalized(self, name: str, obs: Tensor) -> Tensor:
        mean, var = self.statistics(name)
        return ((obs.to(torch.float32) - mean) / (var + EPSILON).sqrt()).clamp(-self.clip, self.clip)


class NormalizedEncoder(nn.Module):
    """The encoder of a built-in policy (or what parts the mask from the rest), behind a normalizer."""

    is_vector = False  # the compiled actor of raw vectors is not for it

    def __init__(self, normalize: Normalizer, encode: Any) -> None:
        super().__init__()
        self.normalize, self.encode, self.size = normalize, encode, getattr(encode, "size", 0)

    def forward(self, obs: Any) -> Any:
        """As the encoder's."""
        return self.encode(self.normalize(obs))


class NormalizedPolicy(nn.Module):
    """A policy of the user's own, which gets normalised observations; `policy` is the user's module."""

    def __init__(self, normalize: Normalizer, policy: nn.Module) -> None:
        super().__init__()
        self.normalize, self.policy = normalize, policy
        self.noise, self.largest_tile = as_policy(policy).noise, as_policy(policy).largest_tile
        if size := state_size_of(policy):  # without a memory it has none, as the policy itself
            self.state_size = size

    def act(self, obs: Any, noise: Tensor | None, *state: Tensor) -> Tensor:
        """As the policy's own; one that remembers takes its state as well."""
        return as_policy(self.policy).act(self.normalize(obs), noise, *state)

    def evaluate(self, obs: Any, actions: Tensor, *state: Tensor) -> Evaluation:
        """As the policy's own."""
        return as_policy(self.policy).evaluate(self.normalize(obs), actions, *state)

    def value(self, obs: Any, *state: Tensor) -> Tensor:
        """As the policy's own."""
        return as_policy(self.policy).value(self.normalize(obs), *state)


class NormalizedMlpAct(PlainMlpAct):
    """The compiled actor of the plain MLP, behind a normalizer. Reads statistics in place, as it does parameters."""

    def __init__(self, module: MlpPolicy, encode: NormalizedEncoder) -> None:
        self._mean, self._var = (tensor.numpy() for tensor in encode.normalize.statistics(encode.normalize.only))
        self._clip: Any = np.float32(encode.normalize.clip)
        super().__init__(module)

    def forward(self, obs: Array) -> Array:
        """The actor's head: logits or means."""
        if len(obs) > len(self._normal):
            self._reserve(len(obs))
        normal = self._normal[: len(obs)]
        _normalize(obs, self._mean, self._var, self._clip, normal)
        return super().forward(normal)

    def _reserve(self, rows: int) -> None:
        super()._reserve(rows)
        self._normal = np.empty((rows, len(self._mean)), np.float32)


@compiled
def _normalize(obs: Array, mean: Array, var: Array, clip: Any, out: Array) -> None:
    for j in range(obs.shape[1]):
        scale = np.sqrt(var[j] + np.float32(EPSILON))
        for r in range(obs.shape[0]):
            out[r, j] = min(max((obs[r, j] - mean[j]) / scale, -clip), clip)


def compiled_act(module: MlpPolicy) -> PlainMlpAct | None:
    """The compiled actor of an MLP over vectors, raw or normalised; None for other observations."""
    encode: Any = module.encode
    if isinstance(encode, NormalizedEncoder):
        return NormalizedMlpAct(module, encode) if encode.encode.is_vector else None
    return PlainMlpAct(module) if encode.is_vector else None


def normalized(module: nn.Module, observation: ObservationSpace, config: PolicyConfig) -> nn.Module:
    """The policy that normalises observations, if the configuration says so."""
    if not config.norm_obs or normalizers(module):
        return module
    chosen = _chosen(leaves_of(observation), config.norm_obs_keys)
    if not isinstance(module, ActorCritic) or not hasattr(module, "encode"):
        return NormalizedPolicy(Normalizer(chosen, config.clip_obs), module)
    for name in ("encode", "encode_vf"):  # the critic may have an extractor of its own
        encode = getattr(module, name, None)
        if encode is not None:
            setattr(module, name, NormalizedEncoder(Normalizer(chosen, config.clip_obs), encode))
    return module


def normalizers(module: nn.Module) -> list[Normalizer]:
    """Those of a policy."""
    return [one for one in module.modules() if isinstance(one, Normalizer)]


def merged(mean: Any, var: Any, count: int, more_mean: Any, more_var: Any, more: int) -> tuple[Any, Any]:
    """Mean and variance of two sets of numbers together; `count` and `more` are how many each has."""
    total = count + more
    delta = more_mean - mean
    squares = var * count + more_var * more + delta**2 * (count * (more / total))
    return mean + delta * (more / total), squares / total


def _chosen(leaves: dict[str, Space], keys: tuple[str, ...] | None) -> dict[str, Space]:
    """The leaves that are normalised: those that are named, or all arrays of numbers that are no images."""
    names = {name_of(leaf): leaf for leaf in leaves}
    for key in keys or ():
        if key not in names:
            raise UsageError(f"norm_obs_keys: expected some of {', '.join(names)}, got {key!r}")
        if not _is_numbers(leaves[names[key]]):
            raise UsageError(
                f"norm_obs_keys: {key} is {in_short(leaves[names[key]])}; choices are one-hot and images are "
                f"scaled to 0..1 already; leave it out"
            )
    chosen = {
        full: leaves[full]
        for name, full in names.items()
        if (_is_numbers(leaves[full]) if keys is None else name in keys)
    }
    if not chosen:
        raise UsageError(
            f"norm_obs: expected a Box of numbers, got {', '.join(map(in_short, leaves.values()))}; choices are "
            f"one-hot and images are scaled to 0..1 already; leave norm_obs out"
        )
    return chosen


def _is_numbers(leaf: Space) -> bool:
    return isinstance(leaf, Box) and not is_image(leaf)
