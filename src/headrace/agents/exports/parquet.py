"""Records as a Parquet file, an episode a row: ids, masks and log-probabilities of every token row, turns, metrics.

What is written comes back: read_parquet(write_parquet(groups)) has the same fingerprint.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headrace.agents import given
from headrace.agents.codec import Codec, describe, described
from headrace.agents.records import Episode, Failure, Group, Turn, token_row
from headrace.errors import UsageError
from headrace.keywords import in_words

_CODEC = b"headrace.codec"


@in_words()
def write_parquet(groups: Group | Iterable[Group], path: str | os.PathLike[str], codec: Codec | None = None) -> Path:
    """All of them, at once or not at all; with the codec, if it is given, for readers of the tokens."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, groups = given.path("path", path), given.listed("groups", groups, Group, given.GROUPS)
    if codec is not None:
        given.require("codec", codec, "the engine's codec", "eos_id", "encode")
    if not path.parent.is_dir():
        raise UsageError(f"path: expected a file in an existing directory, got {str(path)!r}")
    twice = sorted(number for number, plays in Counter(group.number for group in groups).items() if plays > 1)
    if twice:
        raise UsageError(
            f"groups: expected every number once, got group {twice[0]} more than once; write each play to its own file"
        )
    rows = [_row(group, episode) for group in sorted(groups, key=lambda one: one.number) for episode in group.episodes]
    table = pa.Table.from_pylist(rows, schema=_schema(pa))
    if codec is not None:
        table = table.replace_schema_metadata({_CODEC: json.dumps(describe(codec))})
    temporary = path.with_name(f".{path.name}.part")
    pq.write_table(table, temporary)
    os.replace(temporary, path)
    return path


@in_words()
def read_parquet(path: str | os.PathLike[str]) -> list[Group]:
    """The groups of a file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = given.path("path", path)
    try:
        rows = pq.read_table(path).to_pylist()
        groups: dict[int, list[Episode]] = {}
        heads: dict[int, dict[str, Any]] = {}
        for row in rows:
            groups.setdefault(row["group"], []).append(_episode(row))
            heads[row["group"]] = row
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: expected records as Parquet: {type(error).__name__}: {error}") from error
    return [
        Group(number, heads[number]["tag"], heads[number]["seed"], tuple(sorted(episodes, key=lambda one: one.member)),
              heads[number]["worker"], heads[number]["group_seconds"], heads[number]["lag"], heads[number]["max_lag"])
        for number, episodes in groups.items()
    ]  # fmt: skip


def read_codec(path: Path) -> Codec | None:
    """The codec that was written with the records."""
    import pyarrow.parquet as pq

    stored = (pq.read_schema(path).metadata or {}).get(_CODEC)
    return None if stored is None else described(json.loads(stored))


def _row(group: Group, one: Episode) -> dict[str, Any]:
    return {
        "group": one.group,
        "member": one.member,
        "tag": one.tag,
        "seed": one.seed,
        "status": one.status,
        "group_status": group.status,
        "reward": one.reward,
        "failure_boundary": one.failure.boundary if one.failure else None,
        "failure_message": one.failure.message if one.failure else None,
        "attempts": one.attempts,
        "is_trainable": one.is_trainable,
        "system": one.system,
        "worker": group.worker,
        "group_seconds": group.seconds,
        "lag": group.lag,
        "max_lag": group.max_lag,
        "metrics": json.dumps(one.metrics, sort_keys=True),
        "messages": one.messages,
        "rows": [{name: getattr(row, name).tolist() for name in vars(row)} for row in one.rows],
        "turns": [dict(vars(turn)) | {"actions": list(turn.actions)} for turn in one.turns],
    }


def _episode(row: dict[str, Any]) -> Episode:
    failure = None if row["failure_boundary"] is None else Failure(row["failure_boundary"], row["failure_message"])
    return Episode(
        row["group"],
        row["member"],
        row["tag"],
        row["seed"],
        row["status"],
        tuple(token_row(**one) for one in row["rows"]),
        tuple(Turn(**one | {"actions": tuple(one["actions"])}) for one in row["turns"]),
        json.loads(row["metrics"]),
        failure,
        row["attempts"],
        row["is_trainable"],
        row.get("system", ""),
    )


def _schema(pa: Any) -> Any:
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    tokens = pa.struct(
        [
            ("ids", pa.list_(pa.int32())),
            ("loss_mask", pa.list_(pa.uint8())),
            ("log_probs", pa.list_(pa.float32())),
            ("versions", pa.list_(pa.int32())),
        ]
    )
    turn = pa.struct(
        [
            ("prompt", pa.string()),
            ("answer", pa.string()),
            ("actions", pa.list_(pa.string())),
            ("is_valid", pa.bool_()),
            ("reward", pa.float64()),
            ("row", pa.int32()),
            ("start", pa.int32()),
            ("stop", pa.int32()),
            ("engine_s", pa.float64()),
            ("env_s", pa.float64()),
            ("exchange", pa.string()),
        ]
    )
    return pa.schema(
        [
            ("group", pa.int64()),
            ("member", pa.int32()),
            ("tag", pa.string()),
            ("seed", pa.int64()),
            ("status", pa.string()),
            ("group_status", pa.string()),
            ("reward", pa.float64()),
            ("failure_boundary", pa.string()),
            ("failure_message", pa.string()),
            ("attempts", pa.int32()),
            ("is_trainable", pa.bool_()),
            ("system", pa.string()),
            ("worker", pa.int32()),
            ("group_seconds", pa.float64()),
            ("lag", pa.int32()),
            ("max_lag", pa.int32()),
            ("metrics", pa.string()),
            ("messages", pa.list_(message)),
            ("rows", pa.list_(tokens)),
            ("turns", pa.list_(turn)),
        ]
    )
