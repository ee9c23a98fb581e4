"""The HTML of a report: one file, nothing to fetch, light and dark.

    Page (plain strings and a PNG) ──> render_page ──> HTML text

Every string is escaped here, in one place, on its way into the page; callers pass plain text. A content policy in the
page forbids scripts and the network, so a name that slipped through could still do nothing.
This file does not know what a run is or where the strings come from.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

Pairs = Sequence[tuple[str, str]]
_SEEN, _LABELLED = 0.002, 0.06  # shares of a strip
_SCALE = "<span>0%</span><span>of the time of an update</span><span>100%</span>"


@dataclass(frozen=True)
class Page:
    title: str
    reading: str  # what the run says, in one sentence
    cards: Pairs  # the few numbers to see first: label, value
    results: Pairs
    config: Pairs
    versions: Pairs
    png: bytes | None  # None: not drawn, and `no_png` says how to
    no_png: str = ""
    verdict: str = ""  # what holds the run up
    causes: Pairs = ()  # a cause, and its evidence
    notes: Sequence[str] = ()
    strips: Sequence[tuple[str, Sequence[tuple[str, float]]]] = ()  # a role; kind and share of each of its parts
    kinds: Pairs = ()  # a kind of part, and its name in the legend
    waiting: str = ""  # who waits for whom


def render_page(page: Page) -> str:
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{escape(page.title)} · headrace</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<header>
<p class="brand">headrace · training report</p>
<h1>{escape(page.title)}</h1>
</header>
<section class="cards">
{_cards(page.cards)}
</section>
<p class="reading">{escape(page.reading)}</p>
{_doctor(page)}<section class="panel figure">
{_figure(page)}
</section>
<section class="panel">
<h2>Result</h2>
{_table(page.results)}
</section>
{_folded("Configuration", page.config)}
{_folded("Versions", page.versions, is_open=True)}
</main>
</body>
</html>
"""


def _doctor(page: Page) -> str:
    """What holds the run up, and who waits for whom; nothing if nothing is known."""
    if not page.verdict:
        return ""
    causes = "".join(f"<li><b>{escape(name)}</b>: {escape(why)}</li>\n" for name, why in page.causes)
    notes = "".join(f"<li>{escape(note)}</li>\n" for note in page.notes)
    listed = f"<ul>\n{causes}{notes}</ul>\n" if causes or notes else ""
    return (
        f'<section class="panel">\n<h2>What holds it up</h2>\n<p class="verdict">{escape(page.verdict)}</p>\n{listed}'
        f"{_strips(page)}</section>\n"
    )


def _strips(page: Page) -> str:
    if not page.strips:
        return ""
    rows = "\n".join(
        f'<div class="role">{escape(role)}</div><div class="strip">{"".join(_part(*part) for part in parts)}</div>'
        for role, parts in page.strips
    )
    shown = {kind for _, parts in page.strips for kind, share in parts if share >= _SEEN}
    legend = "".join(
        f'<span><i class="k-{escape(kind)}"></i>{escape(name)}</span>' for kind, name in page.kinds if kind in shown
    )
    return (
        f'<div class="strips">\n{rows}\n<div></div><div class="scale">{_SCALE}</div>\n</div>\n'
        f'<p class="legend">{legend}</p>\n<p class="none">{escape(page.waiting)}</p>\n'
    )


def _part(kind: str, share: float) -> str:
    """One part of a strip; its share is written on it if there is room."""
    if share < _SEEN:
        return ""
    text = f"{share:.0%}" if share >= _LABELLED else ""
    return f'<span class="k-{escape(kind)}" style="width:{100 * share:.2f}%" title="{share:.1%}">{text}</span>'


def _figure(page: Page) -> str:
    if page.png is None:
        return f'<p class="none">{escape(page.no_png)}</p>'
    alt = "Episode return, steps per second, losses, KL, entropy and time split over environment steps"
    return f'<img src="data:image/png;base64,{b64encode(page.png).decode()}" alt="{alt}">'


def _cards(pairs: Pairs) -> str:
    return "\n".join(
        f'<div class="card"><div class="label">{escape(label)}</div><div class="value">{escape(value)}</div></div>'
        for label, value in pairs
    )


