"""A comparison of ways to play, for people: a table for the terminal, a picture, and the numbers as JSON.

Comparison ──> text_table · write_plot · numbers

Tags come from a configuration file: what is printed is printable. Knows how nothing is played.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.agents.compare import WAITING, Comparison, Side, Table
from headrace.plain_text import printable

_GREY, _BLUE = "#7a8793", "#2a7f9e"
_HEAD = ("environments", "way", "seconds", "episodes/s", "turns/s", "batch", "speed-up", "records")


def text_table(comparison: Comparison) -> str:
    """For the terminal."""
    rows = _rows(comparison.counting, comparison.chosen)
    if comparison.cheap is not None:
        rows += _rows(comparison.cheap, None)
    widths = [max(len(row[at]) for row in [_HEAD, *rows]) for at in range(len(_HEAD))]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in [_HEAD, *rows]]
    lines += ["", *_reading(comparison), ""]
    lines += _metrics(comparison)
    lines += ["", *(f"{'ok  ' if holds else 'FAIL'}  {name}" for name, holds in comparison.checks.items())]
    return "\n".join(printable(line, is_one_line=True) for line in lines)


def numbers(comparison: Comparison) -> dict[str, Any]:
    """As JSON."""

    def plain(table: Table) -> list[dict[str, Any]]:
        return [
            {
                "way": side.how,
                "backend": side.way.backend,
                "seconds": side.seconds,
                "episodes_per_s": _per_s(side),
                "speed_up": table.speed_up(side),
            }
            for side in table.sides
        ]

    return {
        "agree": comparison.agree,
        "speed_up": comparison.speed_up,
        "chosen": comparison.chosen.how,
        "added": comparison.added,
        "checks": comparison.checks,
        "sequential_s": comparison.sequential.seconds,
        "parallel_s": comparison.chosen.seconds,
        "all": plain(comparison.counting),
        "cheap": plain(comparison.cheap) if comparison.cheap else [],
        "metrics": {"sequential": comparison.sequential.metrics, "parallel": comparison.chosen.metrics},
    }


def _rows(table: Table, counting: Side | None) -> list[tuple[str, ...]]:
    return [
        (
            table.name if at == 0 else "",
            side.how + (" <-" if side is counting else ""),
            f"{side.seconds:.2f}",
            f"{_per_s(side):.1f}",
            f"{side.statistics.turns / max(side.seconds, 1e-9):.1f}",
            f"{side.statistics.engine.batch_mean:.1f}",
            f"{table.speed_up(side):.2f}x",
            side.fingerprint[:12],
        )
        for at, side in enumerate(table.sides)
    ]


def _aligned(row: tuple[str, ...], widths: list[int]) -> list[str]:
    return [
        f"{cell:<{width}}" if at < 2 else f"{cell:>{width}}"
        for at, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def _reading(comparison: Comparison) -> list[str]:
    chosen = comparison.chosen
    lines = [f"<- the row that counts: {comparison.speed_up:.2f}x sequential. {chosen.way.reason}"]
    if comparison.added:
        lines.append(
            f"{WAITING} was put beside the configured environments: its calls wait for 20 to 50 ms, as a tool does. "
            "--cheap-only leaves it out."
        )
    if comparison.cheap is not None:
        lines.append(f"cheap ones only: auto chose {comparison.cheap.sides[1].how.removeprefix('auto: ')}.")
    return lines


def _metrics(comparison: Comparison) -> list[str]:
    one, other = comparison.sequential, comparison.chosen
    ours, theirs = one.metrics, other.metrics
    names = [name for name in sorted({*ours, *theirs}) if _is_shown(name)]
    rows: list[tuple[str, ...]] = [("metrics", "sequential", "chosen")]
    rows += [(name, *(f"{metrics.get(name, float('nan')):.3f}" for metrics in (ours, theirs))) for name in names]
    bad = comparison.faulty.sides
    rows.append(("with failures: groups failed", *(f"{len(side.failures)} of {len(side.groups)}" for side in bad)))
    rows.append(("with failures: records", *(side.fingerprint[:12] for side in bad)))
    width = max(len(row[0]) for row in rows) + 2
    return [f"{name:<{width}}{left:>14}{right:>14}" for name, left, right in rows]


def _is_shown(name: str) -> bool:
    return name.rpartition("/")[2] in ("success", "reward", "groups_failed") or "pass@" in name


def _per_s(side: Side) -> float:
    return side.statistics.episodes / max(side.seconds, 1e-9)


def write_plot(comparison: Comparison, path: Path) -> Path:
    """Speeds and metrics, as bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    one, other = comparison.sequential.metrics, comparison.chosen.metrics
    names = [name for name in sorted(one) if name.endswith("/success") or "/pass@" in name]
    tables = [comparison.counting, *([comparison.cheap] if comparison.cheap else [])]
    ratios = (*(len(table.sides) for table in tables), 4)
    figure, axes = plt.subplots(
        1, len(ratios), figsize=(4 + 3 * len(tables), 0.21 * max(14, len(names)) + 1.8), width_ratios=ratios
    )
    for panel, table in zip(axes, tables, strict=False):
        speeds = [_per_s(side) for side in table.sides]
        labels = [side.how.replace(", ", "\n").replace(": ", ":\n") for side in table.sides]
        bars = panel.bar(labels, speeds, color=[_GREY, *[_BLUE] * (len(speeds) - 1)], width=0.6)
        panel.bar_label(
            bars,
            [f"{speed:.1f}\n{table.speed_up(side):.2f}x" for side, speed in zip(table.sides, speeds, strict=True)],
            padding=2,
        )
        panel.set_title(f"episodes/s, {table.name}", loc="left", fontsize=10)
        panel.margins(y=0.18)
        panel.tick_params(axis="x", labelsize=8)
    right = axes[-1]
    places = range(len(names))
    for shift, metrics, colour, label in ((0.2, one, _GREY, "sequential"), (-0.2, other, _BLUE, "chosen")):
        values = [metrics.get(name, 0.0) for name in names]
        right.barh([at + shift for at in places], values, 0.38, color=colour, label=label)
    right.set_yticks(list(places), [printable(name, is_one_line=True) for name in names], fontsize=8)
    right.set_xlim(0, 1)
    right.set_title("identical records" if comparison.agree else "RECORDS DIFFER", loc="left", fontsize=10)
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=2, frameon=False)
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
