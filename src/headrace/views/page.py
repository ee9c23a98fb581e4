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
<section class="panel figure">
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
  .figure { background: #171717; }
  .figure img { filter: invert(0.91) hue-rotate(180deg); }
}
@media (max-width: 600px) { main { padding: 24px 14px 40px; } th { width: 42%; } }
"""
