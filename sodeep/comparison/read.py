"""A finished or interrupted comparison, read from its folder."""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sodeep._core.arrays import read_npz
from sodeep._core.checks import user_path
from sodeep.comparison.runs import Run, read_runs
from sodeep.comparison.statistics import Summary, summarise
from sodeep.datasets.types import Array

NOTHING = "\N{EN DASH}"
"""What a table shows where there is no value."""


@dataclass(frozen=True)
class Comparison:
    """The content of a comparison's folder, from which reports are made.

    Attributes:
        folder: where it is.
        origin: the content of comparison.json: batch size, steps, losses in order, versions; empty without that file.
        runs: loss by loss in that order, then by seed, whatever the order in which they were done.
        summary: their statistics.
    """

    folder: Path
    origin: dict[str, Any]
    runs: list[Run]
    summary: Summary

    @property
    def primary_metric(self) -> str:
        """What settings were chosen by; "" where no run was finished."""
        return next(iter(self.summary.metrics), "")

    @functools.cached_property
    def tested(self) -> dict[str, list[Run]]:
        """Loss -> its tested runs, by seed; losses without one are left out. Colours follow their order."""
        tested: dict[str, list[Run]] = {loss: [] for loss in self.summary.losses}
        for run in self.runs:
            if (run.stage, run.status) == ("test", "ok"):
                tested[run.loss].append(run)
        return {loss: sorted(runs, key=lambda run: run.seed) for loss, runs in tested.items() if runs}

    @property
    def ranked(self) -> list[str]:
        """Losses, the best mean of the primary metric first, those without a result last."""
        sign = -1 if self.summary.metrics.get(self.primary_metric, True) else 1

        def place(loss: str) -> float:
            cell = self.summary.cells.get((loss, self.primary_metric))
            return math.inf if cell is None or math.isnan(cell.mean) else sign * cell.mean

        return sorted(self.summary.losses, key=place)

    def curves(self, name: str) -> dict[str, list[list[tuple[int, float]]]]:
        """Loss -> the curve of each tested run; empty where none has it."""
        curves = {
            loss: [run.curves[name] for run in runs if run.curves.get(name)] for loss, runs in self.tested.items()
        }
        return curves if any(curves.values()) else {}

    def arrays(self, run: Run, *names: str) -> dict[str, Array]:
        """Those of the named arrays that a run has, in one reading of its file.

        Raises:
            ValueError: the file is damaged; the message names it.
        """
        path = self.folder / run.details if run.details else None
        if path is None or not path.is_file():
            return {}
        try:
            return read_npz(path, names)
        except ValueError as error:
            raise ValueError(f"{path} must hold the arrays of a test: {error}. Delete it.") from None

    def details(self, *names: str, first: bool = False) -> Iterator[tuple[Run, dict[str, Array]]]:
        """The tested runs that have all of the named arrays, with these; or the `first` one of each loss."""
        for runs in self.tested.values():
            for run in runs:
                arrays = self.arrays(run, *names)
                if len(arrays) == len(names):
                    yield run, arrays
                    if first:
                        break


def read_comparison(folder: str | os.PathLike[str], baseline: str | None = None) -> Comparison:
    """The comparison in a folder, with its statistics.

    Args:
        folder: of a comparison, with runs.jsonl and details/.
        baseline: the loss that others are compared with. None: the task's, or the first there is.

    Raises:
        FileNotFoundError: there are no runs in `folder`.
        ValueError: none of the runs is of the baseline; they are of several tasks or data sets; or comparison.json
            is damaged.
    """
    runs = read_runs(folder)
    if not runs:
        raise FileNotFoundError(f"`folder` must hold runs of a comparison (runs.jsonl), got '{folder}' without any.")
    place = user_path(folder)
    origin = _origin(place)
    # not as they came: processes side by side, or a start after a failure, would make another report of the same runs
    losses = list(dict.fromkeys([*origin.get("losses", []), *(run.loss for run in runs)]))
    places = {loss: number for number, loss in enumerate(losses)}
    runs.sort(key=lambda run: (places[run.loss], run.seed, run.stage == "test", settings_text(run.settings)))
    return Comparison(place, origin, runs, summarise(runs, baseline, origin.get("metric")))


def _origin(folder: Path) -> dict[str, Any]:
    path = folder / "comparison.json"
    try:
        return dict(json.loads(path.read_bytes())) if path.is_file() else {}
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} must be the JSON object that describes a comparison, got another file ({error})."
        ) from None


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings or values by name in a line, as tables and messages show them.

    >>> settings_text({"lr": 0.001, "form": "ap"})
    'lr 0.001, form ap'
    """
    parts = (f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in settings.items())
    return ", ".join(parts) or NOTHING
