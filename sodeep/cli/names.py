"""Names that ``sodeep --help`` lists, repeated here so that help imports no torch; tests compare them with the code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SORTERS = ("cnn", "lstm", "lstm-large", "lstm-end", "gru", "gru-proj", "gru-sum", "mlp", "set")
"""Keys of `sodeep.SORTERS`."""

VALUE_LOSSES = ("l1", "l2", "huber")
"""Keys of `sodeep.training.objective.VALUE_LOSSES`."""

DISTRIBUTIONS = (
    "uniform",
    "normal",
    "even",
    "even-sorted",
    "concat",
    "ties",
    "runs",
    "constant",
    "scaled",
    "skewed",
    "heavy-tailed",
    "clusters",
    "similarities",
    "nearly-sorted",
    "bimodal",
    "even-2019",
    "even-sorted-2019",
    "uniform-normal-2019",
    "even-uniform-2019",
    "ramp-2019",
)
"""Keys of `sodeep.DISTRIBUTIONS`."""


def layouts() -> dict[str, dict[str, str]]:
    """For each task of ``sodeep compare`` that reads data: name of a layout -> what it expects.

    The file is written by ``scripts/list_layouts.py``.
    """
    listed: dict[str, dict[str, str]] = _read("layouts.json")
    return listed


def losses_by_task() -> dict[str, list[str]]:
    """Tasks of ``sodeep compare``, apart by commas -> names of the losses for them; from the same script."""
    listed: dict[str, list[str]] = _read("losses.json")["losses"]
    return listed


def ranks() -> list[str]:
    """Names of the rank functions that need no training; from the same script."""
    listed: list[str] = _read("losses.json")["ranks"]
    return listed


def _read(name: str) -> Any:
    return json.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))
