"""All parameters of a module as views into one flat vector, so that publishing, clipping and Adam are one operation.

    module --FlatParameters--> published = [ vector: all parameters | floating-point buffers ] · gradient

The module's parameters and buffers (running statistics a user's module may have) become views of it, so publishing it,
or taking over another one, is one copy. sha256 names the weights.
Does not know versions: that is the store.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor, nn

from headrace.errors import UsageError


class FlatParameters:
    """Owns the storage of a module's parameters and of their gradients."""

    def __init__(self, module: nn.Module) -> None:
        named = list(module.named_parameters())
        buffers = [(name, b) for name, b in module.named_buffers() if b.dtype.is_floating_point]
        odd = [name for name, tensor in [*named, *buffers] if tensor.dtype != torch.float32]
        if odd:
            raise UsageError(f"expected float32 parameters and buffers, got another dtype in {', '.join(odd)}")
        if not named:
            raise UsageError(f"{type(module).__name__} has no parameters to train")
        self.module = module
        self.published = torch.cat([tensor.detach().reshape(-1) for _, tensor in [*named, *buffers]])
        self.vector = self.published[: sum(p.numel() for _, p in named)]
        self.gradient = torch.zeros_like(self.vector)
        self._named = named
        self.gradients = self.views(self.gradient)
        for (name, parameter), view in zip(named, self.views(self.vector).values(), strict=True):
            parameter.data = view
            parameter.grad = self.gradients[name] if parameter.requires_grad else None
        start = self.vector.numel()
        for _, buffer in buffers:
            buffer.data = self.published[start : start + buffer.numel()].view(buffer.shape)
            start += buffer.numel()

    @property
    def size(self) -> int:
        """Length of the published vector."""
        return self.published.numel()

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """The parts of a vector of parameters or gradients, in the parameters' names and shapes."""
        parts, start = {}, 0
        for name, parameter in self._named:
            parts[name] = vector[start : start + parameter.numel()].view(parameter.shape)
            start += parameter.numel()
        return parts

    def attach_gradients(self, out: Tensor) -> None:
        """See that autograd writes into a flat buffer, whatever zero_grad() did."""
        views = self.gradients if out is self.gradient else self.views(out)
        for name, parameter in self._named:
            if parameter.requires_grad and parameter.grad is not views[name]:
                parameter.grad = views[name]

    def frozen(self) -> list[Tensor]:
        """The gradients of parameters that are not to be trained: they stay zero."""
        return [self.gradients[name] for name, parameter in self._named if not parameter.requires_grad]


def tensors_sha256(tensors: dict[str, Tensor]) -> str:
    """The hash that names a set of tensors: names, dtypes, shapes and bytes, in name order."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array: np.ndarray = tensors[name].detach().cpu().contiguous().numpy()
        digest.update(f"{name}:{array.dtype}:{array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
