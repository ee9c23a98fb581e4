"""A trace of a rollout's conversations: one HTML file that needs no network, for people to look through.

    groups, codec ──> episodes as plain data (texts, token pieces, masks, versions, times) ──> a page with it inside

Texts are of models, environments and files: data, never markup. Here control characters become visible escapes and the
data is written so that it can't end its own element; the script puts it into the page as text only. A content policy
lets nothing run but the script that is shipped here, by its hash, and nothing be fetched.
How it looks and is used is trace.css's and trace.js's matter.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from headrace.agents.codec import ByteCodec, Codec
from headrace.agents.pieces import pieces
from headrace.agents.records import FAILED, LATE, Episode, Group, TokenRow
from headrace.files import require_no_links
from headrace.plain_text import encodable, printable

MOST_EPISODES = 5_000  # of a page: a browser still scrolls it


def write_trace(groups: Sequence[Group], codec: Codec | None, title: str, path: Path) -> int:
    """Write the page, whole or not at all; returns how many episodes it shows: whole groups, up to a limit."""
    kept: list[Group] = []
    shown = 0
    for group in groups:
        if kept and shown + len(group.episodes) > MOST_EPISODES:
            break
        kept.append(group)
        shown += len(group.episodes)
    total = sum(len(group.episodes) for group in groups)
    unfinished = path.with_name(f".{path.name}.unfinished")
    require_no_links(path.parent, [unfinished.name])  # a folder from elsewhere could lead the page to another file
    unfinished.write_text(render(kept, codec or ByteCodec(), title, total), encoding="utf-8")
    os.replace(unfinished, path)
    return shown


def render(groups: Sequence[Group], codec: Codec, title: str, total: int) -> str:
    """The page."""
    style, script = _shipped("trace.css"), _shipped("trace.js")
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    name = escape(encodable(printable(title, is_one_line=True), "utf-8"))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{name} · headrace</title>
<style>{style}</style>
</head>
<body>
<noscript>This page lists conversations with a script that is part of the file. Allow scripts to see them.</noscript>
<div id="app" data-title="{name}"></div>
<script type="application/json" id="records">{_embedded(payload(groups, codec, total))}</script>
<script>{script}</script>
</body>
</html>
"""


def payload(groups: Sequence[Group], codec: Codec, total: int) -> dict[str, Any]:
    """What the script reads."""
    return {
        "total": total,
        "groups": [
            {
                "number": group.number,
                "status": group.status,
                "worker": group.worker,
                "seconds": group.seconds,
                "lag": group.lag,
            }
            for group in groups
        ],
        "episodes": [_episode(one, at, group, codec) for at, group in enumerate(groups) for one in group.episodes],
    }


def _episode(one: Episode, group_index: int, group: Group, codec: Codec) -> dict[str, Any]:
    failure = one.failure
    return {
        "id": one.episode_id,
        "group": group_index,
        "tag": one.tag,
        "seed": one.seed,
        "status": LATE if group.status == LATE and one.status != FAILED else one.status,
        "reward": one.reward,
        "attempts": one.attempts,
        "trainable": one.is_trainable,
        "system": one.system,
        "failure": None if failure is None else [failure.boundary, failure.message],
        "metrics": dict(one.metrics),
        "rows": [_runs(row, codec) for row in one.rows],
        "turns": [
            {
                "prompt": turn.prompt,
                "answer": turn.answer,
                "actions": list(turn.actions),
                "valid": turn.is_valid,
                "reward": turn.reward,
                "row": turn.row,
                "start": turn.start,
                "stop": turn.stop,
                "engine": turn.engine_s,
                "env": turn.env_s,
            }
            for turn in one.turns
        ],
    }


def _runs(row: TokenRow, codec: Codec) -> list[dict[str, Any]]:
    """A row, cut where the loss mask changes: tokens that were given as one text, sampled ones one by one."""
    edges = [0, *(np.flatnonzero(np.diff(row.loss_mask.astype(np.int8))) + 1).tolist(), len(row.ids)]
    runs: list[dict[str, Any]] = []
    for start, stop in pairwise(edges):
        ids = row.ids[start:stop].tolist()
        if not ids:
            continue
        if not row.loss_mask[start]:
            runs.append({"given": codec.decode(ids), "count": len(ids)})
            continue
        versions = row.versions[start:stop].tolist()
        runs.append(
            {
                "pieces": pieces(codec, ids),
                "ids": ids,
                "log_probs": [round(float(one), 3) for one in row.log_probs[start:stop]],
                "versions": versions[0] if len(set(versions)) == 1 else versions,
            }
        )
    return runs


def _embedded(data: Any) -> str:
    """JSON that is inert inside an element: no sign of it is markup, and every character of it can be seen."""
    text = json.dumps(_plain(data), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(value: Any) -> Any:
    """Texts printable, numbers finite or in words."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {printable(str(name)): _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _shipped(name: str) -> str:
    return files("headrace.views").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
