"""Means over seeds, and paired differences to a baseline with confidence intervals."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sodeep._core.checks import check_choice
from sodeep.comparison.runs import Run
from sodeep.tasks import TASKS


@dataclass(frozen=True)
class Cell:
    """One metric of one loss, over the seeds.

    Attributes:
        n: seeds with a value.
        mean: over them.
        sd: standard deviation over them (n - 1); NaN for a single one.
        difference: mean over the seeds that baseline and loss share of loss minus baseline; None for the baseline
            itself, and without a shared seed.
        low: end of the 95% interval of the difference (Student's t on the paired differences); NaN for one seed.
        high: its other end.
        best: whether no loss has a better mean.
    """

    n: int
    mean: float
    sd: float
    difference: float | None
    low: float
    high: float
    best: bool

    @property
    def has_interval(self) -> bool:
        """Whether the difference has an interval: two seeds or more are shared."""
        return not math.isnan(self.low)

    @property
    def differs(self) -> bool:
        """Whether the difference is significant: its interval does not contain 0."""
        return self.difference is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class Summary:
    """The statistics of a comparison.

    Attributes:
        task: name.
        data: their name.
        baseline: the loss that differences are taken to.
        metrics: name -> whether higher is better, most important first.
        losses: in the order they were given.
        seeds: all that occur.
        cells: (loss, metric) -> its statistics; a loss without a finished test has none.
        settings: loss -> each chosen setting and for how many seeds, most frequent first.
        seconds_per_step: loss -> median over its tested runs.
        peak_memory: loss -> median bytes a step, None if not measured.
        failed: trainings that failed, those of settings not chosen included, and tests that failed though a training
            had not.
        device: where the runs ran.
    """

    task: str
    data: str
    baseline: str
    metrics: dict[str, bool]
    losses: list[str]
    seeds: list[int]
    cells: dict[tuple[str, str], Cell]
    settings: dict[str, list[tuple[dict[str, Any], int]]]
    seconds_per_step: dict[str, float]
    peak_memory: dict[str, int | None]
    failed: list[Run]
    device: str


def summarise(runs: Sequence[Run], baseline: str | None = None) -> Summary:
    """Mean, spread and paired difference to a baseline of every loss and metric, of the tested runs.

    Args:
        runs: of one task, as `compare` returns them or `read_runs` reads them.
        baseline: a loss among them. None: the task's, or the first there is.

    Raises:
        ValueError: no run, runs of several tasks or data sets, a baseline that is not among them.
    """
    if not runs:
        raise ValueError("`runs` must hold at least one run, got none.")
    if others := {(run.task, run.data) for run in runs} - {(runs[0].task, runs[0].data)}:
        raise ValueError(
            f"`runs` must be of one task on one data set, got {(runs[0].task, runs[0].data)} and {min(others)}."
        )
    losses = list(dict.fromkeys(run.loss for run in runs))
    task = TASKS[runs[0].task]
    if baseline is None:
        baseline = task.baseline if task.baseline in losses else losses[0]
    check_choice(baseline, losses, "baseline")
    tested = [run for run in runs if run.stage == "test" and run.status == "ok"]
    metrics = {name: up for name, up in task.metrics.items() if any(name in run.metrics for run in tested)}
    values = {
        (loss, metric): {run.seed: run.metrics[metric] for run in tested if run.loss == loss and metric in run.metrics}
        for loss in losses
        for metric in metrics
    }
    means = {key: statistics.fmean(by_seed.values()) for key, by_seed in values.items() if by_seed}
    best = {
        metric: (max if up else min)((mean for (_, name), mean in means.items() if name == metric), default=math.nan)
        for metric, up in metrics.items()
    }
    by_loss = {loss: [run for run in tested if run.loss == loss] for loss in losses}
    memory = {
        loss: [run.peak_memory for run in tests if run.peak_memory is not None] for loss, tests in by_loss.items()
    }
    counts = {loss: Counter(json.dumps(run.settings) for run in tests) for loss, tests in by_loss.items()}
    return Summary(
        task=runs[0].task,
        data=runs[0].data,
        baseline=baseline,
        metrics=metrics,
        losses=losses,
        seeds=sorted({run.seed for run in runs}),
        cells={
            (loss, metric): _cell(by_seed, values[baseline, metric], loss == baseline, best[metric])
            for (loss, metric), by_seed in values.items()
            if by_seed
        },
        settings={loss: [(json.loads(text), n) for text, n in count.most_common()] for loss, count in counts.items()},
        seconds_per_step={
            loss: _median(run.seconds_per_step for run in tests) for loss, tests in by_loss.items() if tests
        },
        peak_memory={loss: int(statistics.median(peaks)) if peaks else None for loss, peaks in memory.items()},
        failed=[run for run in runs if run.status == "failed" and (run.stage == "tuning" or run.settings)],
        device=runs[0].device,
    )


def _median(values: Iterable[float | None]) -> float:
    return statistics.median([value for value in values if value is not None] or [math.nan])


def _cell(values: Mapping[int, float], baseline_values: Mapping[int, float], is_baseline: bool, best: float) -> Cell:
    mean = statistics.fmean(values.values())
    sd = statistics.stdev(values.values()) if len(values) > 1 else math.nan
    pairs = [] if is_baseline else [values[seed] - baseline_values[seed] for seed in values if seed in baseline_values]
    difference = statistics.fmean(pairs) if pairs else None
    low = high = math.nan
    if difference is not None and len(pairs) > 1:
        from scipy.stats import t

        half = float(t.ppf(0.975, len(pairs) - 1)) * statistics.stdev(pairs) / math.sqrt(len(pairs))
        low, high = difference - half, difference + half
    return Cell(len(values), mean, sd, difference, low, high, mean == best)
