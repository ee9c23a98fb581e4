"""Weights for servers: how they travel, and the versions that answers say they came from.

    GET  weights          -> {"version": 3, "is_paused": false}
    POST weights/pause    new requests wait at the server; those under way go on
    POST weights/load     {"version": 4, "path": "step-4.safetensors"}, below the server's --weights-dir, or
                          the bytes of a safetensors file with the header X-Weights-Version: 4
    POST weights/resume   requests go on; each token of every answer says its version (token_versions)

`headrace agents serve` has these routes. Another server is a class with the two methods of `Updates`.
An answer that is older than the weights its server was known to have is refused: it was restarted, and has lost them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from headrace.agents.records import ENGINE, EpisodeError
from headrace.errors import UsageError

VERSION_HEADER = "X-Weights-Version"
MOST_VERSION = (1 << 31) - 1  # records hold 32 bits
Package = bytes | str  # a safetensors file's bytes, or a path at the server


class StaleError(EpisodeError):
    """An answer by older weights than its server had."""


class Updates(Protocol):
    """How one kind of server gets its weights. `client` is the openai.AsyncOpenAI of the server."""

    async def version(self, client: Any) -> int | None:
        """That the server says it has; None if it says nothing."""

    async def load(self, client: Any, package: Package, version: int, limit_s: float) -> None:
        """Pause, load, resume; UsageError if the server will not have these weights."""


class HeadraceUpdates:
    """The routes above."""

    async def version(self, client: Any) -> int | None:
        """By GET weights."""
        from openai import APIStatusError

        try:
            reply = await client.get("/weights", cast_to=dict[str, Any])
        except APIStatusError:  # another kind of server
            return None
        told = reply.get("version") if isinstance(reply, dict) else None
        return told if type(told) is int and 0 <= told <= MOST_VERSION else None

    async def load(self, client: Any, package: Package, version: int, limit_s: float) -> None:
        """Resume is said in any case: a server that could not load goes on with what it has."""
        from openai import APIStatusError, InternalServerError, NotFoundError, RateLimitError

        try:
            await client.post("/weights/pause", cast_to=dict[str, Any])
        except NotFoundError as error:
            raise UsageError(
                f"publish: {client.base_url} has no route weights/pause; say how this server gets its weights (updates)"
            ) from error
        try:
            if isinstance(package, str):
                body: dict[str, Any] = {"version": version, "path": package}
                options: dict[str, Any] = {"timeout": limit_s}
                await client.post("/weights/load", cast_to=dict[str, Any], body=body, options=options)
            else:
                kind = {"Content-Type": "application/octet-stream", VERSION_HEADER: str(version)}
                options = {"timeout": limit_s, "headers": kind}
                await client.post("/weights/load", cast_to=dict[str, Any], content=package, options=options)
        except (InternalServerError, RateLimitError):
            raise
        except APIStatusError as error:
            raise UsageError(f"publish: {client.base_url} refused version {version}: {error.message}") from error
        finally:
            await client.post("/weights/resume", cast_to=dict[str, Any])


def packed(weights: Any) -> Package:
    """A model or a state_dict as the bytes of a safetensors file; a path as it is: it is the server's to read."""
    if isinstance(weights, (str, Path)):
        return str(weights)
    from safetensors.torch import save
    from torch import Tensor

    state = weights.state_dict() if hasattr(weights, "state_dict") else {} if weights is None else weights
    if not isinstance(state, Mapping) or not all(isinstance(one, Tensor) for one in state.values()):
        raise UsageError(f"publish: expected a model, its state_dict or a path at the server, got {weights!r}")
    data: bytes = save({name: tensor.detach().cpu().clone().contiguous() for name, tensor in state.items()})
    return data


def unpacked(data: bytes) -> dict[str, Any]:
    """The tensors of a safetensors file; ValueError if it is none."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        state: dict[str, Any] = load(data)
    except SafetensorError as error:
        raise ValueError(f"expected the bytes of a safetensors file: {error}") from error
    return state


def next_version(latest: int, wanted: int | None) -> int:
    """The version that weights get which are published now: the next one, or the one that is asked for."""
    version = latest + 1 if wanted is None else wanted
    if type(version) is not int or not 0 <= version <= MOST_VERSION:
        raise UsageError(f"version: expected a whole number from 0 to {MOST_VERSION}, got {version!r:.80}")
    return version


def token_versions(reply: Any, count: int, known: int) -> list[int]:
    """The version of each of an answer's tokens; of a server that says nothing, the one it is known to have."""
    told = reply["choices"][0].get("token_versions")
    if told is None:
        one = _told_version(reply)
        told = [known if one is None else one] * count
    if (
        not isinstance(told, list)
        or len(told) < count
        or any(type(one) is not int or not 0 <= one <= MOST_VERSION for one in told)
    ):
        raise EpisodeError(ENGINE, f"versions of {count} tokens: expected a whole number each, got {str(told)[:120]}")
    return told[:count]


def _told_version(reply: Any) -> Any:
    """Of a whole answer: weights_version, or where SGLang has the name that came with the weights, if a number."""
    version, metadata = reply.get("weights_version"), reply.get("metadata")
    name = metadata.get("weight_version") if version is None and isinstance(metadata, dict) else None
    return int(name) if isinstance(name, str) and re.fullmatch("[0-9]{1,10}", name) else version


def require_fresh(versions: list[int], known: int, newest: int | None) -> None:
    """StaleError if some token is older than the server's weights were; EpisodeError if one was never published."""
    if versions and min(versions) < known:
        raise StaleError(ENGINE, f"weights of version {min(versions)}, expected {known}: the server has lost them")
    if versions and newest is not None and max(versions) > newest:
        raise EpisodeError(ENGINE, f"weights of version {max(versions)}, but the last that was published is {newest}")
