"""The declared form of a checkpoint's state, held against what was read before anything is built from it.

    state.json, episodes.safetensors --require_form--> nothing, or an error that names the first entry that is wrong

A hash proves that a file is whole, not that its numbers make sense: whoever writes a file writes its hash as well. So
types, ranges and lengths are checked here. Every length that decides an allocation must agree with an array that is
there. Does not know environments, policies or runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.collecting.topology import MAX_WINDOW
from headrace.memory.schema import STATE
from headrace.memory.spaces import decode, decode_observation, leaves_of, shape_of
from headrace.policies.config import ACTIVATIONS

Array = npt.NDArray[Any]
Check = Callable[[Any, str], None]

MAX_ENVS = 1 << 20
_MOST = (1 << 63) - 1
_DTYPES = {"bool", "float16", "float32", "float64"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


class FormError(ValueError):
    """An entry is not what it must be; the message names it."""


def whole(least: int = 0, most: int | None = _MOST) -> Check:
    """A whole number in a range; True and 1.0 are none."""

    def check(value: Any, where: str) -> None:
        if type(value) is not int or value < least or (most is not None and value > most):
            above = "" if most in (None, _MOST) else f" to {most:,}"
            _refuse(where, f"a whole number of {'at least ' if not above else ''}{least:,}{above}", value)

    return check


def number(value: Any, where: str) -> None:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        _refuse(where, "a finite number", value)


def text(value: Any, where: str) -> None:
    """A short text without control characters."""
    if not isinstance(value, str) or len(value) > 1000 or not value.isprintable():
        _refuse(where, "a short printable text", value)


def one_of(*names: str) -> Check:
    """One of these texts."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or value not in names:
            _refuse(where, f"one of {', '.join(sorted(names))}", value)

    return check


def list_of(entry: Check, least: int = 0, most: int = _MOST) -> Check:
    """A list of so many."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            count = (
                f"{least:,}" if least == most else f"at least {least:,}" if most == _MOST else f"{least:,} to {most:,}"
            )
            _refuse(where, f"a list of {count}", value)
        for index, one in enumerate(value):
            entry(one, f"{where}[{index}]")

    return check


def pair(first: Check, second: Check) -> Check:
    """A list of two."""

    def check(value: Any, where: str) -> None:
        list_of(lambda *_: None, 2, 2)(value, where)
        first(value[0], f"{where}[0]")
        second(value[1], f"{where}[1]")

    return check


def mapping(entry: Check, most: int = 10_000) -> Check:
    """An object with any names."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict) or len(value) > most:
            _refuse(where, "an object", value)
        for name, one in value.items():
            text(name, f"{where}, a name in it")
            entry(one, f"{where}.{name}")

    return check


def record(**entries: Check) -> Check:
    """An object with exactly these names."""

    def check(value: Any, where: str) -> None:
        _require_names(value, where, set(entries), set(entries))
        for name, entry in entries.items():
            entry(value[name], f"{where}.{name}" if where else name)

    return check


def at_least(**entries: Check) -> Check:
    """An object with these names and others."""

    def check(value: Any, where: str) -> None:
        _require_names(value, where, set(entries), None)
        for name, entry in entries.items():
            entry(value[name], f"{where}.{name}")

    return check


def anything(value: Any, where: str) -> None:
    """Whatever it is: it is looked at elsewhere."""


def _text_or_callable(value: Any, where: str) -> None:
    """A name, or the name of a function that a file can't hold."""
    (record(callable=text) if isinstance(value, dict) else text)(value, where)


def _option(value: Any, where: str) -> None:
    """A plain value that is not NaN, or the name of a function that a file can't hold."""
    if isinstance(value, list | dict):
        record(callable=text)(value, where)
    if isinstance(value, float) and math.isnan(value):
        _refuse(where, "a number", value)


def _bound(value: Any, where: str) -> None:
    try:
        is_number = isinstance(value, str) and len(value) < 64 and not math.isnan(float(value))
    except ValueError:
        is_number = False
    if not is_number:
        _refuse(where, "a number as text", value)


def _hash(value: Any, where: str) -> None:
    if not isinstance(value, str) or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        _refuse(where, "a SHA-256", value)


