"""The CNNs: which images they take, and what of them they see."""

from __future__ import annotations

import pytest
import torch

from headrace.errors import UsageError
from headrace.memory.spaces import Box, Discrete
from headrace.policies.config import PolicyConfig
from headrace.policies.networks import CnnPolicy


def built(cnn: str, side: int) -> CnnPolicy:
    space = Box((side, side, 1), "uint8", (0.0,), (255.0,))
    config = PolicyConfig("CnnPolicy", cnn=cnn)  # type: ignore[arg-type]
    return CnnPolicy(space, Discrete(3), config, torch.Generator().manual_seed(1))


def is_border_seen(policy: CnnPolicy) -> bool:
    """Whether the last row and the last column change anything."""
    image = torch.randint(0, 255, (1, 42, 42, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    values = []
    for place in ((slice(None), -1), (slice(None), slice(None), -1)):
        other = image.clone()
        other[place] = 255 - other[place]
        values.append(policy.value(other).item() != policy.value(image).item())
    return all(values)


def test_the_small_cnn_sees_all_of_42_x_42() -> None:
    assert is_border_seen(built("small", 42))
    assert not is_border_seen(built("nature", 42)), "why there is a small one"


def test_an_image_that_is_too_small_names_what_takes_it() -> None:
    built("small", 24)
    with pytest.raises(UsageError, match=r'at least 36 x 36, got 30 x 30; .*policy_kwargs=\{"cnn": "small"\}'):
        built("nature", 30)
    for cnn in ("nature", "small"):
        with pytest.raises(UsageError, match="got 20 x 20; resize them or use policy MlpPolicy"):
            built(cnn, 20)
    with pytest.raises(UsageError, match="cnn: expected nature or small, got 'big'"):
        built("big", 42)