def _table(pairs: Pairs) -> str:
    if not pairs:
        return '<p class="none">none recorded</p>'
    rows = "\n".join(f'<tr><th scope="row">{escape(label)}</th><td>{escape(value)}</td></tr>' for label, value in pairs)
    return f"<table>\n{rows}\n</table>"


def _folded(title: str, pairs: Pairs, is_open: bool = False) -> str:
    return (
        f'<details class="panel"{" open" if is_open else ""}>\n'
        f'<summary><h2>{escape(title)}</h2><span class="amount">{len(pairs)}</span></summary>\n'
        f"{_table(pairs)}\n</details>"
    )


_STYLE = """
:root {
  --page: #f4f6f9; --panel: #ffffff; --text: #1c2430; --muted: #667085; --line: #e3e7ee; --accent: #2563b8;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0d1117; --panel: #161b22; --text: #e6eaf0; --muted: #98a2b3; --line: #2a313c; --accent: #6cb0ff;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1180px; margin: 0 auto; padding: 40px 24px 64px; }
.brand { margin: 0; color: var(--accent); font-size: 13px; font-weight: 600; letter-spacing: .04em; }
h1 { margin: 2px 0 24px; font-size: 26px; line-height: 1.25; overflow-wrap: anywhere; }
h2 { display: inline; margin: 0; font-size: 16px; }
.cards { display: flex; flex-wrap: wrap; gap: 14px; }
.card, .panel { background: var(--panel); border: 1px solid var(--line); border-radius: 12px; }
.card { flex: 1 1 170px; padding: 14px 18px 16px; }
.card .label { color: var(--muted); font-size: 13px; }
.card .value { font-size: 26px; font-weight: 650; line-height: 1.3; font-variant-numeric: tabular-nums; }
.reading { margin: 22px 2px; font-size: 16px; }
.panel { padding: 18px 20px; margin: 0 0 14px; }
.verdict { margin: 8px 0 6px; font-size: 17px; font-weight: 600; }
.panel ul { margin: 0 0 14px; padding-left: 20px; color: var(--muted); font-size: 14px; }
.panel ul b { color: var(--text); font-weight: 600; }
.strips { display: grid; grid-template-columns: max-content 1fr; gap: 6px 14px; align-items: center; margin: 6px 0 0; }
.role { color: var(--muted); font-size: 13px; text-align: right; }
.strip { display: flex; height: 24px; border-radius: 5px; overflow: hidden; background: var(--line); }
.strip span { color: #fff; font-size: 12px; line-height: 24px; text-align: center; overflow: hidden; }
.scale { display: flex; justify-content: space-between; color: var(--muted); font-size: 12px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 10px 0 0; font-size: 13px; }
.legend i { display: inline-block; width: 11px; height: 11px; margin-right: 6px; border-radius: 3px; }
.k-env { background: #1f5fa8; } .k-inference { background: #4a90d0; } .k-copy { background: #7a8ed8; }
.k-asking { background: #2a9d8f; }
.k-learn { background: #cf6f17; } .k-beside { background: #8a5aa8; } .k-other { background: #7d8797; }
.k-wait { background: repeating-linear-gradient(135deg, #c9cfd9 0 5px, #dde2e9 5px 10px); }
.strip .k-wait { color: #4a5361; }
.figure { padding: 14px; }
.figure img { display: block; width: 100%; height: auto; border-radius: 6px; }
table { width: 100%; margin-top: 10px; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 0; border-top: 1px solid var(--line); text-align: left; vertical-align: top; }
th { width: 240px; padding-right: 20px; color: var(--muted); font-weight: 400; overflow-wrap: anywhere; }
td { overflow-wrap: anywhere; }
details td { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: 13px; }
summary { cursor: pointer; }
.amount { margin-left: 8px; color: var(--muted); font-size: 13px; }
.none { margin: 10px 0 0; color: var(--muted); }
@media (prefers-color-scheme: dark) {
  .k-wait { background: repeating-linear-gradient(135deg, #39424f 0 5px, #2d3541 5px 10px); }
  .strip .k-wait { color: #b6bfcc; }
  .figure { background: #171717; }
  .figure img { filter: invert(0.91) hue-rotate(180deg); }
}
@media (max-width: 600px) { main { padding: 24px 14px 40px; } th { width: 42%; } }
"""
