"""What a rollout leaves: groups of episodes in token space, append only, and their names.

    Group -> Episode -> TokenRow (ids, loss mask, log-probabilities, versions) and Turn (text, actions, reward, times)

The ids are those the engine sampled, never text that was tokenised again. An episode that failed says where and why;
it is not a sample with reward zero: EpisodeError is raised at the boundary, Failure is what the record keeps of it.
`fingerprint` is a function of what happened, not of when or where. Does not know engines, environments or files.
"""

from __future__ import annotations

import base64
import hashlib
import json
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.agents.given import GROUPS, listed
from headrace.errors import HeadraceError
from headrace.plain_text import shortened

Array = npt.NDArray[Any]

# The boundaries at which an episode can fail.
ENV, ENGINE, PARSE, TIMEOUT, WORKER = "env", "engine", "parse", "timeout", "worker"
BOUNDARIES = (ENV, ENGINE, PARSE, TIMEOUT, WORKER)
COMPLETED, TRUNCATED, FAILED, LATE = "completed", "truncated", "failed", "late"


def plain_text(text: str) -> str:
    """With what is no Unicode (lone surrogates) spelt out."""
    return text.encode(errors="backslashreplace").decode()


@dataclass(frozen=True)
class Failure:
    """Why an episode has no result: the boundary where it happened, and what was seen there."""

    boundary: str
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", plain_text(self.message))  # files want UTF-8, whatever was raised


class EpisodeError(HeadraceError):
    """Something at a boundary of an episode failed: environment, engine, parser, time limit or worker."""

    def __init__(self, boundary: str, message: str) -> None:
        assert boundary in BOUNDARIES, boundary
        super().__init__(f"{boundary}: {message}")
        self.boundary, self.message = boundary, shortened(message)

    @property
    def failure(self) -> Failure:
        """For the record."""
        return Failure(self.boundary, self.message)


@dataclass(frozen=True)
class TokenRow:
    """One sequence of tokens. Where loss_mask is 0 the policy sampled nothing: log_prob is 0 and version -1."""

    ids: Array
    loss_mask: Array
    log_probs: Array
    versions: Array


@dataclass(frozen=True)
class Turn:
    """One exchange. Its sampled tokens are rows[row].ids[start:stop]."""

    prompt: str
    answer: str
    actions: tuple[str, ...]
    is_valid: bool
    reward: float
    row: int
    start: int
    stop: int
    engine_s: float = 0.0
    env_s: float = 0.0
    exchange: str = ""  # of tool calls: the turn's messages in OpenAI's shape, as JSON


