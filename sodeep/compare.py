"""Losses side by side: the same task, features, batches, steps and tuning budget for each, several seeds, the spread.

A `Run` is one training, or the test of the best of them. Runs are kept in a folder:

* ``runs.jsonl``: one JSON object a line, as of `Run.to_json`; lines are only ever appended.
* ``details/*.npz``: arrays for pictures, of the tested runs; `Run.details` names the file relative to the folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Run:
    """One training with one setting ("tuning"), or the test of the chosen one ("test").

    Attributes:
        task: name in `sodeep.tasks.TASKS`.
        data: what the data are called.
        loss: as the user wrote it.
        seed: of split, first weights and batches.
        settings: the learning rate "lr" and the loss's own hyper-parameter, name -> value.
        stage: "tuning": `metrics` are of the validation split; "test": of the test split, with the settings that were
            best on the validation split; everything else is that of the training chosen.
        status: "ok" or "failed".
        metrics: name -> value, as in the task's `metrics`; empty if failed.
        curves: name -> [(step, value), ...]: "loss/train", and "val/<metric>" for each metric.
        steps: how many were taken.
        seconds_per_step: median over the steps, loss and encoder, forward and backward.
        peak_memory: bytes a step allocates at its peak, above what model and data hold; None if not measured.
        device: where it ran.
        details: file of arrays for pictures, relative to the folder of the comparison; None if there is none.
        failure: for a failed run, {"step": int, "reason": str, "values": {name: value}}: what was not finite
            ("loss", "gradient norm") or which error was raised.
    """

    task: str
    data: str
    loss: str
    seed: int
    settings: dict[str, Any]
    stage: str
    status: str
    metrics: dict[str, float] = field(default_factory=dict)
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    steps: int = 0
    seconds_per_step: float | None = None
    peak_memory: int | None = None
    device: str = "cpu"
    details: str | None = None
    failure: dict[str, Any] | None = None

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), allow_nan=True)

    @classmethod
    def from_json(cls, line: str) -> Run:
        """The run of a line that `to_json` wrote."""
        values: dict[str, Any] = json.loads(line)
        curves: Mapping[str, Any] = values.get("curves", {})
        values["curves"] = {name: [(int(step), float(y)) for step, y in curve] for name, curve in curves.items()}
        return cls(**values)


# The statistics that tables and reports are made of (written next; the shape is settled):
#
# summarise(runs: Sequence[Run], baseline: str | None = None) -> Summary
#
# Summary(task, data, baseline, metrics: dict[str, bool]  # name -> higher is better, most important first
#         losses: list[str],
#         cells: dict[(loss, metric), Cell],   # Cell(n, mean, sd, difference, difference_sd, low, high, best)
#         chosen: dict[loss, list[settings]], failed: list[Run], seconds_per_step: dict[loss, float],
#         peak_memory: dict[loss, int | None])
#
# difference: mean over the seeds both have of (loss − baseline), low/high its 95% interval (Student's t over seeds),
# None for the baseline itself or with fewer than two seeds in common. best: the best mean of the metric.
#
# read_runs(folder) -> list[Run]