_SHAPE, _DTYPE = list_of(whole(0, 1 << 31), most=16), one_of(*_DTYPES)
_SPACES = {
    "Box": record(kind=text, shape=_SHAPE, dtype=_DTYPE, low=list_of(_bound, 1), high=list_of(_bound, 1)),
    "Discrete": record(kind=text, n=whole(1), start=whole(-_MOST), dtype=_DTYPE),
    "MultiDiscrete": record(
        kind=text, nvec=list_of(whole(1)), shape=_SHAPE, start=list_of(whole(-_MOST)), dtype=_DTYPE
    ),
    "MultiBinary": record(kind=text, shape=_SHAPE, dtype=_DTYPE),
}


def _observation(value: Any, where: str) -> None:
    if not isinstance(value, dict) or value.get("kind") != "Dict":
        _leaf(value, where)
        return
    names_of = list_of(text, most=10_000)
    record(kind=text, leaves=list_of(pair(text, _leaf), 1, 10_000), left_out=names_of)(value, where)
    names = [name for name, _ in value["leaves"]]
    if len(set(names)) < len(names):
        _refuse(f"{where}.leaves", "names that differ", names)


def _leaf(value: Any, where: str) -> None:
    kind = value.get("kind") if isinstance(value, dict) else None
    one_of(*_SPACES)(kind, f"{where}.kind")
    if kind == "Box" and "stack" in value:
        shape = value.get("shape")
        whole(2, 1 << 16)(value["stack"], f"{where}.stack")
        if not isinstance(shape, list) or not shape or shape[0] != value["stack"]:
            _refuse(f"{where}.stack", "the length of its first axis", value["stack"])
        value = {name: entry for name, entry in value.items() if name != "stack"}
    _SPACES[str(kind)](value, where)
    size = math.prod(value.get("shape", []))
    for name in ("low", "high", "nvec", "start"):
        if isinstance(value.get(name), list) and len(value[name]) not in ((1, size) if kind == "Box" else (size,)):
            _refuse(f"{where}.{name}", f"{size:,} entries, as its shape says", value[name])


def _policy(value: Any, where: str) -> None:
    at_least(
        policy=text, net_arch=_layers, net_arch_vf=_layers, activation=one_of(*ACTIVATIONS), log_std_init=number,
        tile=whole(0, 1 << 16),
    )(value, where)  # fmt: skip
    extractors = ("features_extractor_class", _text_or_callable), ("features_extractor_kwargs", mapping(anything, 1000))
    if any(name in value for name, _ in extractors):
        for name, entry in extractors:
            at_least(**{name: mapping(entry, 1000)})(value, where)


def _layers(value: Any, where: str) -> None:
    if value is not None:
        list_of(whole(1, 1 << 24), most=64)(value, where)


# What is bounded here decides how much is built. The rest is held against the options' own rules (loading).
CONFIG = record(
    env=record(
        env=_text_or_callable, kwargs=mapping(anything), wrappers=list_of(_text_or_callable, most=64),
        action_repeat=whole(1, 1 << 20), seed_bits=whole(32, 63),
    ),
    seed=whole(0, None),
    policy=_policy,
    algorithm=at_least(name=text, batch_size=whole(1), learner_threads=whole(1, 1024)),
    topology=at_least(
        n_envs=whole(1, MAX_ENVS), n_steps=whole(1, 1 << 32), shards=whole(0, MAX_ENVS), max_lag=whole(0, 1 << 12),
        pick_up_rows=whole(-1, 1 << 32), workers=text, publish_every=text, stats_window_size=whole(1, MAX_WINDOW),
    ),
)  # fmt: skip


def require_form(state: Mapping[str, Any], episodes: Mapping[str, Array]) -> None:
    """Raise FormError unless the state is one that a run could have written, with the arrays that belong to it."""
    at_least(config=CONFIG)(state, "state")
    mapping(_option)(state["config"]["algorithm"], "config.algorithm")
    n_envs = state["config"]["topology"]["n_envs"]
    last = [array for name, array in episodes.items() if name.startswith("last_")]
    if not last or any(array.shape[:1] != (n_envs,) for array in last):  # before a list of that length is asked for
        _refuse("config.topology.n_envs", "the number of last observations in episodes.safetensors", n_envs)
    _state(n_envs)(state, "")
    ledger = state["source"]["ledger"]
    settled = ledger["consumed"] + ledger["rejected"] + sum(ledger["discarded"].values())
    if ledger["produced"] != settled:
        _refuse("source.ledger.produced", f"{settled:,}, the sum of the others", ledger["produced"])
    _require_arrays(state, episodes, n_envs)


