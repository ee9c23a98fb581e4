"""The forward pass of plain decoders (Llama, Qwen2, Mistral ...) without the calls between their modules.

    ids -> embedding -> [ norm -> q, k, v -> rotation -> cache -> attention -> o · norm -> MLP ] x layers -> logits

For small models most of a pass is spent between the operations, not in them. This makes the same operations on the
same parameters in the same order, so it gives the same bits; `Passes` compares both before it uses this one. A model
that has any other part does not fit and is called as it is. Knows no requests and no sampling.

A pass is one call that does not need the interpreter: `uninterrupted`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, silu

from headrace.agents.engines.cache import Cache, Layout, laid_out, seen_by, write
from headrace.agents.engines.uninterrupted import uninterrupted

_NORMS = ("input_layernorm", "post_attention_layernorm")
_LINEAR = tuple(f"self_attn.{one}_proj" for one in "qkvo") + tuple(f"mlp.{one}_proj" for one in ("gate", "up", "down"))
_CHANGING_ROTATIONS = ("dynamic", "longrope")  # depend on more than a token's own position


class PlainDecoder:
    """The model's parameters and tables, ready for passes over a cache."""

    def __init__(self, model: Any, length: int) -> None:
        inner = model.model
        norms = [layer.get_submodule(name) for layer in inner.layers for name in _NORMS] + [inner.norm]
        linears = [layer.get_submodule(name) for layer in inner.layers for name in _LINEAR] + [model.lm_head]
        # Parameters share their memory with the model's: what is loaded into the model is loaded here.
        self._words = inner.embed_tokens.weight.detach()
        self._norms = [one.weight.detach() for one in norms]
        self._epsilons = [float(one.variance_epsilon) for one in norms]
        self._weights = [one.weight.detach() for one in linears]
        self._biases = [None if one.bias is None else one.bias.detach() for one in linears]
        self._scalings = [float(layer.self_attn.scaling) for layer in inner.layers]
        cos, sin = inner.rotary_emb(self._words, torch.arange(length)[None])
        half = inner.layers[0].self_attn.head_dim // 2
        self._cos, self._sin = cos[0], torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)
        self._decode = uninterrupted(decode)

    def __call__(self, ids: list[list[int]], cache: Cache, is_reading: bool) -> Tensor:
        """Logits [rows, tokens, vocabulary]; if it is only read, the last hidden states."""
        return self._decode(
            ids, cache.layout, cache.hidden, cache.keys, cache.values, self._words, self._cos, self._sin,
            self._norms, self._epsilons, self._weights, self._biases, self._scalings, is_reading,
        )  # fmt: skip


def decode(
    ids: list[list[int]],
    layout: Layout,
    hidden_keys: Tensor,
    keys: Tensor,
    values: Tensor,
    words: Tensor,
    cos: Tensor,
    sin: Tensor,
    norms: list[Tensor],
    epsilons: list[float],
    weights: list[Tensor],
    biases: list[Tensor | None],
    scalings: list[float],
    is_reading: bool,
) -> Tensor:
    """One pass: layout, keys and values are the cache's; norms, weights and biases those of all layers."""
    positions, written, looks = laid_out(layout, hidden_keys, keys)
    rows, tokens = positions.shape
    shape = (rows, tokens, -1, cos.shape[1])
    at = positions.ravel()
    by_cos = cos.index_select(0, at).view(rows, 1, tokens, -1)
    by_sin = sin.index_select(0, at).view(rows, 1, tokens, -1)
    hidden = embedding(torch.tensor(ids).ravel(), words)
    for layer in range(len(scalings)):
        norm, first = 2 * layer, 7 * layer
        normed = _normed(hidden, norms[norm], epsilons[norm])
        query = linear(normed, weights[first], biases[first]).view(shape).transpose(1, 2)
        key = linear(normed, weights[first + 1], biases[first + 1]).view(shape).transpose(1, 2)
        value = linear(normed, weights[first + 2], biases[first + 2]).view(shape).transpose(1, 2)
        write(_turned(key, by_cos, by_sin), keys[layer], written)
        write(value, values[layer], written)
        seen = seen_by(_turned(query, by_cos, by_sin), keys[layer], values[layer], looks, scalings[layer])
        hidden = hidden + linear(seen.reshape(rows * tokens, -1), weights[first + 3], biases[first + 3])
        normed = _normed(hidden, norms[norm + 1], epsilons[norm + 1])
        gate = silu(linear(normed, weights[first + 4], biases[first + 4]))
        up = gate.mul_(linear(normed, weights[first + 5], biases[first + 5]))
        hidden = hidden + linear(up, weights[first + 6], biases[first + 6])
    hidden = _normed(hidden, norms[-1], epsilons[-1])
    if not is_reading:
        hidden = linear(hidden, weights[-1], biases[-1])
    return hidden.view(rows, tokens, -1)


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
