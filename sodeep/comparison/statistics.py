"""Means over seeds, and paired differences to a baseline with confidence intervals that allow for overlapping splits.

Where every seed draws its split from one set of data, the training and test splits of two seeds overlap, and their
differences are not independent: the variance of their mean is larger than s² / n. Nadeau and Bengio (Inference for the
generalization error, Machine Learning 2003) correct it to s² (1 / n + n_test / n_train), in the corrected resampled
t-test. It is used for such data. Where the data bring their split, the seeds differ in initialisation, batches and the
validation split alone: the interval is plain Student's t, and says nothing of other test data. Where every seed draws
new data, it is plain Student's t as well.

>>> half_width([0.02, 0.01, 0.03], overlap=0.0)
0.0248...
>>> half_width([0.02, 0.01, 0.03], overlap=0.25)
0.0328...
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sodeep._core.checks import check_choice
from sodeep.comparison.runs import Run
from sodeep.datasets.splits import SPLITS
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
        low: end of the 95% interval of the difference (see the module); NaN for one seed.
        high: its other end.
        p: of the two-sided test of no difference, adjusted for the number of losses that are compared with the baseline
            (Holm 1979); NaN for one seed.
        best: whether no loss has a better mean.
    """

    n: int
    mean: float
    sd: float
    difference: float | None
    low: float
    high: float
    best: bool
    p: float = math.nan

    @property
    def has_interval(self) -> bool:
        """Whether the difference has an interval: two seeds or more are shared."""
        return not math.isnan(self.low)

    @property
    def differs(self) -> bool:
        """Whether the difference is significant among those of the losses compared: p is below 0.05."""
        return self.p < 0.05


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
        split: how seeds differ: "given", in initialisation and batches; "drawn", in their split of one data set too, of
            which intervals take account; "new", in their data.
        sizes: items in train, val and test, or groups (`Task.size_of`), of the first seed.
        edges: loss -> settings whose choice was at the edge of the range for half of the seeds or more, two at least:
            name -> "low" or "high".
        rising: loss -> for how many seeds the cap on steps ended the training before the validation metric was flat.
        steps: loss -> median of steps to the best validation, and of all steps.
        seconds: loss -> median wall time of a training.
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
    split: str
    sizes: dict[str, int]
    edges: dict[str, dict[str, str]]
    rising: dict[str, int]
    steps: dict[str, tuple[float, float]]
    seconds: dict[str, float]
    seconds_per_step: dict[str, float]
    peak_memory: dict[str, int | None]
    failed: list[Run]
    device: str