def _state(n_envs: int) -> Check:
    count = whole()
    return record(
        config=CONFIG,
        observation_space=_observation,
        action_space=_leaf,
        updates=count,
        steps=count,
        hashes=record(weights_sha256=_hash, optimizer_sha256=_hash),
        weights=record(version=count),
        algorithm=mapping(count),
        source=record(
            batches=count,
            live_episodes=list_of(pair(count, whole(0, None)), n_envs, n_envs),
            ledger=record(
                produced=count,
                consumed=count,
                rejected=count,
                discarded=mapping(count),
                sequences=list_of(count, 1, n_envs),
            ),
            statistics=record(
                **{"return": list_of(number, n_envs, n_envs), "length": list_of(count, n_envs, n_envs)},
                recent=list_of(pair(number, count), most=MAX_WINDOW),
                finished=count,
            ),
        ),
    )


def _require_arrays(state: Mapping[str, Any], arrays: Mapping[str, Array], n_envs: int) -> None:
    action = decode(state["action_space"])
    last = {f"last_{name}": leaf for name, leaf in leaves_of(decode_observation(state["observation_space"])).items()}
    names, kept = {"noise_counter", "lengths", "actions", "checksum", *last}, f"last_{STATE}"
    _require_names(dict(arrays), "episodes", names, names | {"published", kept})
    if kept in arrays:
        _require_array(kept, arrays[kept], (n_envs, *arrays[kept].shape[1:2]), "float32")
    for name in ("noise_counter", "lengths"):
        _require_array(name, arrays[name], (n_envs,), "int64")
        if (arrays[name] < 0).any():
            _refuse(f"episodes.{name}", "numbers of at least 0", arrays[name])
    _require_array("checksum", arrays["checksum"], (n_envs,), "uint64")
    total = sum(arrays["lengths"].tolist())  # in whole numbers that can't overflow
    for name, leaf in last.items():
        _require_array(name, arrays[name], (n_envs, *shape_of(leaf)), leaf.dtype)
    _require_array("actions", arrays["actions"], (total, *shape_of(action)), action.dtype)
    for name in (*last, "actions", "published", kept):
        require_no_nan(f"episodes.{name}", arrays.get(name))


def _require_array(name: str, array: Array, shape: tuple[int, ...], dtype: str) -> None:
    if array.shape != shape or array.dtype != np.dtype(dtype):
        raise FormError(f"episodes.{name}: expected {dtype} of shape {shape}, got {array.dtype} of {array.shape}")


def require_no_nan(where: str, array: Array | None) -> None:
    """Raise if there is a NaN."""
    if array is not None and array.dtype.kind == "f" and np.isnan(array).any():
        raise FormError(f"{where}: expected numbers, got NaN")


def _require_names(value: Any, where: str, needed: set[str], allowed: set[str] | None) -> None:
    where = where or "state"
    if not isinstance(value, dict):
        _refuse(where, "an object", value)
    missing = sorted(needed - value.keys())
    if missing:
        raise FormError(f"{where}: expected {missing[0]!r} in it, found none")
    more = [] if allowed is None else [name for name in value if name not in allowed]
    if more:
        raise FormError(f"{where}: expected no {short(more[0])} in it")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def _refuse(where: str, expected: str, got: Any) -> None:
    raise FormError(f"{where}: expected {expected}, got {short(got)}")


def short(value: Any) -> str:
    """A value from a file in a few words, whatever it is."""
    if isinstance(value, dict):
        return f"an object of {len(value):,}"
    if isinstance(value, list):
        return f"a list of {len(value):,}"
    if isinstance(value, np.ndarray):
        return f"an array of {value.size:,}"
    if isinstance(value, int) and abs(value) > 1 << 70:
        return f"a number of {value.bit_length():,} bits"
    shown = repr(value[:80]) if isinstance(value, str) else repr(value)
    return shown if not isinstance(value, str) or len(value) <= 80 else f"{shown}..."
