"""Styled lines of text put into rows, columns and a box, cell by cell.

    TextLine (spans of text and style) ──> row · tiled ──> beside (columns) ──> boxed (border with a heading)

Pure: a TextLine is data, whoever shows it turns spans into escape codes. One character counts as one cell.
This file does not know what the lines say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

GAP = 3  # cells between columns
TITLE_STYLE = "bold blue"
LABEL_STYLE = "bright_black"


@dataclass(frozen=True)
class Glyphs:
    """The characters of the panel; a terminal that can't show the first set gets the second."""

    corners: str
    horizontal: str
    vertical: str
    bar_done: str
    bar_left: str
    eighths: str  # of a bar's last cell, emptiest first
    heights: str  # of the sparkline, lowest first
    ellipsis: str


UNICODE = Glyphs("╭╮╰╯", "─", "│", "━", "─", " ▏▎▍▌▋▊▉█", "▁▂▃▄▅▆▇█", "…")
ASCII = Glyphs("++++", "-", "|", "=", "-", " #", "_.-=+*#", "~")

Span = tuple[str, str]  # text, style


class TextLine:
    """Styled text of a known number of cells."""

    def __init__(self, *spans: Span) -> None:
        self.spans = list(spans)

    def __len__(self) -> int:
        return sum(len(text) for text, _ in self.spans)

    def fitted(self, width: int, ellipsis: str) -> TextLine:
        """Exactly width cells: padded with blanks, or cut with an ellipsis."""
        excess = len(self) - width
        if excess <= 0:
            return TextLine(*self.spans, (" " * -excess, ""))
        room = width - 1
        kept: list[Span] = []
        for text, style in self.spans:
            kept.append((text[:room], style))
            room -= len(kept[-1][0])
        return TextLine(*kept, (ellipsis, ""))


def boxed(lines: Sequence[TextLine], title: str, corner_note: str, width: int, glyphs: Glyphs) -> list[TextLine]:
    edge = LABEL_STYLE
    heading = TextLine(("headrace", TITLE_STYLE), (f"  {title}", "bold"))
    heading = heading.fitted(min(len(heading), width - len(corner_note) - 9), glyphs.ellipsis)
    rule = glyphs.horizontal * (width - len(heading) - len(corner_note) - 8)
    top_left, top_right, bottom_left, bottom_right = tuple(glyphs.corners)
    top = TextLine((f"{top_left}{glyphs.horizontal} ", edge), *heading.spans, (f" {rule} ", edge))
    top.spans += [(corner_note, ""), (f" {glyphs.horizontal}{top_right}", edge)]
    bottom = TextLine((bottom_left + glyphs.horizontal * (width - 2) + bottom_right, edge))
    left, right = (f"{glyphs.vertical} ", edge), (f" {glyphs.vertical}", edge)
    sides = [TextLine(left, *line.fitted(width - 4, glyphs.ellipsis).spans, right) for line in lines]
    return [top, *sides, bottom]


def beside(columns: Sequence[tuple[Sequence[TextLine], int]], glyphs: Glyphs) -> list[TextLine]:
    height = max(len(lines) for lines, _ in columns)
    rows = []
    for index in range(height):
        row = TextLine()
        for lines, width in columns:
            cell = lines[index] if index < len(lines) else TextLine()
            row.spans += [*cell.fitted(width, glyphs.ellipsis).spans, (" " * GAP, "")]
        row.spans.pop()
        rows.append(row)
    return rows


def row(label: str, value: str, width: int, style: str = "bold") -> TextLine:
    return TextLine((label, LABEL_STYLE), (" " * max(1, width - len(label) - len(value)), ""), (value, style))


def tiled(title: str, values: Mapping[str, str], width: int, num_columns: int, glyphs: Glyphs) -> list[TextLine]:
    """A heading, then label-and-value pairs in columns of equal width."""
    cell_width = (width - GAP * (num_columns - 1)) // num_columns
    cells = [row(label, value, cell_width).fitted(cell_width, glyphs.ellipsis) for label, value in values.items()]
    lines = [TextLine((title, TITLE_STYLE))]
    for start in range(0, len(cells), num_columns):
        line = TextLine()
        for cell in cells[start : start + num_columns]:
            line.spans += [*cell.spans, (" " * GAP, "")]
        line.spans.pop()
        lines.append(line)
    return lines
