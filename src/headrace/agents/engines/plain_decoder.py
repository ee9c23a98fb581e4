"""The forward pass of plain decoders (Llama, Qwen2, Mistral ...) without the calls between their modules.

    ids -> embedding -> [ norm -> q, k, v -> rotation -> cache -> attention -> o · norm -> MLP ] x layers -> logits

For small models most of a pass is spent between the operations, not in them. This makes the same operations on the
same parameters in the same order, so it gives the same bits; `Passes` compares both before it uses this one. A model
that has any other part does not fit and is called as it is. Knows no requests and no sampling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, silu

from headrace.agents.engines.cache import Cache

_NORMS = ("input_layernorm", "post_attention_layernorm")
_LINEAR = tuple(f"self_attn.{one}_proj" for one in "qkvo") + tuple(f"mlp.{one}_proj" for one in ("gate", "up", "down"))
_CHANGING_ROTATIONS = ("dynamic", "longrope")  # depend on more than a token's own position


@dataclass(frozen=True)
class _Layer:
    """Parameters, as they are: what is loaded into the model is loaded here."""

    norms: tuple[tuple[Tensor, float], ...]
    linear: tuple[tuple[Tensor, Tensor | None], ...]
    scaling: float


class PlainDecoder:
    """The model's parameters and tables, ready for passes over a cache."""

    def __init__(self, model: Any, length: int) -> None:
        inner = model.model
        self._words, self._head = inner.embed_tokens.weight, (model.lm_head.weight, model.lm_head.bias)
        self._last = _norm(inner.norm)
        self._layers = [_layer(one) for one in inner.layers]
        self._width = inner.layers[0].self_attn.head_dim
        cos, sin = inner.rotary_emb(self._words, torch.arange(length)[None])
        half = self._width // 2
        self._cos, self._sin = cos[0], torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)

    def __call__(self, ids: Tensor, cache: Cache, is_reading: bool) -> Tensor:
        """Logits [rows, tokens, vocabulary]; if it is only read, the last hidden states."""
        rows, tokens = ids.shape
        shape = (rows, tokens, -1, self._width)
        at = cache.positions.ravel()
        turn = tuple(table.index_select(0, at).view(rows, 1, tokens, -1) for table in (self._cos, self._sin))
        hidden = embedding(ids.ravel(), self._words)
        for number, layer in enumerate(self._layers):
            query, key, value, out, gate, up, down = layer.linear
            normed = _normed(hidden, *layer.norms[0])
            queries, keys, values = (linear(normed, *one).view(shape).transpose(1, 2) for one in (query, key, value))
            seen, _ = cache.update(_turned(keys, *turn), values, number)
            mixed = seen.attend(_turned(queries, *turn), layer.scaling).reshape(rows * tokens, -1)
            hidden = hidden + linear(mixed, *out)
            normed = _normed(hidden, *layer.norms[1])
            hidden = hidden + linear(silu(linear(normed, *gate)).mul_(linear(normed, *up)), *down)
        hidden = _normed(hidden, *self._last)
        return (hidden if is_reading else linear(hidden, *self._head)).view(rows, tokens, -1)


def _normed(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return (hidden * hidden.pow(2).mean(-1, keepdim=True).add_(epsilon).rsqrt_()).mul_(weight)


def _turned(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Each pair of a head's halves by the angle of its position; `sin` has the sign of the half it meets."""
    half = states.shape[-1] // 2
    return (states * cos).add_(torch.cat((states[..., half:], states[..., :half]), dim=-1).mul_(sin))


def plain_decoder(model: Any, length: int) -> PlainDecoder | None:
    """It, if the model has the parts of a plain decoder, and no others."""
    try:
        inner = model.model
        names = {name for name, _ in inner.layers.named_parameters()}
        layers = range(len(inner.layers))
        want = {f"{at}.{one}.weight" for at in layers for one in (*_NORMS, *_LINEAR)}
        biases = {f"{at}.{one}.bias" for at in layers for one in _LINEAR}
        outer = {name for name, _ in model.named_parameters() if not name.startswith("model.layers.")}
        known = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "lm_head.bias"}
        is_plain = (
            want <= names <= want | biases
            and outer <= known
            and model.config.hidden_act == "silu"
            and inner.rotary_emb.rope_type not in _CHANGING_ROTATIONS
            and all(one.dtype == torch.float32 for one in model.parameters())
            and not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())
        )
        return PlainDecoder(model, length) if is_plain else None
    except (AttributeError, TypeError, KeyError):  # a model with other parts
        return None


def _layer(layer: Any) -> _Layer:
    attention = layer.self_attn
    return _Layer(
        tuple(_norm(getattr(layer, name)) for name in _NORMS),
        tuple((one.weight, one.bias) for one in (layer.get_submodule(name) for name in _LINEAR)),
        attention.scaling,
    )


def _norm(norm: Any) -> tuple[Tensor, float]:
    return norm.weight, norm.variance_epsilon
