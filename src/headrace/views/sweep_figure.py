"""The picture of a sweep: steps per second against B, both logarithmic, with error bars and knees.

curves --> bytes of a picture         drawn on matplotlib's Agg canvas; import this file only to draw
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import cycle

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from headrace.planning.sweep import Curve
from headrace.views.figure import LIGHT
from headrace.views.number_format import compact

_COLOURS = (LIGHT.first, LIGHT.second, LIGHT.muted, LIGHT.text, *LIGHT.phases[1:])


def draw_sweep(title: str, curves: Sequence[Curve], form: str = "png") -> bytes:
    """One panel; `form`: png, svg or pdf."""
    figure = Figure((8, 4.8), dpi=130, facecolor=LIGHT.background, layout="constrained")
    axes = figure.add_subplot()
    for curve, colour in zip(curves, cycle(_COLOURS), strict=False):
        sizes, rates = [point.batch for point in curve.points], [point.typical for point in curve.points]
        errors = [point.error or 0.0 for point in curve.points]
        axes.errorbar(sizes, rates, errors, color=colour, lw=1.8, marker="o", ms=4, capsize=3, label=curve.name)
        if len(curve.points) == 1:
            continue
        at_knee = next(point.typical for point in curve.points if point.batch == curve.knee)
        axes.plot([curve.knee], [at_knee], "o", ms=11, mfc="none", mec=colour, mew=1.8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = sorted({point.batch for curve in curves for point in curve.points})
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    rates = [point.typical for curve in curves for point in curve.points]
    axes.set_ylim(min(rates) / 2, 2 * max(rates))  # with these ticks there is one on the axis, and often more
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.minorticks_off()
    axes.set_xlabel("environments that are stepped together (B); circles: the knee", color=LIGHT.muted)
    axes.set_ylabel("steps per second", color=LIGHT.muted)
    axes.yaxis.set_major_formatter(lambda value, _: compact(value))
    axes.set_title(title, loc="left", color=LIGHT.text)
    axes.grid(color=LIGHT.grid)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")
    out = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(out, format=form)
    return out.getvalue()