@dataclass(frozen=True)
class Episode:
    """One episode of a group."""

    group: int
    member: int
    tag: str
    seed: int
    status: str
    rows: tuple[TokenRow, ...]
    turns: tuple[Turn, ...]
    metrics: dict[str, float]
    failure: Failure | None = None
    attempts: int = 1
    is_trainable: bool = True  # False: the engine gave text only, so there are no ids to train on
    system: str = ""  # the system message, if there was one

    @property
    def episode_id(self) -> str:
        """Its name: group and member."""
        return f"{self.group}-{self.member}"

    @property
    def reward(self) -> float:
        """The sum over turns."""
        return float(sum(turn.reward for turn in self.turns))

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation as chat messages."""
        said: list[dict[str, Any]] = [{"role": "system", "content": self.system}] if self.system else []
        for turn in self.turns:
            plain = [{"role": "user", "content": turn.prompt}, {"role": "assistant", "content": turn.answer}]
            said += json.loads(turn.exchange) if turn.exchange else plain
        return said


@dataclass(frozen=True)
class Group:
    """`group_size` episodes of one task. Failed as a whole if one of them could not be had."""

    number: int
    tag: str
    seed: int
    episodes: tuple[Episode, ...]
    worker: int = field(default=0, compare=False)
    seconds: float = field(default=0.0, compare=False)
    lag: int = field(default=0, compare=False)  # versions between its oldest token and its hand-over
    max_lag: int | None = field(default=None, compare=False)

    @property
    def is_late(self) -> bool:
        """Whether its oldest token is older than allowed."""
        return self.max_lag is not None and self.lag > self.max_lag

    @property
    def status(self) -> str:
        """completed, failed, or late: all there, but too old to learn from."""
        if any(one.status == FAILED for one in self.episodes):
            return FAILED
        return LATE if self.is_late else COMPLETED

    @property
    def failures(self) -> list[Failure]:
        """Of its episodes."""
        return [one.failure for one in self.episodes if one.failure is not None]


def fingerprint(groups: Group | Iterable[Group]) -> str:
    """SHA-256 over everything but times, attempts and places: equal records have equal names."""
    digest = hashlib.sha256()
    for group in sorted(listed("groups", groups, Group, GROUPS), key=lambda one: one.number):
        data = encode(group)
        for name in ("worker", "seconds", "lag", "max_lag"):
            del data[name]
        for episode in data["episodes"]:
            del episode["attempts"]
            for turn in episode["turns"]:
                del turn["engine_s"], turn["env_s"]
        digest.update(json.dumps(data, sort_keys=True).encode())
    return digest.hexdigest()


_DTYPES = {"ids": "<i4", "loss_mask": "|u1", "log_probs": "<f4", "versions": "<i4"}


def token_row(ids: Any, loss_mask: Any, log_probs: Any, versions: Any) -> TokenRow:
    """A row of plain sequences as arrays."""
    arrays = zip(_DTYPES.values(), (ids, loss_mask, log_probs, versions), strict=True)
    return TokenRow(*(np.asarray(values, dtype) for dtype, values in arrays))


@dataclass
class GrowingRow:
    """A row that is still written."""

    ids: list[int]
    loss_mask: bytearray
    log_probs: array[float]
    versions: array[int]
    text: str = ""  # what the template rendered for it so far, sampled answers included

    @classmethod
    def of_prompt(cls, ids: list[int], text: str) -> GrowingRow:
        """A new row."""
        row = cls([], bytearray(), array("f"), array("i"), text)
        row.read(ids)
        return row

    def read(self, ids: Sequence[int]) -> None:
        """Tokens that the policy did not sample."""
        self.ids += ids
        self.loss_mask += bytes(len(ids))
        self.log_probs.extend([0.0] * len(ids))
        self.versions.extend([-1] * len(ids))

    def sample(self, ids: Sequence[int], log_probs: Sequence[float], versions: Sequence[int]) -> None:
        """Tokens that it did."""
        self.ids += ids
        self.loss_mask += b"\1" * len(ids)
        self.log_probs.extend(log_probs)
        self.versions.extend(versions)

    def as_arrays(self) -> TokenRow:
        """As it is now."""
        return token_row(self.ids, bytearray(self.loss_mask), self.log_probs, self.versions)


def encode(group: Group) -> dict[str, Any]:
    """As JSON; arrays as base64 of their little-endian bytes, so floats stay exact."""
    return {
        "number": group.number,
        "tag": group.tag,
        "seed": group.seed,
        "worker": group.worker,
        "seconds": group.seconds,
        "lag": group.lag,
        "max_lag": group.max_lag,
        "episodes": [_encode_episode(one) for one in group.episodes],
    }


def decode(data: dict[str, Any]) -> Group:
    """The inverse."""
    return Group(**data | {"episodes": tuple(_decode_episode(one) for one in data["episodes"])})


def _encode_episode(one: Episode) -> dict[str, Any]:
    data = dict(vars(one))
    data["rows"] = [
        {name: base64.b64encode(getattr(row, name).astype(dtype).tobytes()).decode() for name, dtype in _DTYPES.items()}
        for row in one.rows
    ]
    data["turns"] = [_encode_turn(turn) for turn in one.turns]
    data["failure"] = None if one.failure is None else dict(vars(one.failure))
    return data


def _encode_turn(turn: Turn) -> dict[str, Any]:
    data = vars(turn) | {"actions": list(turn.actions)}
    if not turn.exchange:  # so that records without tool calls are what they were
        del data["exchange"]
    return data


def _decode_episode(data: dict[str, Any]) -> Episode:
    rows = tuple(
        TokenRow(*(np.frombuffer(base64.b64decode(row[name]), dtype) for name, dtype in _DTYPES.items()))
        for row in data["rows"]
    )
    turns = tuple(Turn(**turn | {"actions": tuple(turn["actions"])}) for turn in data["turns"])
    failure = None if data["failure"] is None else Failure(**data["failure"])
    return Episode(**data | {"rows": rows, "turns": turns, "failure": failure})
