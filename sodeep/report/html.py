"""A comparison as one HTML page, with its figures embedded."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from sodeep.comparison.read import Comparison
from sodeep.report.tables import Table, find_differences, make_tables
from sodeep.report.text import header_lines

if TYPE_CHECKING:
    from sodeep.report.figures import ReportFigure


_STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --page: #fff; --faint: #555; --line: #ddd; --box: #f4f4f4; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e6e6; --page: #16181c; --faint: #a8a8a8; --line: #3a3d42; --box: #22252a; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 62rem;
       margin: 2rem auto; padding: 0 1rem; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; margin-bottom: .3rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
.scroll, figure { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; margin-bottom: .8rem; }
th, td { padding: .3rem .8rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { border-bottom: 2px solid var(--faint); font-weight: 600; }
.words { text-align: left; } .words + .words { white-space: normal; min-width: 15rem; }
th:first-child, td:first-child { padding-left: 0; position: sticky; left: 0; background: var(--page); }
.note, figcaption { color: var(--faint); font-size: 13px; max-width: 48rem; }
figure { margin: 0; } figure img { max-width: 100%; height: auto; }
@media (max-width: 40rem) { figure img { max-width: none; } }
pre { background: var(--box); padding: .6rem .8rem; overflow-x: auto; }
"""

WIDTH = 120
"""Letters in a row of a table, with three between columns: a wider table is shown as several, none of them cut off in
the middle of a column."""

# nothing may be loaded, whatever the names of losses and data sets contain
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def to_html(comparison: Comparison, figures: Sequence[ReportFigure], notes: Sequence[str], command: str | None) -> str:
    """The page, with its figures inside."""
    title = f"Losses compared: {comparison.summary.task}"
    body = [f"<h1>{escape(title)}</h1>", f"<p class=note>{escape(header_lines(comparison))}</p>"]
    if command:
        body.append(f"<pre>{escape(command)}</pre>")
    body += ["<ul>", *(f"<li>{escape(finding)}</li>" for finding in find_differences(comparison)), "</ul>"]
    tables = make_tables(comparison)
    body.append(_html_table(tables[0]))
    body += [_html_figure(figure) for figure in figures[:1]]
    body += [_html_table(table) for table in tables[1:]]
    body += [_html_figure(figure) for figure in figures[1:]]
    body += [f"<p class=note>{escape(note)}</p>" for note in notes]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{_STYLE}</style></head>',
            "<body>",
            *body,
            "</body></html>",
            "",
        ]
    )


def _html_table(table: Table) -> str:
    def line(row: list[str], tag: str) -> str:
        entries = ""
        for place, text in enumerate(row):
            bold = text.startswith("**") and text.endswith("**")
            inner = f"<strong>{escape(text[2:-2])}</strong>" if bold else escape(text)
            entries += f"<{tag}{' class=words' * (place < table.words)}>{inner}</{tag}>"
        return f"<tr>{entries}</tr>"

    def part(columns: list[int]) -> str:
        lines = [line([table.header[i] for i in columns], "th")]
        lines += [line([row[i] for i in columns], "td") for row in table.rows]
        return "\n".join(["<table>", *lines, "</table>"])

    widths = [max(len(row[i].strip("*")) for row in [table.header, *table.rows]) + 3 for i in range(len(table.header))]
    words = list(range(table.words))
    left = WIDTH - sum(widths[i] if i == 0 else min(widths[i], 24) for i in words)  # texts beside the first are wrapped
    groups: list[list[int]] = [[]]
    for column in range(table.words, len(table.header)):
        if groups[-1] and sum(widths[i] for i in [*groups[-1], column]) > left:
            groups.append([])
        groups[-1].append(column)
    parts = [part(words + numbers) for numbers in groups]
    note = f"<p class=note>{escape(table.note)}</p>" if table.note else ""
    shown = "\n".join(f"<div class=scroll>{some}</div>" for some in parts)
    return f"<h2>{escape(table.title)}</h2>\n{shown}\n{note}"


def _html_figure(figure: ReportFigure) -> str:
    data = base64.b64encode(figure.svg).decode("ascii")
    width = round(figure.figure.get_figwidth() * 96)
    return (
        f"<h2>{escape(figure.title)}</h2>\n<figure>"
        f'<img width={width} alt="{escape(figure.title)}" src="data:image/svg+xml;base64,{data}">'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
    )
