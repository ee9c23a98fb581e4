"""Features: what a policy's towers (or its memory) see of an observation, [N, size], one extractor for each array.

    vectors, choices --VectorEncoder--> as they are, one-hot         images --ImageEncoder--> convolutions, a layer
    {"goal": ..., "camera": ...} --LeavesEncoder--> the features of each, side by side
    an extractor of the user's own (SB3's features_extractor_class) --OwnEncoder--> of a leaf, or of all of them

    features = build_features(observation, config, generator, own)        features(obs) -> [N, features.size]

A policy is extractor -> [memory] -> towers -> distribution. Does not know actions, towers or who runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.errors import UsageError
from headrace.memory.spaces import (
    Box,
    Dict,
    Discrete,
    MultiDiscrete,
    ObservationSpace,
    Space,
    bounds,
    flat_size,
    in_short,
    shape_of,
)
from headrace.policies.config import PolicyConfig
from headrace.policies.layers import GAIN, initialise

VECTOR_TILE, IMAGE_TILE = 64, 8  # rows that are best computed at once


@dataclass(frozen=True)
class Cnn:
    """(channels, kernel, stride) of every convolution, the features after them, and the smallest image it takes."""

    layers: tuple[tuple[int, int, int], ...]
    features: int
    smallest: int


# The strides of the Nature CNN do not fit 42 x 42: it never looks at the last rows and columns. The small one does.
CNNS = {
    "nature": Cnn(((32, 8, 4), (64, 4, 2), (64, 3, 1)), features=512, smallest=36),
    "small": Cnn(((16, 6, 3), (32, 3, 2), (32, 3, 1)), features=256, smallest=24),
}
_ONE_OF_SEVERAL = 256  # features of an image beside other arrays, as SB3 has it


class ImageEncoder(nn.Module):
    """Convolutions (the Nature CNN's, or fewer) over uint8 images of either layout, and a layer of features."""

    is_vector, largest_tile = False, IMAGE_TILE

    def __init__(
        self, observation: Space, config: PolicyConfig, generator: torch.Generator, size: int | None = None
    ) -> None:
        super().__init__()
        cnn, (self._channels_last, channels, plane) = CNNS[config.cnn], layout(observation)
        self.size = size or cnn.features
        self.scale = ImageScale(observation, config.normalize_images)
        widths = pairwise((channels, *(width for width, _, _ in cnn.layers)))
        self.convolutions = nn.ModuleList(
            nn.Conv2d(into, out, kernel, stride)
            for (into, out), (_, kernel, stride) in zip(widths, cnn.layers, strict=True)
        )
        with torch.no_grad():
            flat = self._convolve(torch.zeros(1, channels, *plane)).shape[1]
        self.features = nn.Linear(flat, self.size)
        for layer in (*self.convolutions, self.features):
            initialise(layer, GAIN, generator, config.ortho_init)

    def forward(self, obs: Tensor) -> Tensor:
        """[N, size]."""
        x = self.scale(obs)
        x = x.permute(0, 3, 1, 2) if self._channels_last else x
        return F.relu(self.features(self._convolve(x)))

    def _convolve(self, x: Tensor) -> Tensor:
        for layer in self.convolutions:
            x = F.relu(layer(x))
        return x.flatten(1)


class ImageScale(nn.Module):
    """uint8 images to 0..1 by the bounds of their space: most are divided by 255, masks of 0 and 1 stay as they are.

    If `is_scaling` is False, they become floats and nothing else.
    """

    low: Tensor
    span: Tensor

    def __init__(self, space: Space, is_scaling: bool = True) -> None:
        super().__init__()
        self._is_scaling = is_scaling
        assert isinstance(space, Box)
        low, high = (torch.from_numpy(one.astype("float32")) for one in bounds(space))
        self._is_usual = bool((low == 0).all() and (high == 255).all())
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("span", torch.where(high > low, high - low, 1.0), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """[N, ...] as float32."""
        x = images.to(torch.float32)
        if not self._is_scaling:
            return x
        return x / 255.0 if self._is_usual else (x - self.low) / self.span


class VectorEncoder(nn.Module):
    """Raw observations to a flat float32 vector: choices one-hot, uint8 images scaled by their bounds."""

    largest_tile = VECTOR_TILE
    start: Tensor

    def __init__(self, observation: Space, is_scaling: bool = True) -> None:
        super().__init__()
        self._space = observation
        self._scale = ImageScale(observation, is_scaling) if is_image(observation) else None
        self.is_vector = isinstance(observation, Box) and len(observation.shape) == 1 and observation.dtype == "float32"
        if isinstance(observation, MultiDiscrete):
            self.register_buffer("start", torch.tensor(observation.start), persistent=False)
        self.size = flat_size(observation)
        if not self.size:
            raise UsageError(f"observation: expected at least one number, got {in_short(observation)}")

    def forward(self, obs: Tensor) -> Tensor:
        """[N, size]."""
        if self.is_vector:
            return obs
        match self._space:
            case Discrete(n=n, start=start):
                return F.one_hot(obs.long() - start, n).to(torch.float32)
            case MultiDiscrete(nvec=nvec):
                columns = obs.reshape(obs.shape[0], -1).long() - self.start
                return torch.cat([F.one_hot(c, n) for c, n in zip(columns.unbind(-1), nvec, strict=True)], -1).to(
                    torch.float32
                )
        x = obs.to(torch.float32) if self._scale is None else self._scale(obs)
        return x.reshape(obs.shape[0], -1)


class LeavesEncoder(nn.Module):
    """Arrays by name, each through its own extractor, side by side."""

    is_vector = False

    def __init__(
        self, observation: Dict, config: PolicyConfig, generator: torch.Generator, own: Own | None = None
    ) -> None:
        super().__init__()
        self._names = [name for name, _ in observation.leaves]
        extractors = [_of_leaf(name, leaf, config, generator, own) for name, leaf in observation.leaves]
        self.extractors = nn.ModuleList(extractors)
        self.size = sum(one.size for one in extractors)
        self.largest_tile = min(one.largest_tile for one in extractors)

    def parts(self) -> list[tuple[str, nn.Module]]:
        """Every array's extractor by its name."""
        return list(zip(self._names, self.extractors, strict=True))

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """[N, size]."""
        return torch.cat([one(obs[name]) for name, one in zip(self._names, self.extractors, strict=True)], -1)


class OwnEncoder(nn.Module):
    """An extractor of the user's own over what SB3 would give it: floats, choices one-hot, images [N, C, H, W]."""

    is_vector = False

    def __init__(self, observation: ObservationSpace, module: nn.Module, config: PolicyConfig) -> None:
        super().__init__()
        is_dict = isinstance(observation, Dict)
        leaves = observation.leaves if isinstance(observation, Dict) else (("", observation),)
        self._names = [name for name, _ in leaves] if is_dict else None
        self.prepare = nn.ModuleList(Prepared(leaf, config.normalize_images) for _, leaf in leaves)
        self.module = module
        self.size = int(module.features_dim)  # type: ignore[arg-type]
        self.largest_tile = IMAGE_TILE if any(is_image(leaf) for _, leaf in leaves) else VECTOR_TILE

    def forward(self, obs: Any) -> Tensor:
        """[N, size]."""
        seen: Any = self.prepare[0](obs) if self._names is None else {
            name: prepare(obs[name]) for name, prepare in zip(self._names, self.prepare, strict=True)
        }  # fmt: skip
        features: Tensor = self.module(seen)
        return features


class Prepared(nn.Module):
    """One array as SB3 gives it to extractors."""

    def __init__(self, space: Space, is_scaling: bool) -> None:
        super().__init__()
        self._flat = None if isinstance(space, Box) else VectorEncoder(space)
        self._scale = ImageScale(space, is_scaling) if is_image(space) else None
        self._channels_last = is_image(space) and layout(space)[0]

    def forward(self, obs: Tensor) -> Tensor:
        """[N, ...] as float32."""
        if self._flat is not None:
            flat: Tensor = self._flat(obs)
            return flat
        x: Tensor = obs.to(torch.float32) if self._scale is None else self._scale(obs)
        return x.permute(0, 3, 1, 2) if self._channels_last else x


def prepared_space(space: ObservationSpace) -> ObservationSpace:
    """The space that an extractor of the user's own is built for: images have their channels first."""
    if isinstance(space, Dict):
        return Dict(tuple((name, cast(Space, prepared_space(leaf))) for name, leaf in space.leaves))
    if not isinstance(space, Box) or not is_image(space) or not layout(space)[0]:
        return space
    low, high = (bound.transpose(2, 0, 1) for bound in bounds(space))
    return replace(space, shape=low.shape, low=tuple(map(float, low.flat)), high=tuple(map(float, high.flat)), stack=0)


Own = Callable[[str, ObservationSpace, torch.Generator], nn.Module | None]
"""Builds the user's extractor of a leaf, or of whole observations (""); None: it has none for that."""
Features = VectorEncoder | ImageEncoder | LeavesEncoder | OwnEncoder


def build_features(
    observation: ObservationSpace, config: PolicyConfig, generator: torch.Generator, own: Own | None = None
) -> Features:
    """The extractor for observations: by leaf where there are several; images that are large enough are convolved."""
    whole = None if own is None else own("", observation, generator)
    if whole is not None:
        return OwnEncoder(observation, whole, config)
    if isinstance(observation, Dict):
        return LeavesEncoder(observation, config, generator, own)
    if is_large_image(observation, config):
        return ImageEncoder(observation, config, generator)
    return VectorEncoder(observation, config.normalize_images)


def _of_leaf(
    name: str, leaf: Space, config: PolicyConfig, generator: torch.Generator, own: Own | None
) -> VectorEncoder | ImageEncoder | OwnEncoder:
    if not flat_size(leaf):
        what = f"observation/{name}: expected at least one number"
        raise UsageError(f"{what}, got {in_short(leaf)}; leave it out in a wrapper")
    module = None if own is None else own(name, leaf, generator)
    if module is not None:
        return OwnEncoder(leaf, module, config)
    if is_large_image(leaf, config):
        return ImageEncoder(leaf, config, generator, _ONE_OF_SEVERAL)
    return VectorEncoder(leaf, config.normalize_images)


def described(features: Any) -> str:
    """What sees which array, and how many features that makes."""
    match features:
        case LeavesEncoder():
            return ", ".join(f"{name} {described(one)}" for name, one in features.parts())
        case OwnEncoder():
            return f"{type(features.module).__name__} {features.size}"
        case ImageEncoder():
            return f"convolutions {features.size}"
    return f"flat {features.size}"


def features_size(observation: ObservationSpace, config: PolicyConfig) -> int:
    """How many features there are, without building anything."""
    if isinstance(observation, Dict):
        leaves = (leaf for _, leaf in observation.leaves)
        return sum(_ONE_OF_SEVERAL if is_large_image(leaf, config) else flat_size(leaf) for leaf in leaves)
    return CNNS[config.cnn].features if is_large_image(observation, config) else flat_size(observation)


def layout(image: Space) -> tuple[bool, int, tuple[int, ...]]:
    """Whether channels come last, how many there are, and the plane."""
    shape = shape_of(image)
    return (True, shape[-1], shape[:-1]) if shape[-1] < shape[0] else (False, shape[0], shape[1:])


def is_image(space: ObservationSpace) -> bool:
    """A uint8 Box of three axes."""
    return isinstance(space, Box) and len(space.shape) == 3 and space.dtype == "uint8"


def is_large_image(space: ObservationSpace, config: PolicyConfig) -> bool:
    """An image into whose plane the convolutions fit, whichever axis the channels are."""
    if isinstance(space, Dict) or not is_image(space):
        return False
    _, channels, plane = layout(space)
    return channels > 0 and min(plane) >= CNNS[config.cnn].smallest
