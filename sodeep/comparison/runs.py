"""One training and its outcome, as a line of runs.jsonl."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sodeep._core.checks import describe, user_path
from sodeep.tasks import TASKS


@dataclass(frozen=True)
class Run:
    """One training with one setting ("tuning"), or the test of the chosen one ("test").

    Attributes:
        task: name in `sodeep.tasks.TASKS`; ``module:class`` of one of the user's own.
        data: their name.
        loss: as the user wrote it.
        seed: of split, initialisation and batches.
        settings: the learning rate "lr" and the loss's own settings, name -> value.
        edges: which of them are at an edge of the range that was searched, name -> "low" or "high".
        start: of a schedule, the settings of the loss before whose encoder this training began with; else empty.
        stage: "tuning": `metrics` are of the validation split; "test": of the test split, with the settings that were
            best on the validation split; all other fields are those of the chosen training, or of the fine-tuning that
            followed it.
        status: "ok" or "failed".
        metrics: name -> value, as in the task's `metrics`; empty if failed.
        curves: name -> [(step, value), ...]: "val/<metric>" for each metric, from step 0, before training, on; and
            "loss/train", the mean since the point before.
        steps: how many were taken.
        best_step: the one after which validation was best, whose weights are tested; 0: the encoder that training
            began with.
        flat: whether the validation metric had stopped to rise; False: the cap on steps ended the training; None: it
            was to take all steps.
        seconds: the whole training took, with its validations.
        seconds_per_step: median over the steps, loss and encoder, forward and backward.
        peak_memory: bytes that a step allocates at its peak, above what model and data hold; None if not measured.
        device: where it ran.
        split: how many items each split has, or groups (`Task.size_of`), and checksums of the data ("data") and of
            which items are in the test split ("items"): they tell whether seeds differ in their data, in their split,
            or in neither.
        details: file of arrays for figures, relative to the folder of the comparison; None if there is none.
        failure: of a failed run, {"step": int, "reason": str, "values": {name: value}}: what was not finite ("loss" or
            "gradient norm"), or which error was raised. With "again": True, what failed was not the loss, but memory,
            a file or the test: the next start of the comparison repeats it.
        lower: of a task of the user's own, the metrics of which lower is better.
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
    edges: dict[str, str] = field(default_factory=dict)
    start: dict[str, Any] = field(default_factory=dict)
    steps: int = 0
    best_step: int | None = None
    flat: bool | None = None
    seconds: float | None = None
    seconds_per_step: float | None = None
    peak_memory: int | None = None
    device: str = "cpu"
    split: dict[str, int] = field(default_factory=dict)
    details: str | None = None
    failure: dict[str, Any] | None = None
    lower: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        """One line of JSON. Values that are not finite, which JSON lacks, are strings such as "nan"."""
        values = asdict(self)
        if not self.lower:  # as of all tasks of this package
            del values["lower"]
        return json.dumps(_plain(values), allow_nan=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> Run:
        """The run of a line that `to_json` wrote, in this version or another: unknown fields are left out.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: `line` is no run.
        """
        saved = json.loads(line)
        if not isinstance(saved, dict):
            raise ValueError(f"`line` must be a run, got {describe(line)}.")
        values = {known.name: saved[known.name] for known in fields(cls) if known.name in saved}
        values["metrics"] = {name: float(value) for name, value in saved.get("metrics", {}).items()}
        values["curves"] = {
            name: [(step, float(value)) for step, value in curve] for name, curve in saved.get("curves", {}).items()
        }
        if (failure := saved.get("failure")) is not None:
            numbers = {name: float(value) for name, value in failure.get("values", {}).items()}
            values["failure"] = {**failure, "values": numbers}
        run = cls(**values)
        wrong = [name for name, types in _FIELDS.items() if not isinstance(getattr(run, name), types)]
        known = (
            (run.task in TASKS or ":" in run.task)
            and run.stage in ("tuning", "test")
            and run.status in ("ok", "failed")
        )
        if wrong or not known or any(map(math.isinf, run.metrics.values())):
            raise ValueError(f"`line` must be a run, got {describe(line)}.")
        return run


_FIELDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("task", "data", "loss", "stage", "status", "device"), str),
    **dict.fromkeys(("seed", "steps"), int),
    **dict.fromkeys(("settings", "edges", "start", "split"), dict),
    "lower": list,
    "best_step": (int, type(None)),
    "flat": (bool, type(None)),
    "seconds": (int, float, type(None)),
    "seconds_per_step": (int, float, type(None)),
    "peak_memory": (int, type(None)),
    "details": (str, type(None)),
}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_runs(folder: str | os.PathLike[str]) -> list[Run]:
    """The runs kept in the folder of a comparison, in the order they were done; a cut-off line is left out.

    Raises:
        FileNotFoundError: no comparison there.
    """
    path = user_path(folder) / "runs.jsonl"
    if not path.is_file():
        raise FileNotFoundError(f"`folder` must hold the runs.jsonl of a comparison, got {folder} without one.")
    runs: dict[Any, Run] = {}
    for line in path.read_bytes().split(b"\n"):
        run = parse_run(line)
        if run is not None:
            runs[key_of(run)] = run  # one that was repeated counts once
    return list(runs.values())


def parse_run(line: bytes) -> Run | None:
    """The run of a line; None where the line is damaged."""
    try:
        return Run.from_json(line.decode())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def key(loss: str, seed: int, settings: Mapping[str, Any] | None) -> tuple[str, int, str]:
    """The key of a run in its comparison; `settings` is None for the test."""
    return loss, seed, json.dumps(settings, sort_keys=True)


def key_of(run: Run) -> tuple[str, int, str]:
    """The `key` of a run."""
    return key(run.loss, run.seed, run.settings if run.stage == "tuning" else None)
