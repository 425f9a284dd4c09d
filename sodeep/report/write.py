"""Draw the figures of a comparison, and write its report as Markdown, JSON and HTML."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sodeep._core.checks import user_path
from sodeep._core.extras import is_missing, remedy
from sodeep._core.files import write_atomic
from sodeep.comparison.read import Comparison
from sodeep.report.html import to_html
from sodeep.report.text import to_json, to_markdown, without_nan
from sodeep.tasks.base import Loss

if TYPE_CHECKING:
    from sodeep.report.figures import ReportFigure


NO_MATPLOTLIB = f"Figures are left out: matplotlib is not installed. Install it: {remedy('matplotlib')}"


def draw_figures(
    comparison: Comparison, losses: Mapping[str, Loss] | None = None
) -> tuple[list[ReportFigure], list[str]]:
    """The figures of the report, and notes on what is missing and why (matplotlib is not installed).

    They may be saved in a format of your own: ``figures[0].figure.savefig("seeds.pdf")``.

    Args:
        comparison: from `sodeep.comparison.read.read_comparison`.
        losses: name -> ``loss(scores, relevant)``, to draw the pair weights of losses of your own; the package's are
            built by name.
    """
    try:
        from sodeep.report.figures import draw_all
    except ModuleNotFoundError as error:
        if not is_missing(error, "matplotlib"):
            raise
        return [], [NO_MATPLOTLIB]
    return draw_all(comparison, losses or {}), []


def write_report(
    comparison: Comparison,
    figures: Sequence[ReportFigure] = (),
    notes: Sequence[str] = (),
    *,
    out: str | os.PathLike[str] | None = None,
    command: str | None = None,
) -> dict[str, Path]:
    """Write report.md, report.json and report.html.

    Args:
        comparison: from `sodeep.comparison.read.read_comparison`.
        figures: from `draw_figures`, for the page.
        notes: what is missing and why, for every report.
        out: folder to write to, made if it is not there. None: that of the comparison.
        command: the command that was run, to be shown.

    Returns:
        "markdown", "json" and "html" -> file.
    """
    target = comparison.folder if out is None else user_path(out)
    target.mkdir(parents=True, exist_ok=True)
    texts = {
        "markdown": ("report.md", to_markdown(comparison, figures, notes, command)),
        "json": (
            "report.json",
            json.dumps(without_nan(to_json(comparison, notes, command)), indent=1, allow_nan=False),
        ),
        "html": ("report.html", to_html(comparison, figures, notes, command)),
    }
    files = {}
    for form, (name, text) in texts.items():
        files[form] = target / name
        write_atomic(files[form], text.encode())
    return files
