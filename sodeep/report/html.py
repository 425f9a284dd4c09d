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
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 62rem;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .3rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { padding: .3rem .8rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #ddd; }
th { border-bottom: 2px solid #888; font-weight: 600; }
.words { text-align: left; } th:first-child, td:first-child { padding-left: 0; }
.note, figcaption { color: #555; font-size: 13px; max-width: 48rem; }
figure { margin: 0; } figure img { max-width: 100%; height: auto; }
pre { background: #f4f4f4; padding: .6rem .8rem; overflow-x: auto; }
"""

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

    head = line(table.header, "th")
    rows = "\n".join(line(row, "td") for row in table.rows)
    note = f"<p class=note>{escape(table.note)}</p>" if table.note else ""
    return f"<h2>{escape(table.title)}</h2>\n<div class=scroll><table>\n{head}\n{rows}\n</table></div>\n{note}"


def _html_figure(figure: ReportFigure) -> str:
    data = base64.b64encode(figure.png).decode("ascii")
    width = round(figure.figure.get_figwidth() * 96)
    return (
        f"<h2>{escape(figure.title)}</h2>\n<figure>"
        f'<img width={width} alt="{escape(figure.title)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
    )
