"""uint8 images are scaled by the bounds of their own space: 0..255 is divided by 255, bit for bit; others are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headrace.errors import UsageError
from headrace.memory.spaces import Box, Discrete
from headrace.policies.config import PolicyConfig
from headrace.policies.features import ImageScale, VectorEncoder
from headrace.policies.networks import build_policy

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


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((7, 7, 3), "MlpPolicy"),
        ((3, 7, 7), "MlpPolicy"),
        ((35, 84, 3), "MlpPolicy"),
        ((84, 3, 84), "MlpPolicy"),
        ((1, 1, 1), "MlpPolicy"),
        ((84, 84), "MlpPolicy"),
        ((64, 64, 3, 2), "MlpPolicy"),
        ((), "MlpPolicy"),
        ((36, 36, 1), "CnnPolicy"),
        ((4, 84, 84), "CnnPolicy"),
    ],
    ids=str,
)
def test_auto_takes_the_policy_that_an_image_is_large_enough_for(shape: tuple[int, ...], kind: str) -> None:
    policy = build_policy(PolicyConfig("auto"), image((0.0,), (255.0,), shape), Discrete(3), 1)
    assert type(policy).__name__ == kind
    assert policy.value(samples(shape=shape)).shape == (5,)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("CnnPolicy", (7, 7, 3), "at least 36 x 36, got 7 x 7; resize them or use policy MlpPolicy"),
        ("CnnPolicy", (84, 84), r"3 axes .*, got Box\(shape=\(84, 84\), uint8\); use policy MlpPolicy"),
        ("auto", (0, 7, 7), r"at least one number, got Box\(shape=\(0, 7, 7\), uint8\)"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(name: str, shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        build_policy(PolicyConfig(name), image((0.0,), (255.0,), shape), Discrete(3), 1)
    assert "\n" not in str(refused.value)
