"""All parameters of a module as views into one flat vector, so that publishing, clipping and Adam are one operation.

    module --FlatParameters--> vector (a leaf with .grad), the module's parameters become views of it
    load(vector) is one copy; sha256 names the weights

Buffers (running statistics a user's module may have) lie behind the parameters in the published vector.
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
        odd = [name for name, p in named if p.dtype != torch.float32]
        if odd:
            raise UsageError(f"expected float32 parameters, got another dtype in {', '.join(odd)}")
        if not named:
            raise UsageError(f"{type(module).__name__} has no parameters to train")
        self.module = module
        self.vector = torch.cat([p.detach().reshape(-1) for _, p in named])
        self.gradient = torch.zeros_like(self.vector)
        self.vector.grad = self.gradient
        self._buffers = [b for b in module.buffers() if b.dtype.is_floating_point]
        self._named = named
        self.gradients = self.views(self.gradient)
        for (name, parameter), view in zip(named, self.views(self.vector).values(), strict=True):
            parameter.data = view
            parameter.grad = self.gradients[name] if parameter.requires_grad else None

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """A flat vector's parts, in the parameters' names and shapes."""
        parts, start = {}, 0
        for name, parameter in self._named:
            parts[name] = vector[start : start + parameter.numel()].view(parameter.shape)
            start += parameter.numel()
        return parts

    def attach_gradients(self, out: Tensor | None = None) -> list[Tensor]:
        """See that autograd writes into a flat buffer, whatever zero_grad() did; returns the frozen parts of it."""
        views = self.gradients if out is None or out is self.gradient else self.views(out)
        frozen = []
        for name, parameter in self._named:
            if not parameter.requires_grad:
                frozen.append(views[name])
            elif parameter.grad is not views[name]:
                parameter.grad = views[name]
        return frozen

    @property
    def size(self) -> int:
        """Length of the published vector: parameters, then floating-point buffers."""
        return self.vector.numel() + sum(b.numel() for b in self._buffers)

    def dump(self, out: Tensor) -> None:
        """Write the published vector."""
        count = self.vector.numel()
        out[:count] = self.vector
        for buffer in self._buffers:
            out[count : count + buffer.numel()] = buffer.reshape(-1)
            count += buffer.numel()

    def load(self, published: Tensor) -> None:
        """Take over a published vector."""
        count = self.vector.numel()
        with torch.no_grad():
            self.vector.copy_(published[:count])
            for buffer in self._buffers:
                buffer.copy_(published[count : count + buffer.numel()].view(buffer.shape))
                count += buffer.numel()


def tensors_sha256(tensors: dict[str, Tensor]) -> str:
    """The hash that names a set of tensors: names, dtypes, shapes and bytes, in name order."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array: np.ndarray = tensors[name].detach().cpu().contiguous().numpy()
        digest.update(f"{name}:{array.dtype}:{array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
