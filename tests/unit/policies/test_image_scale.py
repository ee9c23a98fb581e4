"""uint8 images are scaled by the bounds of their own space: 0..255 is divided by 255, bit for bit; others are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headrace.memory.spaces import Box, Discrete
from headrace.policies.config import PolicyConfig
from headrace.policies.networks import ImageScale, VectorEncoder, build_policy

SHAPE = (3, 40, 40)


def image(low: tuple[float, ...], high: tuple[float, ...], shape: tuple[int, ...] = SHAPE) -> Box:
    return Box(shape, "uint8", low, high)


def samples(high: int = 256, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, high, (5, *shape)).astype(np.uint8))


def test_0_to_255_is_divided_by_255_as_ever() -> None:
    images = samples()
    assert torch.equal(ImageScale(image((0.0,), (255.0,)))(images), images.to(torch.float32) / 255.0)
    flat = (images.reshape(5, -1).to(torch.float32)) / 255.0
    assert torch.equal(VectorEncoder(image((0.0,), (255.0,)))(images), flat)


def test_masks_of_0_and_1_stay_0_and_1() -> None:
    images = samples(2)
    assert torch.equal(ImageScale(image((0.0,), (1.0,)))(images), images.to(torch.float32))
    assert VectorEncoder(image((0.0,), (1.0,)))(images).max() == 1.0


def test_bounds_may_differ_by_entry_and_an_entry_may_have_one_value_only() -> None:
    space = image((0.0, 10.0, 7.0, 0.0), (255.0, 20.0, 7.0, 4.0), (2, 2, 1))
    seen = torch.tensor([[[[51], [15]], [[7], [1]]]], dtype=torch.uint8)
    assert ImageScale(space)(seen).reshape(-1).tolist() == pytest.approx([0.2, 0.5, 0.0, 0.25])


@pytest.mark.parametrize("name", ["MlpPolicy", "CnnPolicy"])
@pytest.mark.parametrize("shape", [SHAPE, (40, 40, 3)], ids=["channels first", "channels last"])
def test_a_policy_sees_a_mask_as_it_sees_the_same_image_in_black_and_white(name: str, shape: Any) -> None:
    """The same picture in 0..1 and in 0..255 is one observation."""
    masks = samples(2, shape)
    policies = [
        build_policy(PolicyConfig(name), image((0.0,), (high,), shape), Discrete(3), 1) for high in (1.0, 255.0)
    ]
    seen = [policy.value(images) for policy, images in zip(policies, (masks, masks * 255), strict=True)]  # type: ignore[operator]
    assert torch.allclose(seen[0], seen[1], atol=1e-5)
    assert not torch.allclose(policies[1].value(masks), seen[1], atol=1e-3), "255 times darker is another picture"  # type: ignore[operator]


def test_the_scale_is_no_parameter_and_not_saved() -> None:
    scale = ImageScale(image((0.0,), (1.0,)))
    assert not list(scale.parameters())
    assert not scale.state_dict()