def summarise(runs: Sequence[Run], baseline: str | None = None, metric: str | None = None) -> Summary:
    """Mean, spread and paired difference to a baseline of every loss and metric, of the tested runs.

    Args:
        runs: of one task, as `compare` returns them or `read_runs` reads them.
        baseline: a loss among them. None: the task's, or the first there is.
        metric: that stands first, which settings were chosen by. None: that of the task.

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
    task = TASKS.get(runs[0].task)
    if baseline is None:
        baseline = task.baseline if task is not None and task.baseline in losses else losses[0]
    check_choice(baseline, losses, "baseline")
    tested = [run for run in runs if run.stage == "test" and run.status == "ok"]
    known = {name: name not in run.lower for run in tested for name in run.metrics} if task is None else task.metrics
    names = dict.fromkeys([*filter(None, [metric]), *known])
    metrics = {name: known[name] for name in names if any(name in run.metrics for run in tested)}
    values = {
        (loss, metric): {
            run.seed: run.metrics[metric]
            for run in tested
            if run.loss == loss and math.isfinite(run.metrics.get(metric, math.nan))  # NaN: undefined for this seed
        }
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
    split = split_of(tested)
    sizes = {name: tested[0].split[name] for name in SPLITS if tested and name in tested[0].split}
    overlap = sizes["test"] / sizes["train"] if split == "drawn" else 0.0
    cells = {
        (loss, metric): _cell(by_seed, values[baseline, metric], loss == baseline, best[metric], overlap)
        for (loss, metric), by_seed in values.items()
        if by_seed
    }
    counts = {loss: Counter(json.dumps(run.settings) for run in tests) for loss, tests in by_loss.items()}
    return Summary(
        task=runs[0].task,
        data=runs[0].data,
        baseline=baseline,
        metrics=metrics,
        losses=losses,
        seeds=sorted({run.seed for run in runs}),
        cells=_adjusted(cells),
        settings={loss: [(json.loads(text), n) for text, n in count.most_common()] for loss, count in counts.items()},
        split=split,
        sizes=sizes,
        edges={loss: edges for loss, tests in by_loss.items() if (edges := _edges(tests))},
        rising={loss: n for loss, tests in by_loss.items() if (n := sum(run.flat is False for run in tests))},
        steps={
            loss: (_median(run.best_step for run in tests), _median(run.steps for run in tests))
            for loss, tests in by_loss.items()
            if tests
        },
        seconds={loss: _median(run.seconds for run in tests) for loss, tests in by_loss.items() if tests},
        seconds_per_step={
            loss: _median(run.seconds_per_step for run in tests) for loss, tests in by_loss.items() if tests
        },
        peak_memory={loss: int(statistics.median(peaks)) if peaks else None for loss, peaks in memory.items()},
        failed=[run for run in runs if run.status == "failed" and (run.stage == "tuning" or run.settings)],
        device=runs[0].device,
    )


def _median(values: Iterable[float | None]) -> float:
    return statistics.median([value for value in values if value is not None] or [math.nan])


def split_of(tested: Sequence[Run]) -> str:
    """How the seeds of tested runs differ, as `Summary.split` says it."""
    data = {run.split.get("data") for run in tested}
    items = {run.split.get("items") for run in tested}
    return "new" if len(data) > 1 else "drawn" if len(items) > 1 else "given"


def half_width(differences: Sequence[float], overlap: float) -> float:
    """Half the 95% interval of the mean of paired differences; `overlap` is n_test / n_train of drawn splits, or 0."""
    from scipy.stats import t

    return float(t.ppf(0.975, len(differences) - 1)) * _standard_error(differences, overlap)


def _standard_error(differences: Sequence[float], overlap: float) -> float:
    return statistics.stdev(differences) * math.sqrt(1 / len(differences) + overlap)


def _edges(tests: Sequence[Run]) -> dict[str, str]:
    """As of `Summary`, for one loss."""
    counts = Counter(edge for run in tests for edge in run.edges.items())
    return {name: side for (name, side), n in counts.items() if n >= max(2, len(tests) / 2)}


def _cell(
    values: Mapping[int, float], baseline_values: Mapping[int, float], is_baseline: bool, best: float, overlap: float
) -> Cell:
    mean = statistics.fmean(values.values())
    sd = statistics.stdev(values.values()) if len(values) > 1 else math.nan
    pairs = [] if is_baseline else [values[seed] - baseline_values[seed] for seed in values if seed in baseline_values]
    difference = statistics.fmean(pairs) if pairs else None
    low = high = p = math.nan
    if difference is not None and len(pairs) > 1:
        from scipy.stats import t

        half, error = half_width(pairs, overlap), _standard_error(pairs, overlap)
        low, high = difference - half, difference + half
        p = 2 * float(t.sf(abs(difference) / error, len(pairs) - 1)) if error > 0 else float(difference == 0)
    return Cell(len(values), mean, sd, difference, low, high, mean == best, p)


def _adjusted(cells: Mapping[tuple[str, str], Cell]) -> dict[tuple[str, str], Cell]:
    """The cells with p adjusted by Holm's method over the losses of each metric."""
    result = dict(cells)
    for metric in dict.fromkeys(metric for _, metric in cells):
        tests = sorted((cell.p, loss) for (loss, name), cell in cells.items() if name == metric and cell.p == cell.p)
        least = 0.0
        for place, (p, loss) in enumerate(tests):
            least = max(least, min(1.0, (len(tests) - place) * p))
            result[loss, metric] = replace(cells[loss, metric], p=least)
    return result
