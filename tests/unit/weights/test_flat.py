"""All parameters of a module as one vector: views, publishing, buffers, and the hash that names them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from headrace.errors import UsageError
from headrace.weights.flat import FlatParameters, tensors_sha256


class Net(nn.Module):
    """Parameters of several shapes, one of them frozen, one shared, and buffers of two dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.again = self.first  # the same parameters under another name
        self.register_buffer("mean", torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        self.register_buffer("count", torch.tensor(7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.first(x) + self.frozen.sum()


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def test_values_are_kept_and_parameters_become_views(net: Net) -> None:
    before = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    flat = FlatParameters(net)
    assert flat.vector.numel() == 12 + 4 + 1 + 2
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.untyped_storage().data_ptr() == flat.vector.untyped_storage().data_ptr()
    flat.vector.fill_(5.0)
    assert all(bool((parameter == 5.0).all()) for parameter in net.parameters())


def test_gradients_land_in_the_flat_vector(net: Net) -> None:
    want = copy.deepcopy(net)
    want(torch.ones(2, 3)).square().sum().backward()
    flat = FlatParameters(net)
    net(torch.ones(2, 3)).square().sum().backward()
    for name, parameter in want.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        assert torch.equal(flat.gradients[name], expected), name
    assert float(flat.gradient.abs().sum()) > 0


def test_an_optimiser_on_the_vector_moves_the_module(net: Net) -> None:
    flat = FlatParameters(net)
    before = flat.vector.clone()
    net(torch.ones(2, 3)).sum().backward()
    flat.vector.grad = flat.gradient
    torch.optim.SGD([flat.vector], lr=1.0).step()
    assert torch.equal(flat.vector, before - flat.gradient)
    assert torch.equal(net.frozen, torch.ones(2))


def test_what_is_published_carries_parameters_and_float_buffers(net: Net) -> None:
    mean = net.mean.clone()
    flat, other = FlatParameters(net), FlatParameters(Net())
    assert flat.size == flat.vector.numel() + 4
    assert torch.equal(net.mean, mean), "flattening changes no number"
    published = flat.published.clone()
    other.module.mean.zero_()
    other.published.copy_(published)
    for (name, ours), theirs in zip(net.named_parameters(), other.module.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    assert torch.equal(other.module.mean, net.mean)
    published.zero_()
    assert float(other.vector.abs().sum()) > 0, "and it is a copy"


def test_load_state_dict_keeps_the_views(net: Net) -> None:
    flat = FlatParameters(net)
    state = {name: torch.full_like(tensor, 3) for name, tensor in net.state_dict().items()}
    net.load_state_dict(state)
    assert bool((flat.vector == 3.0).all())


def test_a_copy_of_a_flattened_module_is_independent(net: Net) -> None:
    flat = FlatParameters(net)
    other = FlatParameters(copy.deepcopy(net))
    flat.vector.zero_()
    flat.gradient.fill_(1.0)
    assert float(other.vector.abs().sum()) > 0
    assert float(other.gradient.abs().sum()) == 0


def test_what_can_not_be_flattened_is_refused() -> None:
    with pytest.raises(UsageError, match=r"float32 parameters and buffers.*0\.weight"):
        FlatParameters(nn.Sequential(nn.Linear(2, 2).double(), nn.Linear(2, 2)))
    with pytest.raises(UsageError, match="no parameters"):
        FlatParameters(nn.ReLU())


# ---------------------------------------------------------------------------------------------------------------- names


def tensors() -> dict[str, torch.Tensor]:
    return {"a": torch.arange(6.0), "b": torch.tensor([1, 2])}


@pytest.mark.parametrize(
    "other",
    [
        {"c": torch.arange(6.0), "b": torch.tensor([1, 2])},
        {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, 2])},
        {"a": torch.arange(6.0, dtype=torch.float64), "b": torch.tensor([1, 2])},
        {"a": torch.arange(6.0), "b": torch.tensor([1, 2], dtype=torch.int32)},
        {"a": torch.arange(6.0).nextafter(torch.tensor(9.0)), "b": torch.tensor([1, 2])},
        {"a": torch.tensor([-0.0, 1, 2, 3, 4, 5]), "b": torch.tensor([1, 2])},
        {"a": torch.tensor([1, 2]), "b": torch.arange(6.0)},
        {"a": torch.arange(6.0)},
        {},
    ],
    ids=["name", "shape", "dtype", "narrower", "one bit", "minus zero", "swapped", "missing", "empty"],
)
def test_the_hash_depends_on(other: dict[str, torch.Tensor]) -> None:
    assert tensors_sha256(other) != tensors_sha256(tensors())


def test_the_hash_does_not_depend_on_order_or_strides() -> None:
    want = tensors_sha256(tensors())
    assert tensors_sha256(dict(reversed(tensors().items()))) == want
    strided = torch.stack([torch.arange(6.0), torch.zeros(6)], 1)[:, 0]
    assert not strided.is_contiguous()
    assert tensors_sha256(tensors() | {"a": strided}) == want
    assert tensors_sha256(tensors() | {"a": torch.arange(6.0).requires_grad_()}) == want
    assert len(want) == 64
