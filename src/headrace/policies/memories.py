"""LSTM and GRU: one step for acting, whole sequences for learning, and a walk that shows the state after every row.

    step       x [N, F], state [N, S] -> latent [N, H], state       row by row the same bits, wherever a row lies
    sequences  x [T * N, F] -> latent [T * N, H]                    torch's fused layers over sequences of like length
    follow     x [T * N, F] -> states [T, N, S]                     torch's fused layers give hidden states alone

The parameters are those of torch.nn.LSTM and torch.nn.GRU, with their names and start. Tests hold the three equal.
A state is, layer by layer, the hidden state and, of an LSTM, the cell.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.policies.activations import activation
from headrace.policies.sequences import Split

_KINDS: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}
_sigmoid, _tanh = activation("sigmoid"), activation("tanh")  # bits that do not depend on a row's place


class Memory(nn.Module):
    """Some layers of an LSTM or a GRU."""

    def __init__(self, kind: str, size: int, width: int, layers: int, generator: torch.Generator) -> None:
        super().__init__()
        self.cells = _KINDS[kind](size, width, layers)
        self._kind, self._width, self._layers = kind, width, layers
        self._parts = 2 if kind == "lstm" else 1  # of a layer's state
        self.state_size = self._parts * layers * width
        for parameter in self.cells.parameters():  # as torch does it, from this generator
            nn.init.uniform_(parameter, -1 / math.sqrt(width), 1 / math.sqrt(width), generator)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The next row."""
        before, after = state.split(self._width, -1), []
        for layer in range(self._layers):
            of_x, of_h, bias_x, bias_h = self._weights(layer)
            h = before[layer * self._parts]
            gates, mine = F.linear(x, of_x, bias_x), F.linear(h, of_h, bias_h)
            after += self._cell(gates, mine, h, before[layer * self._parts + self._parts - 1])
            x = after[layer * self._parts]
        return x, torch.cat(after, -1)

    def sequences(self, x: Tensor, split: Split, state: Tensor) -> Tensor:
        """Rows [T * N], each behind those of its own episode."""
        first = torch.cat([state, state.new_zeros(1, self.state_size)])  # the last one: where an episode starts
        parts = []
        for bucket in split.buckets:
            rows = x.index_select(0, bucket.rows).view(bucket.length, -1, x.shape[-1])
            begins = first.index_select(0, bucket.begins).view(-1, self._layers, self._parts, self._width)
            begins = begins.permute(2, 1, 0, 3).contiguous()
            out, _ = self.cells(rows, (begins[0], begins[1]) if self._parts == 2 else begins[0])
            parts.append(out.reshape(-1, self._width))
        return torch.cat(parts).index_select(0, split.place)

    def follow(self, x: Tensor, split: Split, state: Tensor) -> Tensor:
        """The state after every row."""
        out = x.new_empty(split.n_steps, split.n_envs, self.state_size)
        for layer in range(self._layers):
            of_x, of_h, bias_x, bias_h = self._weights(layer)
            gates = F.linear(x, of_x, bias_x).view(split.n_steps, split.n_envs, -1)
            first, width = layer * self._parts * self._width, self._width
            here = slice(first, first + self._parts * width)
            mine = state[:, here]
            for t, going_on in enumerate(split.going_on):
                mine = mine * going_on
                h, last = mine[:, :width], mine[:, -width:]
                mine = torch.cat(self._cell(gates[t], F.linear(h, of_h, bias_h), h, last), -1)
                out[t, :, here] = mine
            x = out[:, :, first : first + width].reshape(-1, width)
        return out

    def _weights(self, layer: int) -> list[Tensor]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return [getattr(self.cells, f"{name}_l{layer}") for name in names]

    def _cell(self, of_x: Tensor, of_h: Tensor, h: Tensor, cell: Tensor) -> list[Tensor]:
        if self._kind == "gru":
            (r_x, z_x, n_x), (r_h, z_h, n_h) = of_x.chunk(3, -1), of_h.chunk(3, -1)
            new = _tanh(n_x + _sigmoid(r_x + r_h) * n_h)
            return [new + _sigmoid(z_x + z_h) * (h - new)]
        i, f, g, o = (of_x + of_h).chunk(4, -1)
        cell = _sigmoid(f) * cell + _sigmoid(i) * _tanh(g)
        return [_sigmoid(o) * _tanh(cell), cell]
