"""The six pictures of a run: return, speed, losses, KL, entropy, and where the time went.

    records ──> draw_figure ──> PNG bytes

Drawn straight on matplotlib's Agg canvas: no pyplot, no global state, no display. Import this file only to draw, it
brings matplotlib. A number that is missing, null or infinite leaves a gap, a panel without numbers says so.
This file does not know files or HTML.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from headrace.telemetry.sinks import STEP_TAG, Record
from headrace.views.number_format import compact
from headrace.views.time_split import PHASES, time_shares, whole_percentages

_Column = NDArray[np.float64]

_DPI = 130
_MAX_BARS = 60
_SMOOTHED_FROM = 60  # points; below it a running mean says no more than the line


@dataclass(frozen=True)
class Theme:
    """Colours of the figure. `phases` are in the order of PHASES: collect in blues, learn in oranges."""

    background: str
    text: str
    muted: str
    grid: str
    first: str
    second: str
    phases: tuple[str, ...]


# On a dark page the picture is shown with its lightness turned around (page): drawing a second one would cost a second.
LIGHT = Theme(
    background="#ffffff",
    text="#1c2430",
    muted="#667085",
    grid="#e6e9ef",
    first="#2563b8",
    second="#c2570c",
    phases=("#1f5fa8", "#5c9bd6", "#b3d3ee", "#f7c99b", "#fbe3c8", "#dd7f26", "#9aa3b2", "#d5dae2"),
)


# title, then what is on the left axis and on the right: tag, label, sign
_Curve = tuple[str, str, float]
_PAIRS: tuple[tuple[str, _Curve, _Curve], ...] = (
    ("Losses", ("train/policy_gradient_loss", "policy", 1.0), ("train/value_loss", "value", 1.0)),
    ("How far the policy moves", ("train/approx_kl", "KL", 1.0), ("train/clip_fraction", "clipped fraction", 1.0)),
    (
        "Entropy and fit of the values",
        ("train/entropy_loss", "entropy", -1.0),
        ("train/explained_variance", "explained variance", 1.0),
    ),
)


def draw_figure(records: Sequence[Record], title: str, theme: Theme = LIGHT) -> bytes:
    """A second of CPU, most of it for laying out text."""
    with mpl.rc_context(_style(theme)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a run's name may hold any character
        layout = ConstrainedLayoutEngine(w_pad=0.14, h_pad=0.14)
        figure = Figure(figsize=(15.0, 8.2), layout=layout, facecolor=theme.background)
        FigureCanvasAgg(figure)
        panels = figure.subplots(2, 3)
        (returns, speed, losses), (divergence, entropy, time) = panels
        _draw_returns(returns, records, theme)
        _draw_speed(speed, records, theme)
        for axes, pair in zip((losses, divergence, entropy), _PAIRS, strict=True):
            _draw_pair(axes, records, theme, *pair)
        _draw_time(time, records, theme)
        last_step = max((record.get(STEP_TAG, 0.0) for record in records), default=0.0)
        for axes in panels.flat:
            axes.set_xlim(0.0, max(last_step, 1.0) * (1.0 if axes is time else 1.03))
        figure.suptitle(title, x=0.99, ha="right", fontsize=9, color=theme.muted)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=_DPI, facecolor=theme.background)
    return buffer.getvalue()


def _style(theme: Theme) -> dict[Any, Any]:
    return {
        "font.size": 10,
        "text.color": theme.text,
        "text.parse_math": False,  # a run's name may hold a dollar sign
        "axes.facecolor": theme.background,
        "axes.edgecolor": theme.grid,
        "axes.labelcolor": theme.muted,
        "axes.titlecolor": theme.text,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "axes.titlesize": 11.5,
        "axes.titlepad": 10,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": theme.grid,
        "grid.linewidth": 0.8,
        "xtick.color": theme.muted,
        "ytick.color": theme.muted,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "legend.frameon": False,
        "legend.fontsize": 9,
    }


def _column(records: Sequence[Record], tag: str) -> _Column:
    return np.array([record.get(tag, np.nan) for record in records], dtype=np.float64)


def _draw_returns(axes: Axes, records: Sequence[Record], theme: Theme) -> None:
    _title(axes, "Episode return")
    steps = _column(records, STEP_TAG)
    is_drawn = _draw_line(axes, steps, _column(records, "rollout/ep_rew_mean"), theme.first, "training")
    evaluated = _column(records, "eval/mean_reward")
    if np.isfinite(evaluated).any():
        axes.plot(
            steps,
            evaluated,
            "o",
            color=theme.second,
            markeredgecolor=theme.background,
            markersize=7,
            label="evaluation",
        )
        is_drawn = True
    if is_drawn:
        axes.legend(loc="best")
    else:
        _say(axes, "no episode has ended", theme)


def _draw_speed(axes: Axes, records: Sequence[Record], theme: Theme) -> None:
    _title(axes, "Steps per second")
    steps = _column(records, STEP_TAG)
    is_drawn = _draw_line(axes, steps, _column(records, "headrace/sps"), theme.first, "each update")
    is_drawn |= _draw_line(axes, steps, _column(records, "time/fps"), theme.second, "since the start", is_under=False)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if is_drawn:
        axes.set_ylim(bottom=0)
        axes.legend(loc="lower right")
    else:
        _say(axes, "not measured", theme)


def _draw_pair(axes: Axes, records: Sequence[Record], theme: Theme, title: str, first: _Curve, second: _Curve) -> None:
    """Two numbers of different scales: the first on the left axis, the second on the right."""
    _title(axes, title)
    steps = _column(records, STEP_TAG)
    right = axes.twinx()
    right.grid(False)
    is_drawn = False
    for side, colour, (tag, label, sign) in ((axes, theme.first, first), (right, theme.second, second)):
        is_drawn |= _draw_line(side, steps, sign * _column(records, tag), colour, label, is_under=side is axes)
        side.set_ylabel(label, color=colour)
        side.tick_params(axis="y", labelcolor=colour)
        side.yaxis.set_major_locator(MaxNLocator(5))
    if not is_drawn:
        right.set_yticks([])
        _say(axes, "not measured", theme)


def _draw_time(axes: Axes, records: Sequence[Record], theme: Theme) -> None:
    """Bars side by side, each the split of some updates in a row and as wide as the steps they made."""
    _title(axes, "Where the time goes")
    percentages = whole_percentages(time_shares(records))
    if not percentages:
        _say(axes, "not measured", theme)
        return
    chunks = np.array_split(np.arange(len(records)), min(len(records), _MAX_BARS))
    members = [[records[index] for index in chunk] for chunk in chunks]
    edges = [0.0, *(chunk[-1].get(STEP_TAG, 0.0) for chunk in members)]
    splits = [time_shares(chunk) for chunk in members]
    top = np.zeros(len(splits))
    for phase, colour in zip(PHASES, theme.phases, strict=True):
        bottom, top = top, top + [100 * split.get(phase.name, 0.0) for split in splits]
        label = f"{phase.name} {percentages[phase.name]} %"
        axes.stairs(top, edges, baseline=bottom, fill=True, color=colour, linewidth=0, label=label)
    axes.set_ylim(0, 100)
    axes.grid(False)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), reverse=True, handlelength=1.0, labelspacing=0.7)


def _title(axes: Axes, title: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("environment steps")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))


def _draw_line(axes: Axes, steps: _Column, values: _Column, colour: str, label: str, *, is_under: bool = True) -> bool:
    """Whether there was anything to draw. Many points: the raw line faint, its running mean strong.

    Of two lines in a panel one is under the other: where few points are marked, its marks are the larger ones.
    """
    is_there = np.isfinite(steps) & np.isfinite(values)
    steps, values = steps[is_there], values[is_there]
    if not len(values):
        return False
    if len(values) >= _SMOOTHED_FROM:
        axes.plot(steps, values, color=colour, alpha=0.25, linewidth=1.0)
        values = _running_mean(values, len(values) // 30)
    marker = "o" if len(values) <= 3 else ""
    markersize = 10 if is_under else 5
    axes.plot(steps, values, color=colour, linewidth=1.8, marker=marker, markersize=markersize, label=label)
    return True


def _running_mean(values: _Column, reach: int) -> _Column:
    """Mean of the values up to `reach` away on both sides; at the ends, of those there are."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    start, stop = np.maximum(index - reach, 0), np.minimum(index + reach + 1, len(values))
    return np.asarray((sums[stop] - sums[start]) / (stop - start), dtype=np.float64)


def _say(axes: Axes, text: str, theme: Theme) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=theme.muted, fontsize=11)
    axes.set_xticks([])
    axes.set_yticks([])
