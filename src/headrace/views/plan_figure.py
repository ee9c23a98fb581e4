"""The picture of a sizing: supply, demand and link against the number of actors, and where they meet.

Job --curve--> rates --> bytes of a picture         drawn on matplotlib's Agg canvas; import this file only to draw
"""

from __future__ import annotations

import io
import math

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from headrace.planning.sizing import Job, Sizing, curve
from headrace.views.figure import LIGHT
from headrace.views.number_format import compact


def draw_plan(job: Job, sizing: Sizing, form: str = "png") -> bytes:
    """One panel; `form`: png, svg or pdf."""
    marks = [sizing.actors, sizing.actors_needed]
    if math.isfinite(sizing.link_actors):
        marks.append(min(int(sizing.link_actors), 4 * max(marks)))
    points = curve(job, max(4, math.ceil(1.25 * max(marks))))
    actors = [count for count, _ in points]
    figure = Figure((8, 4.5), dpi=130, facecolor=LIGHT.background, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(actors, [one.supply for _, one in points], "--", color=LIGHT.first, lw=1.5, label="actors supply")
    axes.axhline(sizing.rollout_demand, ls="--", lw=1.5, color=LIGHT.second, label="learner demands")
    top = 1.3 * max(sizing.rollout_demand, sizing.rate)
    if math.isfinite(sizing.link_sps):
        top = max(top, 1.05 * points[-1][1].supply if sizing.link_sps <= points[-1][1].supply else 0.0)
        where = "" if sizing.link_sps <= top else f" {compact(sizing.link_sps)} (above)"
        axes.axhline(sizing.link_sps, ls="--", lw=1.5, color=LIGHT.muted, label=f"link carries{where}")
    axes.plot(actors, [one.rate for _, one in points], color=LIGHT.text, lw=2.5, label="rate of the whole")
    axes.plot([sizing.actors], [sizing.rate], "o", color=LIGHT.text)
    fleet = f"{sizing.actors:,} actor{'s'[: sizing.actors > 1]}"
    note = f"{fleet}: {compact(sizing.rate)} steps/s, bound by the {sizing.binding}"
    axes.set_title(note, loc="left", color=LIGHT.text)  # above all lines, wherever they run
    axes.set_xlim(0, actors[-1])
    axes.set_ylim(0, top)
    axes.set_xlabel("actors", color=LIGHT.muted)
    axes.set_ylabel("transitions per second", color=LIGHT.muted)
    axes.yaxis.set_major_formatter(lambda value, _: compact(value))
    axes.grid(color=LIGHT.grid)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside lower center", ncols=4)  # lines may run anywhere in the panel
    out = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(out, format=form)
    return out.getvalue()
