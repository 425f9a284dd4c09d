"""Draws the figures of a comparison, and writes its report in every form."""

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
from sodeep.report.text import _strict, to_json, to_markdown
from sodeep.tasks.base import Loss

if TYPE_CHECKING:
    from sodeep.report.figures import ReportFigure


NO_MATPLOTLIB = f"Pictures are left out: matplotlib is not installed. Install it: {remedy('matplotlib')}"


def draw_figures(
    comparison: Comparison, losses: Mapping[str, Loss] | None = None
) -> tuple[list[ReportFigure], list[str]]:
    """The figures of the report, and notes on what is missing and why (matplotlib is not installed).

    They may be saved in a format of your own: ``figures[0].figure.savefig("seeds.pdf")``.

    Args:
        comparison: from `sodeep.comparison.read.read_comparison`.
        losses: name -> ``loss(scores, relevant)``, to draw the pair weights of losses of your own; ours are found by
            their names.
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
        notes: what is missing and why; every report says it.
        out: folder to write to, made if it is not there. None: that of the comparison.
        command: what was run, to be shown.

    Returns:
        "markdown", "json" and "html" -> file.
    """
    target = comparison.folder if out is None else user_path(out)
    target.mkdir(parents=True, exist_ok=True)
    texts = {
        "markdown": ("report.md", to_markdown(comparison, figures, notes, command)),
        "json": ("report.json", json.dumps(_strict(to_json(comparison, notes, command)), indent=1, allow_nan=False)),
        "html": ("report.html", to_html(comparison, figures, notes, command)),
    }
    files = {}
    for kind, (name, text) in texts.items():
        files[kind] = target / name
        write_atomic(files[kind], text.encode())
    return files
