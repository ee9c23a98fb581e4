"""A recorded conversation for the terminal: what was asked, what was sampled, token by token, and what it earned.

Tokens that the policy sampled are green, by how likely they were; what it only read is dim. Without colours the sampled
text stands between ⟦ and ⟧. A model and a file may say anything: control characters are shown as escapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.agents.codec import ByteCodec, Codec, described
from headrace.agents.exports.parquet import read_codec, read_parquet
from headrace.agents.group_log import read_groups
from headrace.agents.pieces import pieces
from headrace.agents.records import Episode, Group
from headrace.errors import UsageError
from headrace.files import MAX_JSON_BYTES, parse_object, read_regular, require_no_links
from headrace.plain_text import printable

if TYPE_CHECKING:
    from rich.text import Text


def read_records(path: Path) -> list[Group]:
    """From a Parquet file, a groups.jsonl, or a run directory that holds one of them."""
    if path.is_dir():
        try:
            require_no_links(path, ("records.parquet", "groups.jsonl", "codec.json"))
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}; name the file itself") from error
        for name in ("records.parquet", "groups.jsonl"):
            if (path / name).exists():
                return read_records(path / name)
        raise UsageError(f"{path}: expected records.parquet or groups.jsonl in it")
    if not path.exists():
        raise UsageError(f"{path}: no such file")
    return read_groups(path) if path.suffix == ".jsonl" else read_parquet(path)


def codec_of(path: Path) -> Codec | None:
    """The codec that lies with some records, if one does."""
    file = (path if path.is_dir() else path.parent) / "codec.json"
    if path.is_dir() and not file.exists():
        path = path / "records.parquet"
    if path.suffix == ".parquet":
        return read_codec(path) if path.exists() else None
    return described(parse_object(read_regular(file, MAX_JSON_BYTES))) if file.exists() else None


def listing(groups: Sequence[Group]) -> str:
    """A line an episode."""
    lines = [f"{'episode':<10}{'tag':<14}{'status':<11}{'turns':>6}{'tokens':>8}{'reward':>9}  note"]
    for group in groups:
        for one in group.episodes:
            sampled = sum(int(row.loss_mask.sum()) for row in one.rows)
            note = f"{one.failure.boundary}: {one.failure.message}" if one.failure else ""
            note = note or ("" if one.is_trainable else "text only")
            who = f"{one.episode_id:<10}{one.tag:<14}{one.status:<11}"
            line = f"{who}{len(one.turns):>6}{sampled:>8}{one.reward:>9.2f}  {note}"
            lines.append(printable(line, is_one_line=True))
    return "\n".join(lines)


def group_of(groups: Sequence[Group], name: str) -> Group:
    """The group of an episode."""
    one = find_episode(groups, name)
    return next(group for group in groups if any(other is one for other in group.episodes))


def find_episode(groups: Sequence[Group], name: str) -> Episode:
    """By its id, group-member."""
    for group in groups:
        for one in group.episodes:
            if one.episode_id == name:
                return one
    known = [one.episode_id for group in groups for one in group.episodes]
    raise UsageError(f"episode {name!r}: expected one of {', '.join(known[:8])}{' ...' if len(known) > 8 else ''}")


def conversation(one: Episode, codec: Codec | None = None, has_colour: bool = True) -> Text:
    """Turn by turn."""
    from rich.text import Text

    codec = codec or ByteCodec()
    text = Text()
    head = f"episode {one.episode_id}  {one.tag}  seed {one.seed}  {one.status}  reward {one.reward:g}"
    text.append(printable(head, is_one_line=True) + "\n", "bold")
    if one.failure is not None:
        text.append(printable(f"failed at the boundary {one.failure.boundary}: {one.failure.message}\n"), "red")
    for index, turn in enumerate(one.turns):
        text.append(f"\nturn {index + 1}", "bold cyan")
        text.append(
            f"  reward {turn.reward:+g}  engine {turn.engine_s * 1e3:.0f} ms  environment {turn.env_s * 1e3:.1f} ms\n",
            "cyan",
        )
        text.append(printable(turn.prompt) + "\n", "dim")
        if turn.stop > turn.start:
            _append_tokens(text, one, index, codec, has_colour)
        else:
            answer = printable(turn.answer)
            text.append(answer if has_colour else f"⟦{answer}⟧", "green")
        done = printable(" · ".join(turn.actions)) if turn.is_valid else "not valid, nothing was done"
        text.append(f"\n-> {done}\n", "bold" if turn.is_valid else "bold red")
    return text


def _append_tokens(text: Text, one: Episode, index: int, codec: Codec, has_colour: bool) -> None:
    """The row's tokens of this turn: sampled ones coloured by their probability."""
    turn = one.turns[index]
    row = one.rows[turn.row]
    ids = row.ids[turn.start : turn.stop].tolist()
    log_probs = row.log_probs[turn.start : turn.stop]
    if not has_colour:
        text.append(f"⟦{printable(codec.decode(ids))}⟧")
        return
    for piece, log_prob in zip(pieces(codec, ids), log_probs, strict=True):
        style = "bold green" if log_prob > -0.7 else "green" if log_prob > -2.3 else "yellow"
        text.append(printable(piece), style)
