"""The live panel: a box of text, drawn anew from the state of the run each time.

    Progress, Usage, facts ──> render_panel(width) ──> one rich Text: border · facts · bar · columns

    below 100 columns                            from 100 columns on
    summary  │ where the time goes               summary  │ where the time goes │ losses
    episodes │                                   episodes │                     │ ledger
    losses, ledger

Lines are laid out by hand (text_layout), not with rich's tables: drawing happens in the learner's thread and must stay
a matter of a few milliseconds. At 80 columns it has at most 24 lines, the height of a classic terminal.
This file does not know when it is drawn, or whether there is a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.views.number_format import count, decimal, duration, size, whole
from headrace.views.process_usage import Usage
from headrace.views.progress import Progress
from headrace.views.text_layout import (
    GAP,
    LABEL_STYLE,
    TITLE_STYLE,
    UNICODE,
    Glyphs,
    TextLine,
    beside,
    boxed,
    row,
    tiled,
)
from headrace.views.time_split import PHASES, group_percentages

if TYPE_CHECKING:
    from rich.text import Text

MIN_WIDTH = 60  # a narrower terminal sees the left part
MAX_WIDTH = 120
_WIDE = 100
_LEFT_WIDTH = 25
_MIN_RIGHT_WIDTH = 37  # two columns of the longest label and a number of seven cells
_GROUP_STYLES = {"collect": "cyan", "learn": "magenta", "wait": "yellow", "other": "bright_black"}

# label, tag, sign: SB3 logs negative entropy, people think in positive.
_LOSSES = (
    ("policy", "train/policy_gradient_loss", 1.0),
    ("value", "train/value_loss", 1.0),
    ("entropy", "train/entropy_loss", -1.0),
    ("explained", "train/explained_variance", 1.0),
    ("KL", "train/approx_kl", 1.0),
    ("clipped", "train/clip_fraction", 1.0),
    ("grad norm", "train/grad_norm", 1.0),
    ("lr", "train/learning_rate", 1.0),
)


def render_panel(
    title: str,
    facts: Mapping[str, str],
    progress: Progress,
    usage: Usage,
    uptime_s: float,
    width: int,
    glyphs: Glyphs = UNICODE,
) -> Text:
    from rich.text import Text

    width = max(MIN_WIDTH, min(width, MAX_WIDTH))
    inner = width - 4
    left = _summary(progress, uptime_s) + _episodes(progress, glyphs)
    if width >= _WIDE:
        rest = inner - _LEFT_WIDTH - 2 * GAP
        right_width = max(_MIN_RIGHT_WIDTH, rest // 2)
        middle_width = rest - right_width
        middle = _time_split(progress, middle_width, glyphs)
        right = [*_losses(progress, right_width, 2, glyphs), TextLine(), *_ledger(progress, right_width, 2, glyphs)]
        body = beside([(left, _LEFT_WIDTH), (middle, middle_width), (right, right_width)], glyphs)
    else:
        right_width = inner - _LEFT_WIDTH - GAP
        body = beside([(left, _LEFT_WIDTH), (_time_split(progress, right_width, glyphs), right_width)], glyphs)
        num_columns = 4 if width >= 80 else 2
        body += [*_losses(progress, inner, num_columns, glyphs), *_ledger(progress, inner, num_columns, glyphs)]
    lines = [_facts(facts, inner, glyphs), _bar(progress, inner, glyphs), TextLine(), *body]

    text = Text(no_wrap=True, overflow="crop", end="")
    for line in boxed(lines, title, f"CPU {usage.cpu_percent:.0f}%  {size(usage.memory_bytes)}", width, glyphs):
        for span, style in line.spans:
            text.append(span, style or None)
        text.append("\n")
    text.right_crop(1)
    return text


def _facts(facts: Mapping[str, str], width: int, glyphs: Glyphs) -> TextLine:
    """As many whole facts as fit."""
    line = TextLine()
    for name, value in facts.items():
        spans = [("   " if line.spans else "", ""), (f"{name} ", LABEL_STYLE), (value, "")]
        if line.spans and len(line) + len(TextLine(*spans)) > width - 2:
            line.spans.append((f" {glyphs.ellipsis}", LABEL_STYLE))
            break
        line.spans += spans
    return line


def _bar(progress: Progress, width: int, glyphs: Glyphs) -> TextLine:
    note = f"  {progress.fraction:4.0%}  {progress.steps:,} / {progress.total_timesteps:,} steps"
    length = max(0, width - len(note))
    done = round(progress.fraction * length)
    return TextLine(
        (glyphs.bar_done * done, "bold green"), (glyphs.bar_left * (length - done), LABEL_STYLE), (note, "")
    )


def _summary(progress: Progress, uptime_s: float) -> list[TextLine]:
    rows = {
        "steps": whole(progress.steps),
        "steps/s": whole(progress.sps),
        "updates": whole(progress.latest.get("time/iterations")),
        "uptime": duration(uptime_s),
        "remaining": duration(progress.remaining_s),
    }
    return [TextLine(("Summary", TITLE_STYLE)), *(row(label, value, _LEFT_WIDTH) for label, value in rows.items())]


def _episodes(progress: Progress, glyphs: Glyphs) -> list[TextLine]:
    latest = progress.latest
    rows = {
        "return": decimal(latest.get("rollout/ep_rew_mean")),
        "length": decimal(latest.get("rollout/ep_len_mean")),
        "finished": whole(latest.get("headrace/episodes")),
    }
    if "eval/mean_reward" in latest:
        rows["evaluation"] = decimal(latest["eval/mean_reward"])
    lines = [TextLine(("Episodes", TITLE_STYLE)), *(row(label, value, _LEFT_WIDTH) for label, value in rows.items())]
    points = progress.returns.resampled(_LEFT_WIDTH)
    if len(points) >= 2:
        lines.append(TextLine((_sparkline(points, glyphs.heights), "green")))
    return lines


def _sparkline(points: Sequence[float], heights: str) -> str:
    low, high = min(points), max(points)
    scale = (len(heights) - 1) / (high - low) if high > low else 0.0
    return "".join(heights[round((point - low) * scale)] for point in points)


def _time_split(progress: Progress, width: int, glyphs: Glyphs) -> list[TextLine]:
    lines = [TextLine(("Where the time goes", TITLE_STYLE))]
    percentages = progress.percentages
    if not percentages:
        return [*lines, TextLine(("not measured yet", LABEL_STYLE))]
    for group, group_percentage in group_percentages(percentages).items():
        style = _GROUP_STYLES[group]
        phases = [phase.name for phase in PHASES if phase.group == group]
        if phases != [group]:
            lines.append(TextLine((f"{group:<12}", f"bold {style}"), (f"{group_percentage:3d}%", f"bold {style}")))
        for phase in phases:
            label = phase if phases == [group] else f"  {phase}"
            bar = _filled(percentages[phase] / 100, width - 18, glyphs)
            lines.append(TextLine((f"{label:<12}", style), (f"{percentages[phase]:3d}%  ", ""), (bar, style)))
    return lines


def _filled(share: float, width: int, glyphs: Glyphs) -> str:
    parts = len(glyphs.eighths) - 1
    cells, part = divmod(round(share * width * parts), parts)
    return glyphs.eighths[-1] * cells + (glyphs.eighths[part] if part else "")


def _losses(progress: Progress, width: int, num_columns: int, glyphs: Glyphs) -> list[TextLine]:
    values = {}
    for label, tag, sign in _LOSSES:
        value = progress.latest.get(tag)
        values[label] = decimal(value if value is None else sign * value)
    if "train/std" in progress.latest:
        values["action std"] = decimal(progress.latest["train/std"])
    return tiled("Losses", values, width, num_columns, glyphs)


def _ledger(progress: Progress, width: int, num_columns: int, glyphs: Glyphs) -> list[TextLine]:
    latest = progress.latest
    values = {
        name: count(latest.get(f"headrace/ledger/{name}")) for name in ("produced", "consumed", "rejected", "discarded")
    }
    values |= {
        "lag": decimal(latest.get("headrace/lag")),
        "queue": whole(latest.get("headrace/queue_depth")),
        "age": duration(latest.get("headrace/rollout_age_s")),
        "restarts": whole(latest.get("headrace/restarts")),
    }
    return tiled("Ledger", values, width, num_columns, glyphs)
